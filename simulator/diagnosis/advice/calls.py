"""Causes: ranks with different loops, branches, arguments, groups or messages (deadlock.*, mismatch.*)."""

from ddpsim.simulator.diagnosis.advice import facts
from ddpsim.simulator.diagnosis.advice.facts import make_advice


class CallCauses:
    """Causes: ranks with different loops, branches, arguments, groups or messages (deadlock.*, mismatch.*)."""

    # --- loops and branches that differ between ranks (deadlock.missing_rank, mismatch.*) -----------------------------

    RAN_OUT_OF_INPUT = make_advice(facts.Ranks)(
        "{who} ran out of input, or stopped, before the others, and no `join()` answers the others' collectives",
        "wrap the loop in `with model.join():`; if a rank decides to stop, share that by all_reduce(MAX) of a flag",
    )
    DECIDED_ALONE = make_advice(facts.RanksAndCall)(
        "{who} made {operation} before the forward or backward that the other ranks are in: the rank made a decision "
        "from something that only it knows (its clock, its loss, its queue), or made it later than the others",
        "let one rank decide and broadcast the decision to stop, skip or save, or all_reduce(MAX) it",
    )
    LEFT_LOOP = make_advice(facts.RanksAndCall)(
        "{who} left the training loop earlier than the others, skipped part of a step, or made a call that the others "
        "did not make, and then called {operation}",
        "agree on the loop's length by all_reduce(MIN), or broadcast the decision; `with model.join():` is enough only "
        "if the loop makes no call of its own",
    )
    STAYED_IN_LOOP = make_advice(facts.RanksAndCall)(
        "{who} continued without the others' {operation}: only some ranks take that branch, or one loop is longer",
        "let one rank decide and broadcast it, or agree on the loop's length by all_reduce(MIN)",
    )
    FORWARD_ALONE = make_advice(facts.Ranks)(
        "a forward through the wrapper broadcasts buffers, in evaluation too; {who} ran one that the others did not",
        "evaluate on model.module or on all ranks; if others ran out of input, wrap the loop in `with model.join():`",
    )
    COLLECTIVE_IN_FORWARD = make_advice(facts.Ranks)(
        "the model's forward makes collectives, and {who} left one out or made one more: a skipped layer, eval() on "
        "some ranks only, or an empty batch",
        "run the same layers in the same mode on every rank, on a dummy input with a loss weight of zero if necessary",
    )
    SKIPPED_BACKWARD = make_advice(facts.Ranks)(
        "{who} ran more synchronising forwards than the others before this reduction: a backward was left out, or its "
        "loss did not reach the parameters, and gradients of different steps are averaged; or a forward needed no "
        "backward, which does no harm",
        "let all ranks skip together, by an all_reduce(MIN) of a flag; run an extra forward under torch.no_grad()",
    )
    EXTRA_FORWARD = make_advice(facts.Ranks)(
        "{who} began another forward while the others reduce gradients: a backward or the others' forward was left out",
        "let all ranks skip together, by an all_reduce(MIN) of a flag; run an extra forward through model.module",
    )
    BACKWARD_WITHOUT_BUCKET = make_advice(facts.Ranks)(
        "{who} finished this step without reducing this bucket: no forward ran there (no input, no tokens), {its} loss"
        " does not depend on these parameters, or {its} forward ran under no_sync()",
        "run the model in every step on every rank, on a dummy input if necessary, and let the loss depend on its "
        "output, multiplied by zero where there is nothing to learn; enter no_sync() on all ranks or on none",
    )
    ONE_CALL_MORE = make_advice(facts.RanksAndCall)(
        "{who} made {operation}, and the others did not: only some ranks take that branch, or a call in it "
        "communicates although it looks local (a save, the compute() of a metric)",
        "make the call on every rank, or on none",
    )
    RAN_OUT_OF_BATCHES = make_advice(facts.RanksCallAndFact)(
        "the others have no more batches in the loop at {fact}, and {who} made {operation} for one more",
        "give every rank as many batches (pad, or drop_last=True), or add up on each rank and reduce after the loop",
    )
    CALLS_ONE_OFF = make_advice(facts.MatchedCallLines)(
        "calls from different lines were matched in {operation}, {sides}; every later call is off by one: only some "
        "ranks take a branch, or a call in it communicates although it looks local (a save, the compute() of a metric)",
        "make the call at {site} on every rank, or on none",
    )
    RETURNED_EARLY = make_advice(facts.RanksAndCall)(
        "{who} returned without making {operation}",
        "let every rank make the same calls in the same order, and return or destroy the group only after the last one",
    )
    DID_NOT_COME = make_advice(facts.RanksAndCall)(
        "{who} did not reach {operation}: the rank ended before it, took another path, or is still busy",
        "look at what follows the last call of {who}, in its log and program: a shorter loop, a branch, an exception",
    )
    NO_RECORD = make_advice(facts.RanksAndCall)(
        "it is unknown whether {who} reached {operation}: no record says so",
        "add the complete record of {who}; if its process ended without one, that is why the others wait: see its log",
    )
    MESSAGE_NOT_MET = make_advice(facts.RanksAndCall)(
        "{who} did not make the matching {operation}, or the other side made one message too many",
        "look at what follows the last call of {who}; give every send one recv with the same peer and group",
    )
    CAME_AND_HUNG = make_advice(facts.RanksAndCall)(
        "{who} reached {operation}; all recorded arguments agree, and the call did not complete",
        "look below the calls (links, GPUs, a slow machine), and at what the records do not contain: a kernel of the "
        "program that never ends, different reductions or roots",
    )
    NOTHING_OPEN = make_advice(facts.Ranks)(
        "no call in the records is open, and there is no record of {who}",
        "add the missing records; if the processes ended without one, see their logs",
    )
    ENDS_UNKNOWN = make_advice(facts.Ranks)(
        "the calls of {who} agree, and no record says that any call completed",
        "if the job hung, it hung in one of the last calls, or outside them: see the logs and stacks of the ranks",
    )
    GROUP_DESTROYED = make_advice(facts.RanksCallAndFact)(
        "{who} destroyed the group at {fact} without making {operation}",
        "let the ranks agree on the number of calls, by an all_reduce(MAX), and destroy the group together",
    )
    OTHER_BRANCH = make_advice(facts.Ranks)(
        "{who} took another branch, left a loop earlier or later, or made one call more or fewer: different "
        "calls are matched, and either side may be wrong",
        "let every rank of the group make the same calls in the same order; share the value that decides a branch or "
        "ends a loop, and keep calls that communicate (a gather, a save, the compute() of a metric) out of branches "
        "that only some ranks take",
    )
    THREADS_SHARE_GROUP = make_advice(facts.OneFact)(
        "{fact}: nothing fixes the order of these calls, and calls of different threads were matched",
        "give the thread a group of its own (dist.new_group), or make these calls from one thread",
    )
    OTHER_FUNCTION = make_advice(facts.Ranks)(
        "{who} made a call from one function while the others made one from another function: some ranks took another "
        "branch, or tasks that share a group ran in the order in which they became ready",
        "share the value that decides a branch; queue the tasks in one order on every rank, or give each its own group",
    )
    CAUGHT = make_advice(facts.RanksCallAndFact)(
        "{who} {fact}, {operation} that the others made",
        "let the exception end the program, or let all ranks skip or repeat together: all_reduce(MAX) a flag of it",
    )
    LEFT_BY_EXCEPTION = make_advice(facts.RanksCallAndFact)(
        "{who} {fact}, without the backward of {operation}: gradients of different steps are averaged from then on, "
        "unless the rank tried the same batch again, which does no harm",
        "let the exception end the program, or let all ranks skip or repeat together: all_reduce(MAX) a flag of it",
    )
    LOST_IN_THREAD = make_advice(facts.RanksCallAndFact)(
        "{who} {fact}, which ended the thread's function and nothing else, without the {operation} that the others "
        "made",
        "call result() of each future, which raises the exception; leaving the executor's `with` does not",
    )
    BEGAN_ELSEWHERE = make_advice(facts.OneFact)(
        "the ranks have finished different rounds of the loop at {fact}",
        "let one rank read or compute where to begin, and broadcast it",
    )
    PATHS_PART = make_advice(facts.OneFact)(
        "the paths of the ranks part: {fact}",
        "share the value that decides: broadcast it from one rank, or all_reduce it; if it is data of each rank's own, "
        "gather it as one object, or all_reduce(MAX) its length and take part in all rounds with empty tensors",
    )
    BRANCH_ALONE = make_advice(facts.RanksAndFact)(
        "{who} took a branch that no other rank took: {fact}; from there on, the calls of the ranks differ",
        "let all ranks take the branch together, or let it make the same calls as the other path",
    )
    RECOMPUTED = make_advice(facts.RanksCallAndFact)(
        "{who} made {operation} at {fact} again, when torch.utils.checkpoint recomputed a block in backward, and the "
        "other side has made none again in this way: it recomputes no such block, or the sides made different calls "
        "before",
        "keep calls that communicate out of checkpointed blocks, or let all ranks of such a call recompute alike; make "
        "the same calls before on every rank",
    )
    REDUCED_ALONE = make_advice(facts.RanksAndFact)(
        "in the same backward {who} made the {fact}, and the others did not: under no_sync() the wrapper reduces "
        "nothing, and a loss reaches only some parameters",
        "let all ranks enter no_sync() in the same steps: count the steps in the same way on all ranks",
    )
    CIRCLE = make_advice(facts.NoFacts)(
        "not known: no call of the cycle is shown to be too early, or to be missing on another rank",
        "compare, from the last call that completed on each rank, which calls follow on the ranks of the cycle",
    )

    # --- values that decide (mismatch.value) --------------------------------------------------------------------------

    VALUES_DIFFER = make_advice(facts.OneFact)(
        "the ranks take different paths because of {fact}, which each rank has computed, read or drawn by itself",
        "share it: broadcast the value of one rank, or all_reduce a flag, before anything depends on it",
    )

    # --- arguments (mismatch.*) ---------------------------------------------------------------------------------------

    OTHER_ARGUMENT = make_advice(facts.RanksAndFact)(
        "{who} passed a different {fact} to the same call, as where entries of a stack or a batch are missing, or this "
        "line's calls come in another order there",
        "pass the same {fact} on every rank of the group, with zeros for what a rank lacks, and in one order",
    )
    OTHER_WITHOUT_LINES = make_advice(facts.RanksAndFact)(
        "{who} passed a different {fact} to the same call, or made another call: the records contain no source lines",
        "pass the same {fact} on every rank of the group; if these are two calls, make both on every rank in one order",
    )
    OTHER_TENSOR = make_advice(facts.OneFact)(
        "the ranks passed different tensors to the same call: {fact}; they go through their tensors in "
        "different orders (of a set, or of a dictionary that was filled otherwise), or do not have the same ones",
        "let every rank have the same tensors, zeros for one that it lacks, and go through them in one order, such as "
        "that of their sorted names",
    )
    OTHER_DTYPE = make_advice(facts.RanksAndFact)(
        "{who} passed a different dtype to the same call, as with a tensor made from integers, or another precision",
        "pass the same dtype on every rank of the group, as by torch.tensor(..., dtype=torch.float32)",
    )
    OTHER_REDUCTION = make_advice(facts.RanksAndFact)(
        "{who} passed a different reduction to the same call; no backend compares them, and either may be used",
        "pass the same reduction on every rank of the group",
    )
    OTHER_LAYOUT = make_advice(facts.RanksAndFact)(
        "{who} passed as many elements in another shape: backends combine unrelated elements without an error",
        "use one shape for the tensor on every rank of the group",
    )
    OTHER_SHAPE_GATHERED = make_advice(facts.RanksAndFact)(
        "{who} passed a different shape to the same call, as happens with a last batch or a filter, or if it left "
        "out a call before",
        "pass the same shape on every rank of the group: gather the sizes first and pad, or use all_gather_object; if "
        "a call was left out, make it on every rank",
    )
    OTHER_ROOT = make_advice(facts.RanksAndFact)(
        "{who} passed a different root to the same call",
        "pass the same root on every rank: src or dst is a global rank, group_src or group_dst a rank within the group",
    )
    OTHER_DESTINATION = make_advice(facts.RanksAndFact)(
        "{who} passed a different root to the same call, and only one rank can receive its result",
        "pass the same root on every rank of the group, or use all_reduce or all_gather if every rank needs the result",
    )
    OTHER_SPLITS = make_advice(facts.Ranks)(
        "the splits of {who} do not match what the other ranks send or expect",
        "make input split j of rank i equal to output split i of rank j: exchange the sizes first; if the sizes should "
        "be alike, look where the ranks get them (a shuffle by each rank's own seed, for example)",
    )
    PAIRED_BY_ORDER = make_advice(facts.NoFacts)(
        "backends pair calls by order and size, not by meaning: these calls move each other's data without an error",
        "let every rank of the group make the same calls in the same order",
    )

    # --- groups, the store, send and receive (deadlock.*, mismatch.*) -------------------------------------------------

    OTHER_MEMBERS = make_advice(facts.Ranks)(
        "{who} gave other members for the same group, or {has} created more or fewer groups before; groups are matched"
        " by the number of groups created so far",
        "let every rank create the same groups, with the same members, in the same order",
    )
    GROUP_NOT_CREATED = make_advice(facts.Ranks)(
        "creating a group needs all its members at the same time, and {who} did not take part",
        "create all groups on every rank, in one order, before anything else communicates",
    )
    GROUP_NAMED_APART = make_advice(facts.RanksAndFact)(
        "{who} create a group of the same ranks under different names, {fact}: torch makes the name from the number "
        "of groups that a rank has created before, and that number differs",
        "let all members create equally many groups before this one; without use_local_synchronization, let every "
        "rank create every group, in one order",
    )
    DEFAULT_GROUPS_APART = make_advice(facts.Ranks)(
        "{who} use different stores for the default group: another file, prefix, address or port on each, so they "
        "never meet there",
        "give every rank one init_method (a file or address without the rank's number), port, or store and prefix",
    )
    OTHER_GROUP_AT_LINE = make_advice(facts.FactAndSite)(
        "the same call of {site} is on different groups: {fact}; ranks pass another group there, leave a call of "
        "the line out, or make its calls in another order; either side may be wrong",
        "pass the same group at {site} on all ranks that have to meet there (for a mesh, the same dimension)",
    )
    NOT_IN_GROUP = make_advice(facts.RanksCallAndFact)(
        "{who} came to {operation} at {fact} with a group in which {who} {is} not: torch makes no call then, and only "
        "warns",
        "check which group {who} passed at {fact}",
    )
    GROUPS_IN_OTHER_ORDER = make_advice(facts.OneFact)(
        "the ranks call groups {fact} in different orders, or one of them leaves a call out or passes the wrong group",
        "let every rank make the calls of its groups in one global order, and leave none out",
    )
    LEFT_BEHIND = make_advice(facts.Ranks)(
        "{who} made the call, did not wait for it, and ended before the ranks had connected",
        "wait for the work before the rank ends",
    )
    STREAMS_CROSS = make_advice(facts.OneFact)(
        "this backend may run the calls of a rank one after another, and {fact}",
        "issue matching calls in one order on every rank; use batch_isend_irecv for messages in both directions",
    )
    GROUPS_IN_A_RING = make_advice(facts.OneFact)(
        "the ranks begin with different groups of {fact}, and each waits for a rank that began with another group",
        "let all ranks use their groups in one global order, for example the order in which they were created",
    )
    KEY_NEVER_SET = make_advice(facts.NoFacts)(
        "no rank that still runs will set the key",
        "set the key on another rank before it is waited for",
    )
    KEYS_NOT_IN_TIME = make_advice(facts.RanksAndFact)(
        "{who} waited for store keys; no rank had set {fact} in time",
        "look at the rank that should set it: it may have taken another path; increase the timeout if it is only slow",
    )
    KEYS_IN_A_CIRCLE = make_advice(facts.NoFacts)(
        "each rank of the cycle waits for a store key that another rank may set only after its own wait",
        "let every rank set its keys before it waits for those of others",
    )
    SENDS_FIRST = make_advice(facts.NoFacts)(
        "every rank of the cycle sends before it receives, or instead, and a send waits for its recv",
        "order the calls by the parity of the rank, or pass both to batch_isend_irecv",
    )
    RECEIVES_FIRST = make_advice(facts.NoFacts)(
        "every rank of the cycle receives before it sends, or instead",
        "let one rank send first, or pass both calls to batch_isend_irecv",
    )
    PEERS_DIFFER = make_advice(facts.OneFact)(
        "each rank of the cycle has begun both a send and a recv, and their peers do not name each other: {fact}",
        "let each rank receive from the rank that sends to it: `src=rank - 1` goes with `dst=rank + 1`",
    )
    LOOPS_OF_MESSAGES_DIFFER = make_advice(facts.PatternBreak)(
        "{who} reached {operation} at {site} {fact}, and {usual}: one of two loops is longer than the other (another "
        "number of micro-batches, for example), or one of them takes a branch",
        "run the loops of both sides equally often: take the number from one place, or send it first",
    )
    LEFT_OUT_OR_LOOPS_DIFFER = make_advice(facts.PatternBreak)(
        "{who} reached {operation} at {site} {fact}, and {usual}, where {who} never came: it left that call out, or "
        "one of two loops of messages is longer than the other",
        "let {who} make that call, too, whatever branch it takes; or run the loops of both sides equally often",
    )
    BOTH_SEND_IN_LOOPS = make_advice(facts.PatternBreak)(
        "{who} reached {operation} at {site} {fact}, and {usual}; a send waits for its recv: either both send before "
        "they receive, or one of two loops is longer than the other, or one of them takes a branch",
        "if each makes as many messages as the other expects, use isend or batch_isend_irecv; else run the loops of "
        "both sides equally often",
    )
    NOTHING_SENT = make_advice(facts.Ranks)(
        "none of {who} sent the message that would have been received, and all have returned",
        "receive as many messages as are sent",
    )
    UNPAIRED_MESSAGE = make_advice(facts.RanksAndCall)(
        "{who} returned without the matching {operation}, or the other side made one message too many",
        "give every send one recv with the same peer, group and tag",
    )
    ODD_PEER = make_advice(facts.PatternBreak)(
        "{who} made {operation} with {fact} at {site}; all other calls of that line suggest {usual}. Both "
        "sides of a message have to name each other",
        "check how {site} computes the peer on {who}; the other waits may only be a consequence",
    )
    ODD_PARTNER = make_advice(facts.PatternBreak)(
        "{who} made {operation} at {site} with {fact}. The two exchanged no other message, and {fact} has returned; "
        "{usual} waits for {who} with the same tag",
        "check how {site} computes the peer on {who}: {usual} may be the right one",
    )
    ODD_TAG = make_advice(facts.PatternBreak)(
        "{who} made {operation} with {fact} at {site}; all other calls of that line suggest {usual}. Both "
        "sides of a message need the same tag",
        "check how {site} computes the tag on {who}; the other waits may only be a consequence",
    )
    ODD_FOLLOWER = make_advice(facts.PatternBreak)(
        "{who} made {operation} at {site} with {fact}, a sequence seen nowhere else: otherwise {usual} follows. This "
        "message is wrong, or one before it was left out or made twice",
        "check how {site} computes this on {who}; the other waits may only be a consequence",
    )
    ODD_ORDER = make_advice(facts.PatternBreak)(
        "{who} made {operation} at {site} after the one at {fact}, where {usual} follows everywhere else: the rank "
        "left a message out, made one twice, or changed the order",
        "let {who} make the messages of these lines as the other ranks do; the other waits may only be a consequence",
    )
    ODD_COUNT = make_advice(facts.PatternBreak)(
        "{who} made {fact} messages, the last of them {operation} at {site}; every other rank that ran the same lines "
        "and returned made {usual}",
        "let {who} make as many messages in these lines as the others; the other waits may only be a consequence",
    )
    ODD_COUNT_AT_LINE = make_advice(facts.PatternBreak)(
        "{who} reached {site} {fact} times, and its {operation} there has no partner; every other rank that reached "
        "the line did so {usual} times, and has returned",
        "let {who} reach that line as often as the others",
    )
    TAKEN_BY_ANY_SOURCE = make_advice(facts.RanksCallAndFact)(
        "a receive of {who} from any source, at {fact}, took the message for {operation}",
        "name the source in every receive, or give the messages that are received from any source a tag of their own",
    )
    MESSAGES_MISS_EACH_OTHER = make_advice(facts.OneFact)(
        "{fact}, so these are not two sides of one message: the tags and groups should be equal, or the two ranks make "
        "their messages in different orders (a send waits for its receive)",
        "give both sides of a message the same tag and group; receive in the order of the sends, or send by isend",
    )
    OTHER_MESSAGE = make_advice(facts.OneFact)(
        "messages are matched in the order of the sends, and this one does not fit the tensor that receives it",
        "receive in the order of the sends, with the same {fact}; use tags, or send the size first",
    )
    TAGS_IGNORED = make_advice(facts.NoFacts)(
        "this backend ignores tags: messages between two ranks are matched in the order in which they are issued",
        "receive in the order of the sends, or use a separate group for messages of another kind",
    )
