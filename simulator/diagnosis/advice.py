"""The table of causes: what usually leads to a finding, and what to try.

The other files of this folder decide which cause applies, and fill in what stands in braces, the facts of its row:
`cause.lines(who="rank 2", operation="barrier #1")`. mypy tells of a fact that is forgotten, and a
test that each row can be filled in with its facts. `{its}`, `{has}` and `{is}` follow their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, ParamSpec

from ddpsim.simulator.wording import Line

_SINGULAR = {"its": "its", "has": "has", "is": "is"}
_PLURAL = {"its": "their", "has": "have", "is": "are"}

P = ParamSpec("P")


# --- facts, as words that stand in a sentence -------------------------------------------------------------------------


class Nothing(NamedTuple):
    """A cause that is the same wherever it applies."""


class Ranks(NamedTuple):
    """`rank 2`, `ranks 0, 1` or `some ranks`: mostly those to blame."""

    who: str


class RanksAt(NamedTuple):
    """With a line of the program: `train.py:7`."""

    who: str
    site: str


class Made(NamedTuple):
    """With an operation, of theirs or others: `barrier`, or one call, as `barrier #1`."""

    who: str
    operation: str


class MadeAt(NamedTuple):
    """With the line, too."""

    who: str
    operation: str
    site: str


class MadeBecause(NamedTuple):
    """With what had happened to them, as `raised KeyError`."""

    who: str
    operation: str
    fact: str


class Breaks(NamedTuple):
    """A call that breaks a rule of the others: what it has, and what they have."""

    who: str
    operation: str
    site: str
    fact: str
    usual: str


class Argument(NamedTuple):
    """With what differs in a call: `shape`."""

    who: str
    field: str


class Parameters(NamedTuple):
    """With the names of parameters, if they are known."""

    who: str
    parameters: str = "some parameters"


class Lines(NamedTuple):
    """Where calls of different lines met: who was where, and the line of those to blame."""

    operation: str
    sides: str
    site: str


class Steps(NamedTuple):
    """A line that ranks came to in different steps."""

    site: str
    ahead: str
    behind: str


class CallAt(NamedTuple):
    """A call and its line."""

    operation: str
    site: str


class Messages(NamedTuple):
    """What a message is on the side that sends it, and on the other."""

    sent: str
    expected: str


class Fact(NamedTuple):
    """The one thing that the cause speaks of."""

    fact: str


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Advice(Generic[P]):
    """The last two lines of a finding, with braces for the facts."""

    facts: Callable[P, NamedTuple]
    cause: str
    remedy: str

    def lines(self, *args: P.args, **kwargs: P.kwargs) -> list[Line]:
        """The two lines for these facts."""
        facts = self.facts(*args, **kwargs)._asdict()
        number = _PLURAL if facts.get("who", "").startswith(("ranks", "some")) else _SINGULAR
        cause, remedy = (text.format(**number, **facts) for text in (self.cause, self.remedy))
        return [Line("cause", cause), Line("try", remedy)]


def about(facts: Callable[P, NamedTuple]) -> Callable[[str, str], Advice[P]]:
    """Makes a row of the table, of cause and remedy, whose braces are the fields of `facts`."""
    return lambda cause, remedy: Advice(facts, cause, remedy)


class Cause:
    """Why something goes wrong, in the order of the findings: what waits or meets, what differs, hazards, errors."""

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
        "nobody knows whether {who} came to {operation}: there is no record of it",
        "add the record of {who}; where its process has ended and left none, that is why the others wait: see its log",
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
        "{who} came to one function's call where the others were in another's: tasks that share a group run in "
        "the order in which they become ready, or some ranks took another branch",
        "put what tasks communicate into one queue, the same on every rank, or give each task a group of its own; "
        "share what decides a branch",
    )
    CIRCLE = about(Nothing)(
        "each rank of the cycle waits in a call that the next one reaches only after its own",
        "let the ranks make the calls they share in one order",
    )

    # --- what one call passes (mismatch.*) ----------------------------------------------------------------------------

    OTHER_ARGUMENT = about(Argument)(
        "{who} passed another {field} to the same call",
        "pass the same {field} on every rank of the group",
    )
    OTHER_DTYPE = about(Argument)(
        "{who} passed another dtype to the same call, as a tensor made of whole numbers, or a model in another "
        "precision, has",
        "pass the same dtype on every rank of the group: name it where the tensor is made, "
        "torch.tensor(..., dtype=torch.float32)",
    )
    OTHER_REDUCTION = about(Argument)(
        "{who} passed another reduction to the same call; no backend compares them, and parts of the tensor may "
        "be reduced by either",
        "pass the same reduction on every rank of the group",
    )
    OTHER_LAYOUT = about(Argument)(
        "{who} passed as many elements in another shape; backends move them in memory order and notice nothing, "
        "so elements are combined that do not belong together",
        "bring the tensor into one shape on every rank of the group",
    )
    OTHER_SHAPE_GATHERED = about(Argument)(
        "{who} passed another shape to the same call, as a last batch or a filter may leave it",
        "pass the same shape on every rank of the group: gather the sizes first and pad, or use all_gather_object",
    )
    OTHER_ROOT = about(Argument)(
        "{who} passed another root to the same call",
        "pass the same root on every rank of the group: a global rank as src or dst, a rank within the group as "
        "group_src or group_dst",
    )
    OTHER_DESTINATION = about(Argument)(
        "{who} passed another root to the same call, and only one rank can have its result",
        "pass the same root on every rank of the group, or use all_reduce or all_gather where every rank wants the "
        "result",
    )
    OTHER_SPLITS = about(Ranks)(
        "the splits of {who} do not fit what the others send or expect",
        "let input split j of rank i be output split i of rank j, for instance by exchanging the sizes first",
    )
    PAIRED_BY_ORDER = about(Nothing)(
        "backends pair calls by order and size, not by meaning: these calls move each other's data, and no backend "
        "would notice",
        "let every rank of the group make the same calls in the same order",
    )

    # --- groups, the store, messages (deadlock.*, mismatch.*) ---------------------------------------------------------

    OTHER_MEMBERS = about(Ranks)(
        "{who} named other members for the same group, or {has} made more or fewer groups before, by whose number "
        "groups are known",
        "let every rank create the same groups, with the same members, in the same order",
    )
    GROUP_NOT_CREATED = about(Ranks)(
        "creating a group takes all its members at once, and {who} did not come to it",
        "create all groups on every rank, in one order, before anything else communicates",
    )
    GROUPS_IN_OTHER_ORDER = about(Fact)(
        "the ranks call groups {fact} in different orders",
        "let every rank use its groups in one global order",
    )
    LEFT_BEHIND = about(Ranks)(
        "{who} made the call, did not wait for it, and ended before the ranks had connected",
        "wait for the work before the rank ends",
    )
    STREAMS_CROSS = about(Fact)(
        "this backend may run the calls of a rank one after another, and {fact}",
        "issue calls that meet in one order on every rank, messages that go both ways by batch_isend_irecv",
    )
    GROUPS_IN_A_RING = about(Fact)(
        "the ranks begin with different ones of groups {fact}, and each waits for one that begins elsewhere",
        "let every rank use its groups in one global order, for instance that in which they were made",
    )
    KEY_NEVER_SET = about(Nothing)(
        "nobody who still runs will set the key",
        "set the key on another rank before it is waited for",
    )
    KEYS_IN_A_CIRCLE = about(Nothing)(
        "each rank of the cycle waits for a store key that another one may set only after its own wait",
        "let every rank set its keys before it waits for those of others",
    )
    SENDS_FIRST = about(Nothing)(
        "every rank of the cycle sends before it receives, and a send waits for its recv",
        "order the calls by the parity of the rank, or give both to batch_isend_irecv",
    )
    RECEIVES_FIRST = about(Nothing)(
        "every rank of the cycle receives before it sends",
        "let one rank send first, or give both calls to batch_isend_irecv",
    )
    NOTHING_SENT = about(Ranks)(
        "none of {who} sent what would have been received, and all have returned",
        "receive as many messages as are sent",
    )
    UNPAIRED_MESSAGE = about(Made)(
        "{who} returned without the matching {operation}, unless there is one message too many on the other side",
        "give every send one recv with the same peer, group and tag",
    )
    ODD_PEER = about(Breaks)(
        "{who} made {operation} with {fact} at {site}, where it would be {usual} if it were as all other calls of that "
        "line, and messages meet between the two ranks that they name only",
        "look how {site} works out the rank on {who}; what else waits may only follow from it",
    )
    ODD_PARTNER = about(Breaks)(
        "{who} made {operation} at {site} with {fact}, which exchanged no other message with it and has returned, "
        "while {usual} waits for {who} with the same tag",
        "look how {site} works out the rank on {who}: it may have meant {usual}",
    )
    ODD_TAG = about(Breaks)(
        "{who} made {operation} with {fact} at {site}, where it would be {usual} if it were as all other calls of that "
        "line, and messages meet under one tag only",
        "look how {site} works out the tag on {who}; what else waits may only follow from it",
    )
    ODD_FOLLOWER = about(Breaks)(
        "{who} made {operation} at {site} with {fact}, which is so nowhere else: otherwise {usual} follows; it is "
        "wrong itself, or a message before it was left out or made twice",
        "look how {site} works this out on {who}; what else waits may only follow from it",
    )
    ODD_ORDER = about(Breaks)(
        "{who} made {operation} at {site} after that at {fact}, where {usual} follows everywhere else: it left a "
        "message out, made one twice or in another order",
        "let {who} make the messages of these lines as the others do; what else waits may only follow from it",
    )
    ODD_COUNT = about(Breaks)(
        "{who} made {fact} messages, {operation} at {site} the last, and each other rank that came to the same lines "
        "and returned made {usual}",
        "let {who} make as many messages in these lines as the others; what else waits may only follow from it",
    )
    ODD_COUNT_AT_LINE = about(Breaks)(
        "{who} came to {site} {fact} times, and its {operation} there has no other side; each other rank that came "
        "there did so {usual} times, and has returned",
        "let {who} come there as often as the others",
    )
    MESSAGES_MISS_EACH_OTHER = about(Nothing)(
        "one rank sends and the other receives, but under another tag, or in another group",
        "give both sides of a message the same tag and group",
    )
    OTHER_MESSAGE = about(Fact)(
        "messages meet in the order in which they are sent, and this one does not fit the tensor it is received into",
        "receive in the order of the sends, with the same {fact}; give messages tags, or send the size first",
    )
    TAGS_IGNORED = about(Nothing)(
        "this backend does not see tags: messages between two ranks meet in the order in which they are issued",
        "receive in the order of the sends, or give messages of another kind a group of their own",
    )

    # --- FSDP2, pipelines, DTensors, checkpoints (mismatch.*, deadlock.*) ---------------------------------------------

    UNUSED_IN_UNIT = about(Parameters)(
        "{who} {has} no gradient for {parameters} in this step, and a unit reduces only the gradients that there "
        "are, as one tensor",
        "let the loss depend on all parameters of a unit on every rank, multiplied by zero where they are not "
        "needed; or use set_reduce_scatter_unused_params(True), in a torch that has it",
    )
    UNIT_LEFT_OUT = about(Ranks)(
        "{who} came to another unit, or to another pass through it, than the others: a layer, a forward or a "
        "backward was left out, or made once more; parameters of one unit are taken for those of another",
        "send every rank through the same units in the same order, on a dummy input weighted by zero if need be; let "
        "all ranks skip a step together, by an all_reduce(MIN) of a flag",
    )
    UPDATES_DIFFER = about(Ranks)(
        "on {who} the optimizer has updated this unit more often, or less, than on the others, so shards of "
        "different steps make up one parameter: an optimizer.step() was left out, or made once more, or a step has "
        "micro-batches fewer or more",
        "step the optimizer on every rank or on none, after as many micro-batches: share what decides by an "
        "all_reduce(MIN) of a flag",
    )
    UNITS_MEET_CALL = about(Made)(
        "{who} came to {operation} where the others were in a forward or backward of FSDP units, which takes every "
        "rank: a step or an evaluation that only some ranks make, or a loop that ends earlier",
        "make every forward and backward of a sharded model on all ranks, in evaluation too; agree on the length of "
        "a loop by all_reduce(MIN), and share what decides a branch",
    )
    UNITS_WITHOUT_RANK = about(Ranks)(
        "{who} ran out of input, or stopped, before the others, and a forward or backward of FSDP units takes every "
        "rank",
        "agree on the number of steps by all_reduce(MIN), or go on with a dummy input weighted by zero: join() knows "
        "no FSDP",
    )
    UNITS_ALONE = about(Ranks)(
        "{who} made a forward or backward through FSDP units that the others did not make, which takes every rank",
        "make it on every rank, in evaluation too, or gather the full state first and run another model with it",
    )
    OTHER_REDISTRIBUTION = about(Ranks)(
        "on {who} the DTensor has other placements than on the others, so parts are put together that do not belong "
        "together, which no backend would notice",
        "give a DTensor the same placements, and make the same operations on it, on every rank of its mesh",
    )
    DTENSOR_MEETS_CALL = about(Made)(
        "{who} came to {operation} where the others redistribute a DTensor: an operation that looks local and "
        "communicates (full_tensor(), a norm, printing), in a branch that only some ranks take",
        "make operations on DTensors on every rank of their mesh, and take the branch with what they return",
    )
    OTHER_STAGES_MESSAGE = about(Messages)(
        "{sent}, is received as {expected}: messages between two ranks meet in the order in which they are sent, and "
        "the ranks' schedules order them differently",
        "make the schedule of the same class, with as many stages and micro-batches, on every rank",
    )
    STAGES_DISAGREE = about(Nothing)(
        "the stages of the cycle send and receive in orders that do not fit together: their schedules differ, in "
        "class, order of actions, or number of micro-batches",
        "make the schedule of the same class, with as many stages and micro-batches, on every rank",
    )
    STAGES_STOPPED = about(Ranks)(
        "{who} made fewer steps of the schedule than the other stages, or steps of fewer micro-batches",
        "step the schedule as often on every rank, with as many micro-batches; agree on the number by all_reduce(MIN)",
    )
    CHECKPOINT_THREAD = about(Ranks)(
        "a thread that saves a checkpoint on {who} shares the group with calls of another thread, so which meet "
        "depends on chance",
        "give async_save a process_group of its own (dist.new_group), or wait for the save before the next call",
    )
    CHECKPOINT_ALONE = about(Ranks)(
        "saving and loading a distributed checkpoint takes every rank, and only {who} came to it",
        "call save and load on every rank: each writes its own part; for a file of one rank use torch.save, or "
        "no_dist=True",
    )

    # --- what a DDP wrapper does (mismatch.*, deadlock.missing_rank) --------------------------------------------------

    WRAPPED_ALONE = about(Ranks)(
        "constructing DistributedDataParallel takes every rank of its group, and {who} did something else",
        "construct the wrapper on every rank, at the same place in the order of calls",
    )
    MODELS_DIFFER = about(Parameters)(
        "what {who} wrapped differs from the others': in parameters, buffers, what requires a gradient or is "
        "ignored, or in the wrapper's options",
        "build the same model on every rank, with the same requires_grad and names to ignore, and wrap it with the "
        "same options",
    )
    WRAPPERS_IN_OTHER_ORDER = about(Ranks)(
        "{who} used the wrappers in another order than the others, so what one model reduces or broadcasts meets "
        "another's, or waits for it",
        "run forwards and backwards of several wrappers in one order on every rank; groups of their own do not help",
    )
    UNUSED_ON_SOME_RANKS = about(Ranks)(
        "{who} filled other buckets than the others: the loss left parameters out there, or only there used them",
        "pass find_unused_parameters=True on every rank, or let every rank's loss depend on all parameters, weighted "
        "by zero where need be",
    )
    BUCKET_LEFT_OUT = about(Parameters)(
        "{who} reduced the buckets before this one and went on without it: {its} loss does not depend on all of "
        "{parameters}",
        "pass find_unused_parameters=True on every rank, or let every rank's loss depend on them, weighted by zero "
        "where need be",
    )
    REDUCED_IN_OTHER_WAY = about(Ranks)(
        "the wrapper of {who} communicates in another order than the others': its options differ "
        "(find_unused_parameters, static_graph, bucket sizes), or the loss left parameters out",
        "construct the wrapper with the same options on every rank, with find_unused_parameters=True if a loss may "
        "leave parameters out",
    )
    HOOK_CALLS_DIFFER = about(RanksAt)(
        "{who}: the communication hook made another call than the others', or none, at {site}",
        "register the hook with the same options on every rank, and let it decide by what all know (the step, the "
        "bucket, what an all_reduce gave), not by values of one",
    )
    HOOK_ONE_OFF = about(Steps)(
        "the communication hook's call at {site} belongs to a later step on {ahead} than on {behind}: the hook left a "
        "call out on {ahead} or made one more on {behind}, or a backward was left out on {ahead}",
        "register the hook with the same options on every rank, and let it decide by what all know (the step, the "
        "bucket, what an all_reduce gave), not by values of one; let all ranks skip a backward together",
    )
    HOOK_CHAINS_CROSS = about(Fact)(
        "the communication hook's calls at {fact} are of different buckets: the calls that it chains with `then` are "
        "made in the order in which the calls before them complete, which differs between ranks",
        "wait() in the hook before its next call, or make one bucket of all (bucket_cap_mb)",
    )
    HOOK_MADE_NO_CALL = about(RanksAt)(
        "{who} went on without the call that the communication hook makes at {site}: the hook made none, or did "
        "not run (a backward left out, no_sync(), a loss that does not depend on these parameters), or there was a "
        "forward that the others did not make",
        "register the hook with the same options on every rank, and let it decide by what all know (the step, the "
        "bucket, what an all_reduce gave), not by values of one; make the same forwards and backwards on every rank",
    )
    HOOK_ON_SOME_RANKS = about(Argument)(
        "{who} reduced the bucket with another {field}, as a communication hook, or a model in another precision, does",
        "register the same communication hook, and convert the model to the same dtype, on every rank",
    )
    BUFFERS_DIFFER = about(Ranks)(
        "{who} synchronised buffers in another way than the others: the buffers differ, or a buffer hook is "
        "registered on some ranks only",
        "register the same buffers and the same buffer hook on every rank",
    )

    # --- join (mismatch.*, deadlock.missing_rank) ---------------------------------------------------------------------

    UNKNOWN_TO_JOIN = about(Made)(
        "{who} ran out of input, and join makes up for the calls of its joinables only: {operation} of the others "
        "is not known to it",
        "make the call after the join, make it part of a Joinable (its main_hook makes the same calls as a step, which "
        "begins with Join.notify_join_context), or leave the loop together with throw_on_early_termination=True",
    )
    MAIN_HOOK_DIFFERS = about(Made)(
        "{who} ran out of input, and the calls of its join are not those that the others make in a step: its "
        "main_hook leaves out {operation} or makes another call, a step did not call Join.notify_join_context, or the "
        "loop makes a call besides",
        "begin the step with Join.notify_join_context(self), and let main_hook make the same calls in the same order; "
        "what the loop calls besides goes after the join",
    )
    POST_HOOKS_DIFFER = about(CallAt)(
        "post_hook runs on every rank at the end of a join, and not every rank makes {operation} in it at {site}, or "
        "not with the same arguments: is_last_joiner differs between ranks",
        "let post_hook make the same calls on every rank, whoever joined last, with a root that an all_reduce(MAX) of "
        "the ranks that did has given",
    )
    OTHER_SHARE_IN_JOIN = about(Ranks)(
        "{who} ran out of input, and join makes up for one training forward, buffers before it, and one backward of "
        "the wrapper in each step, no more and no less",
        "evaluate on model.module, run one backward per forward, and no buffer hook after it; with a static graph, "
        "give every rank a batch and leave find_unused_parameters out",
    )
    NOT_IN_JOIN = about(Ranks)(
        "{who} ran out of input, and the join does not list the wrappers that the others used, or in another order",
        "give Join all that communicate in the loop, in the order of use, each with its whole forward and backward",
    )
    JOINED_ON_SOME_RANKS = about(Ranks)(
        "some ranks are inside join and {who} {is} not, or {has} left it",
        "enter the join on every rank, and leave it by no break, return or exception",
    )

    # --- values that decide (mismatch.value) --------------------------------------------------------------------------

    VALUES_DIFFER = about(Fact)(
        "the ranks go different ways by {fact}, which each has computed, read or drawn by itself",
        "share it: broadcast the value of one rank, or all_reduce a flag, before anything depends on it",
    )

    # --- replicas (divergence.*) --------------------------------------------------------------------------------------

    INNER_MODULE_TRAINED = about(Nothing)(
        "no synchronising forward went through the wrapper, so nothing averaged the gradients",
        "call the wrapper, not its inner module, for the loss",
    )
    NOT_IN_A_BUCKET = about(Fact)(
        "{fact} is in no bucket: it required no gradient when the model was wrapped, or was replaced since",
        "wrap the model again after unfreezing or replacing parameters",
    )
    STEP_WITHOUT_SYNCHRONISATION = about(Nothing)(
        "no synchronising forward preceded this optimizer step, so each rank applied gradients of its own",
        "synchronise in the last micro-batch of every window, the short one at the end included: no_sync() has to end "
        "before its forward, which decides whether the backward reduces",
    )
    BACKWARD_AFTER_REDUCTION = about(Nothing)(
        "a backward ran when this step's reduction was over, a second one over its graph or another's, and "
        "its gradients stayed each rank's own",
        "add the losses up and run one backward, or run each backward before the next forward",
    )
    PARAMETERS_IN_OTHER_ORDER = about(Ranks)(
        "the model of {who} has its parameters in another order; a wrapper pairs them by position, so values and "
        "gradients go to those of other names",
        "register the layers in one order on every rank: sort their names, and iterate over no set",
    )
    READ_BEFORE_WAIT = about(Fact)(
        "{fact} had not been waited for: until then its tensor holds the rank's own value on some ranks, and the "
        "result on others",
        "wait() for the work before the tensor is read",
    )
    BUCKET_NOT_REDUCED = about(Fact)(
        "{fact} was not reduced in this step, as some parameter in it got no gradient",
        "pass find_unused_parameters=True, or let every parameter take part in the loss",
    )
    STEP_SKIPPED = about(Fact)(
        "{fact}: a rank that decides this by a rule of its own lets its parameters and optimizer lag behind",
        "share the decision: all_reduce(MIN) a flag, and let all ranks step or skip together",
    )
    STARTED_APART = about(Nothing)(
        "the parameters differed before the first step already: wrapped with init_sync=False, or loaded or initialised "
        "after wrapping, not alike on all ranks",
        "leave init_sync=False out, or seed alike; load or initialise before wrapping, which sends rank 0's, or alike "
        "on every rank",
    )
    CHANGED_BETWEEN_STEPS = about(Nothing)(
        "the parameters differed before this step already: since the step before they were loaded, averaged or "
        "changed on some ranks only, or not alike",
        "change parameters on every rank alike, or broadcast them from the rank that does",
    )
    GRADIENTS_CHANGED = about(Nothing)(
        "the parameters were equal before this step, and the gradients that it applied were not: some ranks scaled, "
        "clipped or changed them alone, or a communication hook gave ranks different ones",
        "share what gradients are scaled or clipped by, by an all_reduce of it, and apply it on every rank",
    )
    OPTIMIZER_DIFFERS = about(Nothing)(
        "parameters and gradients were equal before this step, and the optimizer made unequal steps of them: its "
        "learning rate or its state (such as momentum) differs",
        "load the optimizer's state on every rank, which no wrapper sends; let a schedule follow a metric that all "
        "ranks have alike",
    )
    NOTHING_COMPARED = about(Nothing)(
        "replicas are known by a DistributedDataParallel around them, by an all_reduce of their gradients (each, or "
        "all of a module in one flat tensor) or of the parameters themselves, which hold what came of it, or as "
        "DTensors placed as Replicate; nothing of this came up on two ranks",
        "wrap the model, or leave the check out; whoever takes what there is says replicas-if-any",
    )
    CHANGED_BY_HAND = about(Nothing)(
        "no optimizer of torch's made the step in between: a step written by hand, or by another optimizer, was of "
        "unequal numbers, or parameters were changed on some ranks only",
        "step by what all ranks have alike: the averaged gradients, one learning rate, one state",
    )
    CHANGED_LAST = about(Nothing)(
        "the parameters were equal when they were compared last, and changed once more: by a last step, by a state "
        "that was loaded, or by hand, not alike on all ranks",
        "change parameters on every rank alike, or change a copy of the model where only one rank needs it",
    )
    REPLICATED_DTENSORS_DIFFER = about(Nothing)(
        "the mesh has this DTensor as replicated along the group, and its ranks have other values: a gradient of which "
        "each has a part was taken for a replicated one, or they began with other values",
        "place such a gradient as Partial(), or reduce it, before the optimizer steps; make the weights by "
        "distribute_tensor, which sends those of one rank, or from one seed",
    )
    APART_BY_HAND = about(Nothing)(
        "the program reduces the gradients itself, and the models started apart, or their steps were of unequal "
        "numbers: nothing else makes replicas equal",
        "broadcast the parameters of one rank before the first step, reduce every gradient, and step alike",
    )
    AVERAGED_BY_HAND = about(Nothing)(
        "the program averages the parameters itself, and the ranks made different ones of the same sum",
        "divide by the number of ranks on each of them, and write the average back everywhere",
    )
    GRADIENTS_DIFFER = about(Nothing)(
        "a synchronised backward leaves all ranks with the same gradients: some were changed since, or a hook on a "
        "parameter changed them",
        "share what gradients are scaled or clipped by, by an all_reduce of it, and apply it on every rank",
    )
    BUFFERS_IN_OTHER_ORDER = about(Ranks)(
        "the model of {who} has its buffers under other names or in another order; a wrapper pairs them by position, "
        "so values go to those of other names",
        "register buffers in one order on every rank: sort their names, and iterate over no set",
    )
    BUFFERS_IN_EVALUATION = about(Nothing)(
        "each rank updates its buffers in its own forward; only a forward through the wrapper makes them equal",
        "evaluate through the wrapper, or broadcast those of one rank or average them first",
    )
    BUFFER_HOOK_DIFFERS = about(Nothing)(
        "the buffer hook did not leave all ranks with the same values",
        "let the hook give every rank one result",
    )
    BUFFERS_NOT_SYNCHRONISED = about(Nothing)(
        "the buffers differed when training began, and nothing synchronises them",
        "leave broadcast_buffers=False out, or broadcast them by hand",
    )

    # --- what differs from plain training (divergence.*) --------------------------------------------------------------

    SCALED = about(Fact)(
        "every element of all that differs is {fact} times what plain training gives: a loss or a hook scales or "
        "divides once too often or not at all, or the sum is divided by another number of ranks",
        "the wrapper divides by the world size: multiply the loss by it where it is one loss over what all ranks "
        "gathered, and let a hook that sums divide",
    )
    JOINED_STEPPED = about(Ranks)(
        "{who} ran out of input, and torch's join makes up for the calls of a joinable such as a sharded optimizer, "
        "but brings no averaged gradients: a rank that has joined updates its shard with those of its own last batch",
        "use an optimizer that is whole on every rank inside a join, or give every rank as many batches",
    )
    JOINED_WITH_USED_MAP = about(Ranks)(
        "{who} ran out of input, and torch's join sends an old map of used parameters there: those that nobody "
        "uses get gradients of zero in place of none, and momentum or decay moves them",
        "leave the join out, and let every rank make every step, with a loss weighted by zero where it has no input",
    )
    JOINED_WITH_BUFFERS = about(Ranks)(
        "{who} ran out of input, and torch's join calls the buffer hook there as well, with buffers that stand still",
        "let the hook weigh a rank by zero once its loop is over",
    )
    JOINED_DIVISOR = about(Ranks)(
        "{who} ran out of input, and the average is over other ranks than in plain training: a communication hook, "
        "and every model of a join but the first, divide by the world size, whatever divide_by_initial_world_size says",
        "choose divide_by_initial_world_size as plain training weighs ranks, use no communication hook (or one that "
        "divides so itself), and give each model a join of its own",
    )
    OTHER_COUNT = about(Nothing)(
        "what the ranks put together is not what one process counts: a sampler repeats samples so that shares are "
        "even, or means over unequal numbers of samples are averaged",
        "gather what each sample gives, in the sampler's order, and cut off what comes after the last one; add up sums "
        "and counts, and divide at the end",
    )
    OTHER_THAN_PLAIN_TRAINING = about(Nothing)(
        "the ranks do not train on what one process would on all their batches: samples are seen twice or never, or "
        "means over unequal numbers of samples are averaged as if they were equal",
        "shuffle with the same seed on every rank before sharing out, cut off what a sampler repeats, and weigh each "
        "rank's loss by its samples",
    )
    REDUCED_BY_HAND = about(Nothing)(
        "what the ranks reduce by hand is not what one process computes: reductions meet by their order and size, so "
        "gradients of different parameters may be added, and nothing divides by the ranks or weighs their samples",
        "reduce in the order of the parameters, not in that in which gradients come, and divide by what plain training "
        "divides by",
    )
    OTHER_ON_SOME_RANKS = about(Ranks)(
        "what {who} received or computed is not what plain training gives, though no calls that met disagree",
        "look at what no wrapper makes equal: modules outside of it (broadcast them, or seed alike), the order of "
        "messages, the root of a broadcast, changes of one rank",
    )
    NO_NUMBER = about(Nothing)(
        "a loss or gradient that is no number came up on some rank, and averaging hands it to all",
        "leave such a batch out on all ranks alike, by an all_reduce(MAX) of isnan(loss); drop batches that are empty",
    )

    # --- what passes here (hazard.*) ----------------------------------------------------------------------------------

    GROUP_ORDER = about(Fact)(
        "ranks use groups {fact} in different orders: gloo lets that pass, NCCL can hang, as one group's call holds "
        "up the other's",
        "let every rank use its groups in one order, the same everywhere",
    )
    NEVER_WAITED_FOR = about(Nothing)(
        "nothing says that the data has moved when the rank goes on or ends; on a real backend it may not have",
        "keep the work and call wait() on it before the tensor is used and before the rank ends",
    )
    HOOK_DID_NOT_WAIT = about(Nothing)(
        "the future that a communication hook returned did not wait for it: a real backend may not be done when the "
        "gradients are taken from the bucket",
        "return work.get_future().then(...) from the hook, or wait() for the work in it",
    )
    CHANGED_IN_FLIGHT = about(Nothing)(
        "a real backend reads and writes the tensor any time until the wait, so either value may be sent or kept",
        "wait() for the work first, or work on a copy",
    )
    NAMES_MEET = about(Nothing)(
        "the ranks go through the same tensors in different orders, and each is reduced with another: a set, a state "
        "that was loaded, or a dictionary that was filled in another order",
        "sort the names, and go through them in that order on every rank; where each takes them in an order of its own "
        "on purpose, this is no mistake",
    )
    SHARED_IN_FLIGHT = about(Nothing)(
        "a real backend reads and writes the tensors of both any time until the waits, in either order",
        "wait() for the first before the second is made, or give each a tensor of its own",
    )
    LINES_MEET = about(Nothing)(
        "the ranks took different branches, and their calls agree all the same",
        "if they are not meant to meet, let every rank make the same calls in the same order",
    )
    PROCESS_SHARED = about(Nothing)(
        "ranks are threads of one process here, so each finds what another one left; elsewhere each has its own",
        'give each rank a process: isolation="process" (--isolation process), or the program as it is, ddpsim run '
        "FILE.py",
    )

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
    BARRIER_MISSED = about(Parameters)(
        "a rank that the message names did not come to the barrier in time",
        "look at what that rank did instead, and let every rank come to it",
    )
    BARRIER_FAILED = about(Parameters)(
        "{who} came to the barrier, and it failed on the rank that the message names: the error of that one says who "
        "was late",
        "see what is told of that rank first",
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

    # --- what cannot be repeated (nondeterminism) ---------------------------------------------------------------------

    RUNS_DIFFER = about(Ranks)(
        "{who} did something else under the same schedule, by what a run leaves behind for the next (a counter or "
        "cache of a module or class, a file), by the order of a set or of id(), or by a clock or generator that the "
        "operating system keeps",
        "make such state inside the program, sort before looping over a set, and seed every generator; then run it "
        "with check_determinism=True again",
    )

    # --- real processes, of which less can be told --------------------------------------------------------------------

    PROCESS_ABORTED = about(Fact)(
        "gloo ends a process that gets more bytes from another rank than its call expects",
        "`{fact}`, which tells what met what",
    )
    PROCESS_KILLED = about(Fact)(
        "somebody killed it: the system does, where memory runs out",
        "look into the system's log; take fewer ranks, or smaller batches",
    )
    PROCESS_CRASHED = about(Fact)(
        "native code crashed, or the program left with os._exit",
        "look at its last words above; `{fact}`, if calls of another size may have met",
    )
    PROCESSES_HANG = about(Fact)(
        "a rank waits for what no other one does, or does late; real processes cannot tell which is wrong",
        "`{fact}`, which simulates it and says why; if that passes, --alike here, which lets ranks start with the same "
        "random numbers; if a rank was only slow, raise --timeout",
    )

    # --- what does not end (stuck, budget) ----------------------------------------------------------------------------

    BLOCKED_OUTSIDE = about(Nothing)(
        "it waits in a lock, a socket or native code that only another rank or process can end",
        "use torch.distributed, or its store, to wait for other ranks; if this was only slow, raise "
        "Budget(stuck_seconds=...)",
    )
    BLOCKED_AT_LOCK = about(Nothing)(
        "it waits for a lock, or for what Python makes of locks (an event, a queue, an executor), that the simulation "
        "does not have: made before the run or in an import, by a name bound before the run (`from threading import "
        "Lock`), or of another process",
        "make it inside the program and by its full name (threading.Lock()); wait for other ranks by torch.distributed "
        "or its store; if this was only slow, raise Budget(stuck_seconds=...)",
    )
    OUT_OF_TIME = about(Nothing)(
        "the ranks had not come to an end, and may or may not have gone on to one",
        "raise Budget(seconds=...), or give the ranks less to do",
    )
    ASYNCIO_TURNS = about(Nothing)(
        "an event loop of asyncio turns there: its coroutines give way to each other without end, or wait for what the "
        "simulation does not see (a socket, a process), and no other rank runs meanwhile",
        "let the coroutines end, or wait by calls of torch.distributed, which let the other ranks run",
    )
    OUT_OF_STEPS = about(Nothing)(
        "the ranks communicate without end, or longer than the budget lets them",
        "raise Budget(steps=...), or give the ranks less to do",
    )
    POLLS_IN_VAIN = about(Nothing)(
        "what the rank polls for can only come from ranks that wait or have ended",
        "wait() for the work instead of polling it, or raise Budget(polls=...)",
    )
