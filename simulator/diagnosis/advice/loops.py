"""Causes: ranks whose loops and branches differ (deadlock.missing_rank, mismatch.*), and values that decide."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Fact, Lines, Made, MadeAt, Nothing, Ranks, about


class Loops:
    """Ranks whose loops and branches differ, and values that decide (deadlock.missing_rank, mismatch.*)."""

    # --- loops and branches that differ between ranks (deadlock.missing_rank, mismatch.*) -----------------------------

    RAN_OUT_OF_INPUT = about(Ranks)(
        "{who} ran out of input, or stopped, before the others, and nothing shadows {its} collectives",
        "wrap the loop in `with model.join():`; if a rank decides to stop, share that by all_reduce(MAX) of a flag",
    )
    DECIDED_ALONE = about(Made)(
        "{who} made {operation} before the forward that the others went on to: a rank decides by what only it "
        "knows (its clock, loss or queue), or came to it later than they did",
        "let one rank decide and broadcast the decision to stop, skip or save, or all_reduce(MAX) it",
    )
    LEFT_LOOP = about(Made)(
        "{who} left the training loop before the others, skipped part of a step, or made a call that the others "
        "did not, and went on to {operation}",
        "wrap the loop in `with model.join():`, agree on its length by all_reduce(MIN), or broadcast the decision to "
        "stop, skip or save",
    )
    STAYED_IN_LOOP = about(Made)(
        "{who} went on to train without {operation}, which the others made: a branch that only some ranks take, "
        "or a loop longer than theirs",
        "let one rank decide and broadcast it, or agree on the loop's length by all_reduce(MIN)",
    )
    FORWARD_ALONE = about(Ranks)(
        "a forward through the wrapper broadcasts buffers, in evaluation too; {who} made one that the others did not",
        "evaluate on model.module, the inner module, or on all ranks; if the others ran out of input, wrap the loop in "
        "`with model.join():`",
    )
    COLLECTIVE_IN_FORWARD = about(Ranks)(
        "the model's forward makes collectives of its own, and {who} left one out or made one more: a layer "
        "skipped, eval() on some ranks only, or an empty batch",
        "send every rank through the same layers in the same mode, with a dummy input weighted by zero if it has none",
    )
    SKIPPED_BACKWARD = about(Ranks)(
        "{who} made more synchronising forwards than the others before this reduction: a backward was left out, "
        "and gradients of different steps are averaged, which no backend would notice; or a forward was made that no "
        "backward is meant to follow, which does no harm",
        "let all ranks skip together, by an all_reduce(MIN) of a flag; make a forward that is meant to be extra under "
        "torch.no_grad(), or through model.module",
    )
    EXTRA_FORWARD = about(Ranks)(
        "{who} came to another forward while the others still reduce: a backward was left out, or a forward was "
        "made that the others did not make",
        "let all ranks skip together, by an all_reduce(MIN) of a flag; make a forward that is meant to be extra "
        "through model.module",
    )
    BACKWARD_WITHOUT_BUCKET = about(Ranks)(
        "{who} went on past this step without reducing this bucket: no forward was made there (no input, no "
        "tokens), {its} loss does not depend on these parameters, or {its} forward ran under no_sync()",
        "run the model in every step on every rank, on a dummy input if need be, and let the loss depend on its "
        "output, multiplied by zero where there is nothing to learn; enter no_sync() on all ranks alike",
    )
    ONE_CALL_MORE = about(Made)(
        "{who} made {operation}, and the others did not: a branch that only some ranks take, or a call in it that "
        "looks local and communicates (a save, the compute() of a metric)",
        "make the call on every rank, or on none",
    )
    CALLS_ONE_OFF = about(Lines)(
        "calls of different lines met in {operation}, {sides}; from there on calls are one off: a branch that only "
        "some ranks take, or a call in it that looks local and communicates (a save, the compute() of a metric)",
        "make the call at {site} on every rank, or on none",
    )
    RETURNED_EARLY = about(Made)(
        "{who} returned without making {operation}",
        "let every rank of the group make the same calls in the same order, and return (or destroy the group) only "
        "when all are done",
    )
    DID_NOT_COME = about(Made)(
        "{who} did not come to {operation}: returned or ended before it, went another way, or still busy with "
        "something else; the record does not say which",
        "look what comes after the last call of {who}, in its log and in the program: a loop that is shorter there, a "
        "branch, an exception that was caught",
    )
    NO_RECORD = about(Made)(
        "nobody knows whether {who} came to {operation}: no record says so",
        "add the whole record of {who}; where its process has ended and left none, that is why the others wait: see "
        "its log",
    )
    MESSAGE_NOT_MET = about(Made)(
        "{who} did not make the matching {operation}, unless there is one message too many on the other side",
        "look what comes after the last call of {who}; give every send one recv with the same peer and group",
    )
    CAME_AND_HUNG = about(Made)(
        "{who} came to {operation}, alike in all that the records have, and it did not complete",
        "look below the calls (links, GPUs, a machine that is slow), and at what the records have not: a kernel of the "
        "program itself that never ends, other reductions or roots",
    )
    NOTHING_OPEN = about(Ranks)(
        "no call in the records is open, and there is no record of {who}",
        "add the missing records; where the processes have ended and left none, see their logs",
    )
    ENDS_UNKNOWN = about(Ranks)(
        "the calls of {who} agree, and no record says of any call that it was complete",
        "if the job hung, it was in one of the last calls, or beside them: see the logs and stacks of the ranks",
    )
    GROUP_DESTROYED = about(MadeAt)(
        "{who} destroyed the group at {site} without making {operation}, as if the work were done",
        "let the ranks agree on how often they communicate, by an all_reduce(MAX), and destroy the group together",
    )
    OTHER_BRANCH = about(Ranks)(
        "{who} took another branch, left a loop earlier or later, or made one call more or fewer, so different "
        "calls meet",
        "let every rank of the group make the same calls in the same order; share what decides a branch or ends a "
        "loop, and keep what communicates (a gather, a save, the compute() of a metric) out of branches of some ranks",
    )
    OTHER_FUNCTION = about(Ranks)(
        "{who} came to one function's call where the others were in another's: some ranks took another branch, or "
        "tasks that share a group ran in the order in which they became ready",
        "share what decides a branch; put what tasks communicate into one queue, the same on every rank, or give "
        "each task a group of its own",
    )
    CIRCLE = about(Nothing)(
        "each rank of the cycle waits in a call that the next one reaches only after its own",
        "let the ranks make the calls they share in one order",
    )

    # --- values that decide (mismatch.value) --------------------------------------------------------------------------

    VALUES_DIFFER = about(Fact)(
        "the ranks go different ways by {fact}, which each has computed, read or drawn by itself",
        "share it: broadcast the value of one rank, or all_reduce a flag, before anything depends on it",
    )
