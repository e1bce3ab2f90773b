"""Causes: what a rank raised (rank_error, deadlock.dead_rank), and its threads (deadlock.threads)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Fact, Made, MadeBecause, Parameters, Ranks, about


class Errors:
    """What a rank raised (rank_error, deadlock.dead_rank), and its threads (deadlock.threads, hazard.thread_error)."""

    # --- what a rank raised (rank_error, deadlock.dead_rank) ----------------------------------------------------------

    DIED = about(Ranks)(
        "{who} left by an exception, and the others wait for calls that will never be made",
        "fix the exception; in production, abort the group on an error so that its peers end too",
    )
    CALLS_ON_ITS_WAY_OUT = about(MadeBecause)(
        "{who} {fact}, and what runs on the way out of that (`finally`, `__exit__` or a handler that raises again) "
        "made {operation} while the others went on without an exception",
        "fix the exception, which is told above; let what cleans up not communicate then",
    )
    RAISED = about(Parameters)(
        "an exception left the program of {who}",
        "fix it there first; ranks that did not raise at most wait for what was not done because of it",
    )
    RAISED_IN_FLIGHT = about(Made)(
        "an exception left the program of {who} before the wait for {operation}: until then what a call is to write is "
        "poisoned, and holds NaN or the largest number of its type",
        "wait() for a call before its tensors are read; if they were not read, fix what was raised",
    )
    RAISED_OVER_UNDEFINED = about(Made)(
        "an exception left the program of {who}, where a tensor of {operation} holds NaN: elsewhere than on its "
        "destination a reduce may leave anything there",
        "use the result of a reduce on its destination only; if it was not used, fix what was raised",
    )
    PROCESS_GONE = about(Ranks)(
        "{who} ended without an exception, and the others wait for calls that will never be made",
        "find out what ended it, as told above; in production let the launcher end the other ranks, too",
    )
    EXITED = about(Parameters)(
        "the program of {who} ended its process itself, by os._exit or by exit() in native code: no `finally` and no "
        "`except` ran, and nothing says why",
        "look at what decides so, and at what the rank wrote last; raise an exception, or call sys.exit, so that the "
        "reason is shown and what cleans up runs",
    )
    PROCESS_ENDED = about(Parameters)(
        "the process of {who} ended in the middle of its program, and Python could not say why",
        "look at what it wrote last; python -X faulthandler shows where native code crashes, and the system's log what "
        "it killed for want of memory",
    )
    RAISED_IN_HOOK = about(Parameters)(
        "a hook that the backward calls raised on {who}, as what it kept has another size than the gradients now",
        "keep what belongs to gradients by parameter, not by the index of a bucket: after the first step the wrapper "
        "forms its buckets anew",
    )
    NO_GRADIENT_IN_JOIN = about(Parameters)(
        "{who} ran out of input before a sparse gradient was made there, which torch's join needs in order to "
        "reduce it with the others'",
        "use dense gradients (sparse=False), or give every rank a batch before it joins",
    )
    CALL_REFUSED = about(Fact)(
        "the call cannot be made like this; its message says what was found and what was expected",
        "{fact}",
    )
    FAULT_INJECTED = about(Parameters)(
        "the fault plan lets {who} crash here",
        "look at what became of the others; to run without the crash, leave it out of `faults`",
    )
    UNUSED_PARAMETERS = about(Parameters)(
        "in the step before, {parameters} got no gradient, so the bucket was never reduced",
        "pass find_unused_parameters=True to DistributedDataParallel, or let every parameter take part in the loss",
    )
    READY_TWICE = about(Parameters)(
        "a parameter's gradient was accumulated twice in one backward (reentrant checkpointing, or a layer used twice)",
        "use checkpoint(..., use_reentrant=False), or static_graph=True",
    )
    GRAPH_CHANGED = about(Parameters)(
        "static_graph=True promises that every step uses the same parameters, and this one used others than the first",
        "leave static_graph out, or drop or detach outputs that reach no loss",
    )
    BACKWARD_NOT_ANNOUNCED = about(Parameters)(
        "a backward ran that no forward through the wrapper announced",
        "call the wrapper, not its inner module, for the loss, once for each backward, or add losses up and run one",
    )
    BUFFERS_OVERWRITTEN = about(Parameters)(
        "a tensor that the backward needs was changed in place since the forward, as a second forward through the "
        "wrapper does when it broadcasts buffers",
        "make one forward on the batches together, or pass broadcast_buffers=False",
    )
    LOSS_DETACHED = about(Parameters)(
        "the loss of {who} does not depend on any parameter",
        "let it depend on the model's output, multiplied by zero where there is nothing to learn",
    )
    NOTHING_TO_TRAIN = about(Parameters)(
        "no parameter of the model required a gradient when it was wrapped",
        "leave it unwrapped, and unfreeze parameters before wrapping",
    )
    PARAMETERS_CHANGED = about(Parameters)(
        "{parameters} changed after the model was wrapped: frozen, unfrozen, replaced or added",
        "do it on every rank before wrapping, or wrap the model again",
    )
    TOO_SMALL_A_BATCH = about(Parameters)(
        "{who} got a batch too small for this layer, of one sample or none, as the last batch may be",
        "drop the last batch (drop_last=True), or share samples so that every rank has more than one",
    )
    GROUP_RANK_AS_ROOT = about(Parameters)(
        "src and dst are global ranks, and a rank within the group was given, or one that is no member",
        "pass group_src or group_dst, or translate with dist.get_global_rank(group, rank)",
    )
    INITIALISED_TWICE = about(Parameters)(
        "the program initialises the default group, which the simulator has done already",
        "leave init_process_group out, or guard it with `if not dist.is_initialized():`",
    )
    GROUP_GONE = about(Parameters)(
        "the default group is used after destroy_process_group(), or outside a rank's program",
        "destroy the group last, when no rank communicates any more",
    )
    BARRIER_MISSED = about(MadeBecause)(
        "{who} had not come to {operation} after {fact}; the ranks that raise came to it, and waited",
        "look at what {who} did instead, and let every rank come to it; give it a longer timeout if that only takes "
        "longer",
    )
    BARRIER_WITHOUT_TIME = about(Made)(
        "{who} came to {operation} with a timeout of 0, which leaves no time to look whether the others are there",
        "give it a timeout in which every rank can come, or wait_all_ranks=True, for which 0 means no limit",
    )
    THROWN_BY_JOIN = about(Parameters)(
        "{who} ran out of input, and throw_on_early_termination=True ends the loop of all ranks by an error",
        "catch it on every rank, around the join; or leave the option out, and the others train on",
    )
    ROOT_HAS_JOINED = about(Parameters)(
        "{who} ran out of input, and the others make a call whose data only a rank that left its loop could give",
        "take a root that has input; if a sharded optimizer makes the call, list it in torch's Join beside the model, "
        "or use a replicated one",
    )
    JOIN_BROKEN = about(Parameters)(
        "the ranks inside the join disagree, or one left it, as the message says",
        "let every rank enter the join with the same models and leave it at its end",
    )

    # --- threads of a rank (deadlock.threads, hazard.thread_error) ----------------------------------------------------

    LOCKS_IN_OTHER_ORDER = about(Ranks)(
        "threads of {who} take the same locks in different orders (a lock order inversion), and each has what "
        "another one asks for",
        "take the locks in one order everywhere, or one lock in their place",
    )
    LOCK_TAKEN_TWICE = about(Ranks)(
        "a thread of {who} asks for a lock that it has itself",
        "take threading.RLock, which counts, or release the lock before what takes it again",
    )
    LOCK_HELD_IN_WAIT = about(Ranks)(
        "threads of {who} wait for each other: one for a lock, whose holder waits for what only the first can do",
        "release the lock before waiting for a thread, an event, a queue or other ranks",
    )
    NOBODY_ACTS = about(Ranks)(
        "each thread of {who} that could set, notify, put or release waits itself, or has ended",
        "do it on every path, after an exception too (`finally`, `with`), or wait with a time-out",
    )
    THREAD_RAISED = about(Parameters)(
        "an exception ends the thread that it leaves, and {who} went on without it",
        "keep it and raise it where the thread is joined; an executor does so: call result() of each future",
    )
