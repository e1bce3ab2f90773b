"""Causes: ranks whose loops and branches differ (deadlock.missing_rank, mismatch.*), and values that decide."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Fact, Lines, Made, MadeAt, Nothing, Ranks, about


class Loops:
    """Ranks whose loops and branches differ, and values that decide (deadlock.missing_rank, mismatch.*)."""

    # --- loops and branches that differ between ranks (deadlock.missing_rank, mismatch.*) -----------------------------

    RAN_OUT_OF_INPUT = about(Ranks)(
        "{who} ran out of input, or stopped, before the others, and no `join()` answers the collectives that the "
        "others still make",
        "wrap the loop in `with model.join():`; if a rank decides to stop, share that by all_reduce(MAX) of a flag",
    )
    DECIDED_ALONE = about(Made)(
        "{who} made {operation} before the forward that the other ranks went on to: the rank made a decision from "
        "something that only it knows (its clock, its loss, its queue), or made it later than the others",
        "let one rank decide and broadcast the decision to stop, skip or save, or all_reduce(MAX) it",
    )
    LEFT_LOOP = about(Made)(
        "{who} left the training loop earlier than the others, skipped part of a step, or made a call that the others "
        "did not make, and then called {operation}",
        "wrap the loop in `with model.join():`, agree on its length by all_reduce(MIN), or broadcast the decision to "
        "stop, skip or save",
    )
    STAYED_IN_LOOP = about(Made)(
        "{who} continued training without {operation}, which the other ranks made: only some ranks take that branch, "
        "or the loop is longer there",
        "let one rank decide and broadcast it, or agree on the loop's length by all_reduce(MIN)",
    )
    FORWARD_ALONE = about(Ranks)(
        "a forward through the wrapper broadcasts buffers, in evaluation too; {who} ran a forward that the others did "
        "not run",
        "evaluate on model.module, the inner module, or on all ranks; if the others ran out of input, wrap the loop in "
        "`with model.join():`",
    )
    COLLECTIVE_IN_FORWARD = about(Ranks)(
        "the model's forward makes collectives, and {who} left one out or made one more: a skipped layer, eval() on "
        "some ranks only, or an empty batch",
        "run every rank through the same layers in the same mode; if a rank has no input, use a dummy input with a "
        "loss weight of zero",
    )
    SKIPPED_BACKWARD = about(Ranks)(
        "{who} ran more synchronising forwards than the others before this reduction. Either a backward was left out, "
        "and gradients of different steps are averaged (no backend would notice), or a forward was run that needs no "
        "backward, which does no harm",
        "let all ranks skip together, by an all_reduce(MIN) of a flag; run an extra forward under torch.no_grad(), or "
        "through model.module",
    )
    EXTRA_FORWARD = about(Ranks)(
        "{who} began another forward while the others still reduce gradients: a backward was left out, or the others "
        "did not run this forward",
        "let all ranks skip together, by an all_reduce(MIN) of a flag; run an extra forward through model.module",
    )
    BACKWARD_WITHOUT_BUCKET = about(Ranks)(
        "{who} finished this step without reducing this bucket: no forward ran there (no input, no tokens), {its} loss"
        " does not depend on these parameters, or {its} forward ran under no_sync()",
        "run the model in every step on every rank, on a dummy input if necessary, and let the loss depend on its "
        "output, multiplied by zero where there is nothing to learn; enter no_sync() on all ranks or on none",
    )
    ONE_CALL_MORE = about(Made)(
        "{who} made {operation}, and the others did not: only some ranks take that branch, or a call in it "
        "communicates although it looks local (a save, the compute() of a metric)",
        "make the call on every rank, or on none",
    )
    CALLS_ONE_OFF = about(Lines)(
        "calls from different lines met in {operation}, {sides}; every later call is off by one: only some ranks take "
        "a branch, or a call in it communicates although it looks local (a save, the compute() of a metric)",
        "make the call at {site} on every rank, or on none",
    )
    RETURNED_EARLY = about(Made)(
        "{who} returned without making {operation}",
        "let every rank of the group make the same calls in the same order, and return (or destroy the group) only "
        "after all calls are complete",
    )
    DID_NOT_COME = about(Made)(
        "{who} did not reach {operation}: the rank returned or ended before it, took another path, or is still busy; "
        "the record does not say which",
        "look at what follows the last call of {who}, in its log and in the program: a shorter loop, a branch, an "
        "exception that was caught",
    )
    NO_RECORD = about(Made)(
        "it is unknown whether {who} reached {operation}: no record says so",
        "add the complete record of {who}; if its process ended without one, that is why the others wait: see its log",
    )
    MESSAGE_NOT_MET = about(Made)(
        "{who} did not make the matching {operation}, or the other side made one message too many",
        "look at what follows the last call of {who}; give every send one recv with the same peer and group",
    )
    CAME_AND_HUNG = about(Made)(
        "{who} reached {operation}; all recorded arguments agree, and the call did not complete",
        "look below the calls (links, GPUs, a slow machine), and at what the records do not contain: a kernel of the "
        "program that never ends, different reductions or roots",
    )
    NOTHING_OPEN = about(Ranks)(
        "no call in the records is open, and there is no record of {who}",
        "add the missing records; if the processes ended without one, see their logs",
    )
    ENDS_UNKNOWN = about(Ranks)(
        "the calls of {who} agree, and no record says that any call completed",
        "if the job hung, it hung in one of the last calls, or outside them: see the logs and stacks of the ranks",
    )
    GROUP_DESTROYED = about(MadeAt)(
        "{who} destroyed the group at {site} without making {operation}",
        "let the ranks agree on the number of calls, by an all_reduce(MAX), and destroy the group together",
    )
    OTHER_BRANCH = about(Ranks)(
        "{who} took another branch, left a loop earlier or later, or made one call more or fewer, so different "
        "calls meet",
        "let every rank of the group make the same calls in the same order; share the value that decides a branch or "
        "ends a loop, and keep calls that communicate (a gather, a save, the compute() of a metric) out of branches "
        "that only some ranks take",
    )
    OTHER_FUNCTION = about(Ranks)(
        "{who} made a call from one function while the others made one from another function: some ranks took another "
        "branch, or tasks that share a group ran in the order in which they became ready",
        "share the value that decides a branch; put the communication of tasks into one queue, the same on every rank,"
        " or give each task a group of its own",
    )
    CIRCLE = about(Nothing)(
        "each rank of the cycle waits in a call that the next one reaches only after its own",
        "let all ranks make the calls they share in one order",
    )

    # --- values that decide (mismatch.value) --------------------------------------------------------------------------

    VALUES_DIFFER = about(Fact)(
        "the ranks take different paths because of {fact}, which each rank has computed, read or drawn by itself",
        "share it: broadcast the value of one rank, or all_reduce a flag, before anything depends on it",
    )
