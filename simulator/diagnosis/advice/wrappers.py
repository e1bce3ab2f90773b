"""Causes in a DDP wrapper and its `join()` (mismatch.*, deadlock.missing_rank)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import (
    Argument,
    CallAt,
    Fact,
    Made,
    Parameters,
    Ranks,
    RanksAt,
    Steps,
    about,
)


class Wrappers:
    """Causes in a DDP wrapper and its `join()` (mismatch.*, deadlock.missing_rank)."""

    # --- what a DDP wrapper does (mismatch.*, deadlock.missing_rank) --------------------------------------------------

    WRAPPED_ALONE = about(Ranks)(
        "constructing DistributedDataParallel needs every rank of its group, and {who} did something else",
        "construct the wrapper on every rank, at the same point in the order of calls",
    )
    MODELS_DIFFER = about(Parameters)(
        "the model that {who} wrapped differs from the others': in parameters, buffers, requires_grad, ignored names, "
        "or the wrapper's options",
        "build the same model on every rank, with the same requires_grad and ignored names, and wrap it with the same "
        "options",
    )
    WRAPPERS_IN_OTHER_ORDER = about(Ranks)(
        "{who} used the wrappers in another order than the others, so a reduction or broadcast of one model meets one "
        "of another model, or waits for it",
        "run forwards and backwards of several wrappers in one order on every rank; separate groups do not help",
    )
    UNUSED_ON_SOME_RANKS = about(Ranks)(
        "{who} filled other buckets than the others: the loss left parameters out on these ranks, or used them only "
        "there",
        "pass find_unused_parameters=True on every rank, or let every rank's loss depend on all parameters, with a "
        "weight of zero if necessary",
    )
    BUCKET_LEFT_OUT = about(Parameters)(
        "{who} reduced the buckets before this one and continued without it: {its} loss does not depend on all of "
        "{parameters}",
        "pass find_unused_parameters=True on every rank, or let every rank's loss depend on them, with a weight of "
        "zero if necessary",
    )
    REDUCED_IN_OTHER_WAY = about(Ranks)(
        "the wrapper of {who} communicates in another order than the others': its options differ "
        "(find_unused_parameters, static_graph, bucket sizes), or the loss left parameters out",
        "construct the wrapper with the same options on every rank, with find_unused_parameters=True if a loss may "
        "leave parameters out",
    )
    HOOK_CALLS_DIFFER = about(RanksAt)(
        "{who}: the communication hook made another call than on the other ranks, or none, at {site}",
        "register the hook with the same options on every rank, and let it decide by values that all ranks share (the "
        "step, the bucket, the result of an all_reduce)",
    )
    HOOK_ONE_OFF = about(Steps)(
        "the communication hook's call at {site} belongs to a later step on {ahead} than on {behind}: the hook left a "
        "call out on {ahead} or made one more on {behind}, or a backward was left out on {ahead}",
        "register the hook with the same options on every rank, and let it decide by values that all ranks share (the "
        "step, the bucket, the result of an all_reduce); let all ranks skip a backward together",
    )
    HOOK_CHAINS_CROSS = about(Fact)(
        "the communication hook's calls at {fact} belong to different buckets: calls chained with `then` are made in "
        "the order in which the previous calls complete, and that order differs between ranks",
        "wait() in the hook before its next call, or use one bucket (bucket_cap_mb)",
    )
    HOOK_MADE_NO_CALL = about(RanksAt)(
        "{who} continued without the call that the communication hook makes at {site}: the hook made none, or did not "
        "run (a backward left out, no_sync(), a loss that does not depend on these parameters), or there was a forward"
        " that the other ranks did not run",
        "register the hook with the same options on every rank, and let it decide by values that all ranks share (the "
        "step, the bucket, the result of an all_reduce); run the same forwards and backwards on every rank",
    )
    HOOK_ON_SOME_RANKS = about(Argument)(
        "{who} reduced the bucket with a different {field}, as a communication hook, or a model in another precision, "
        "does",
        "register the same communication hook, and convert the model to the same dtype, on every rank",
    )
    BUFFERS_DIFFER = about(Ranks)(
        "{who} synchronised buffers differently from the others: the buffers differ, or a buffer hook is registered on"
        " some ranks only",
        "register the same buffers and the same buffer hook on every rank",
    )

    # --- join (mismatch.*, deadlock.missing_rank) ---------------------------------------------------------------------

    UNKNOWN_TO_JOIN = about(Made)(
        "{who} ran out of input, and join repeats only the calls of its joinables: it does not know {operation}, which"
        " the others made",
        "make the call after the join, make it part of a Joinable (its main_hook makes the same calls as a step, which "
        "begins with Join.notify_join_context), or leave the loop together with throw_on_early_termination=True",
    )
    MAIN_HOOK_DIFFERS = about(Made)(
        "{who} ran out of input, and the calls of its join differ from those that the others make in a step: its "
        "main_hook leaves out {operation} or makes another call, a step did not call Join.notify_join_context, or the "
        "loop makes an additional call",
        "begin the step with Join.notify_join_context(self), and let main_hook make the same calls in the same order; "
        "move additional calls of the loop after the join",
    )
    POST_HOOKS_DIFFER = about(CallAt)(
        "post_hook runs on every rank at the end of a join, and not every rank makes {operation} in it at {site}, or "
        "not with the same arguments: is_last_joiner differs between ranks",
        "let post_hook make the same calls on every rank, regardless of is_last_joiner; agree on the root by an "
        "all_reduce(MAX) over the ranks that joined last",
    )
    OTHER_SHARE_IN_JOIN = about(Ranks)(
        "{who} ran out of input, and join repeats exactly one training forward, the buffers before it, and one "
        "backward of the wrapper for each step",
        "evaluate on model.module, run one backward per forward, and no buffer hook after it; with a static graph, "
        "give every rank a batch and do not use find_unused_parameters",
    )
    NOT_IN_JOIN = about(Ranks)(
        "{who} ran out of input, and the join does not list the wrappers that the others used, or lists them in "
        "another order",
        "give Join all wrappers that communicate in the loop, in the order of use, each with its whole forward and "
        "backward",
    )
    JOINED_ON_SOME_RANKS = about(Ranks)(
        "some ranks are inside join and {who} {is} not, or {has} left it",
        "enter the join on every rank, and do not leave it by break, return or an exception",
    )
