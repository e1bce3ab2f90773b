"""Causes of findings about DDP, `join()`, FSDP2, pipelines, DTensors, checkpoints and optimizers."""

from ddpsim.simulator.diagnosis.advice import facts
from ddpsim.simulator.diagnosis.advice.facts import make_advice


class ParallelismCauses:
    """Causes of findings about DDP, `join()`, FSDP2, pipelines, DTensors, checkpoints and optimizers."""

    # --- what a DDP wrapper does (mismatch.*, deadlock.missing_rank) --------------------------------------------------

    WRAPPED_ALONE = make_advice(facts.Ranks)(
        "constructing DistributedDataParallel needs every rank of its group, and {who} did something else: {who} left "
        "the wrapper out, or made a call before it that the others left out",
        "construct the wrapper on every rank, and let every rank make the same calls before it",
    )
    MODELS_DIFFER = make_advice(facts.RanksAndParameters)(
        "the model of {who} differs from the others' in parameters, buffers, requires_grad, ignored names or options",
        "build the same model on every rank, with the same requires_grad, ignored names and DDP options",
    )
    WRAPPERS_MIXED = make_advice(facts.Ranks)(
        "{who} used the wrappers in another order than the others, or left out a forward or backward of one of them, "
        "or made one more: calls of two models are matched, or wait for each other",
        "run forwards and backwards of several wrappers in one order and equally often on every rank, and share what "
        "decides on one (all_reduce or broadcast it); separate groups do not help",
    )
    UNUSED_ON_SOME_RANKS = make_advice(facts.Ranks)(
        "{who} filled other buckets than the others: the loss left parameters out only there, or only elsewhere",
        "pass find_unused_parameters=True on every rank, or let every loss use all parameters, some with weight zero",
    )
    BUCKET_LEFT_OUT = make_advice(facts.RanksAndParameters)(
        "{who} reduced the buckets before this one and continued without it: {its} loss does not depend on all of "
        "{parameters}",
        "pass find_unused_parameters=True on every rank, or let every loss use them, if only with weight zero",
    )
    REDUCED_IN_OTHER_WAY = make_advice(facts.Ranks)(
        "the wrapper of {who} communicates in another order than the others': its options differ "
        "(find_unused_parameters, static_graph, bucket sizes), or the loss left parameters out",
        "construct the wrapper with the same options on every rank, find_unused_parameters=True if a loss skips some",
    )
    HOOK_CALLS_DIFFER = make_advice(facts.RanksAndFact)(
        "{who}: the communication hook made another call than on the other ranks, or none, at {fact}",
        "register the hook with the same options on every rank, and let it decide by values that all ranks share",
    )
    HOOK_ONE_OFF = make_advice(facts.StepsOfLine)(
        "the communication hook's call at {site} belongs to a later step on {ahead} than on {behind}: the hook left a "
        "call out on {ahead} or made one more on {behind}, or a backward was left out on {ahead}",
        "register the hook with the same options on every rank, and let it decide by values that all ranks share; let "
        "all ranks skip a backward together",
    )
    HOOK_CHAINS_CROSS = make_advice(facts.OneFact)(
        "the communication hook's calls at {fact} belong to different buckets: calls chained with `then` are made in "
        "the order in which the previous calls complete, and that order differs between ranks",
        "wait() in the hook before its next call, or use one bucket (bucket_cap_mb)",
    )
    HOOK_MADE_NO_CALL = make_advice(facts.RanksAndFact)(
        "{who} continued without the communication hook's call at {fact}: the hook made none, or did not run (no "
        "backward, no_sync(), a loss without these parameters), or a forward ran that the other ranks did not run",
        "register the hook with the same options on every rank, and let it decide by values that all ranks share; run "
        "the same forwards and backwards on every rank",
    )
    HOOK_ON_SOME_RANKS = make_advice(facts.RanksAndFact)(
        "{who} reduced the bucket with a different {fact}, as by a communication hook, or a model in another precision",
        "register the same communication hook, and convert the model to the same dtype, on every rank",
    )
    BUFFERS_DIFFER = make_advice(facts.Ranks)(
        "{who} synchronised other buffers than the others, or a buffer hook is registered on some ranks only",
        "register the same buffers and the same buffer hook on every rank",
    )

    # --- join (mismatch.*, deadlock.missing_rank) ---------------------------------------------------------------------

    UNKNOWN_TO_JOIN = make_advice(facts.RanksAndCall)(
        "{who} ran out of input, and join repeats only the calls of its joinables, not the others' {operation}",
        "make the call after the join, make it part of a Joinable (its main_hook makes the same calls as a step, which "
        "begins with Join.notify_join_context), or leave the loop together with throw_on_early_termination=True",
    )
    MAIN_HOOK_DIFFERS = make_advice(facts.RanksAndCall)(
        "{who} ran out of input, and its join makes other calls than a step of the others: its main_hook leaves out or "
        "changes {operation}, a step did not call Join.notify_join_context, or the loop makes an additional call",
        "begin the step with Join.notify_join_context(self), and let main_hook make the same calls in the same order; "
        "move additional calls of the loop after the join",
    )
    POST_HOOKS_DIFFER = make_advice(facts.OneFact)(
        "post_hook runs on every rank at the end of a join, and not every rank makes {fact}, or not with the same "
        "arguments: is_last_joiner differs between ranks",
        "let post_hook make the same calls on every rank, regardless of is_last_joiner; agree on the root by an "
        "all_reduce(MAX) over the ranks that joined last",
    )
    OTHER_SHARE_IN_JOIN = make_advice(facts.Ranks)(
        "{who} ran out of input, and join repeats one training forward with its buffers and one backward for each step",
        "evaluate on model.module, run one backward per forward, and no buffer hook after it; with a static graph, "
        "give every rank a batch and do not use find_unused_parameters",
    )
    NOT_IN_JOIN = make_advice(facts.Ranks)(
        "{who} ran out of input, and the join lists other wrappers than the others used, or in another order",
        "give Join all wrappers of the loop, in the order of use, each with its whole forward and backward",
    )
    JOINED_ON_SOME_RANKS = make_advice(facts.Ranks)(
        "some ranks are inside join and {who} {is} not, or {has} left it",
        "enter the join on every rank, and do not leave it by break, return or an exception",
    )

    # --- FSDP2, pipelines, DTensors, checkpoints and optimizers -------------------------------------------------------

    UNUSED_IN_UNIT = make_advice(facts.RanksAndParameters)(
        "{who} {has} no gradient for {parameters} in this step; a unit reduces the existing gradients as one tensor",
        "let the loss depend on all parameters of a unit on every rank, multiplied by zero where they are not "
        "needed; or use set_reduce_scatter_unused_params(True), in a torch that has it",
    )
    UNIT_LEFT_OUT = make_advice(facts.Ranks)(
        "{who} reached another unit, or another pass through it, than the others: a layer, a forward or a backward was"
        " left out, or was run once more; parameters of one unit are combined with those of another",
        "run every rank through the same units in the same order, on a dummy input with a loss weight of zero if "
        "necessary; let all ranks skip a step together, by an all_reduce(MIN) of a flag",
    )
    UPDATES_DIFFER = make_advice(facts.Ranks)(
        "on {who} the optimizer has updated this unit more or fewer times than on the others, so one parameter consists"
        " of shards from different steps: an optimizer.step() or a micro-batch was left out or repeated",
        "step the optimizer on every rank or on none, after as many micro-batches: let an all_reduce(MIN) decide",
    )
    UNITS_MEET_CALL = make_advice(facts.RanksAndCall)(
        "{who} made {operation} while the others were in a forward or backward of FSDP units, which needs every rank: "
        "only some ranks ran a step or an evaluation, or a loop ended earlier",
        "run every forward and backward of a sharded model on all ranks, in evaluation too; agree on the length of a "
        "loop by all_reduce(MIN), and share the value that decides a branch",
    )
    UNITS_WITHOUT_RANK = make_advice(facts.Ranks)(
        "{who} ran out of input, or stopped, before the others; a forward or backward of FSDP units needs all ranks",
        "agree on the number of steps by all_reduce(MIN), or use a dummy input with a loss weight of zero, not join()",
    )
    UNITS_ALONE = make_advice(facts.Ranks)(
        "{who} ran a forward or backward through FSDP units that the others did not run; it needs every rank",
        "run it on every rank, in evaluation too, or gather the full state first and run another model with it",
    )
    OTHER_REDISTRIBUTION = make_advice(facts.Ranks)(
        "on {who} the DTensor has other placements than on the others: unrelated parts are combined without an error",
        "give a DTensor the same placements, and make the same operations on it, on every rank of its mesh",
    )
    PARTS_OF_OTHER_SHAPES = make_advice(facts.NoFacts)(
        "the ranks gather parts of unlike shapes: they are parts of different DTensors, or `DTensor.from_local` "
        "without `shape` took those of all ranks for as large as the rank's own",
        "give `from_local` the global `shape` and `stride`; if a call was left out, make it on every rank",
    )
    DTENSOR_MEETS_CALL = make_advice(facts.RanksAndCall)(
        "{who} made {operation} while the others redistribute a DTensor: an operation that looks local communicates "
        "(full_tensor(), a norm, printing), in a branch that only some ranks take",
        "run operations on DTensors on every rank of their mesh, and branch on their result afterwards",
    )
    OTHER_STAGES_MESSAGE = make_advice(facts.OneFact)(
        "{fact}: messages between two ranks are matched in the order of the sends, and the ranks' schedules differ",
        "create the schedule from the same class, with the same number of stages and micro-batches, on every rank",
    )
    MICRO_BATCHES_DIFFER = make_advice(facts.NoFacts)(
        "the two stages process the same micro-batch with different sizes: they split the batch into different numbers"
        " of micro-batches, or into parts of unlike size, or received a batch of another size than the first one; the "
        "first micro-batch fixes the shapes",
        "create the schedule with as many micro-batches on every rank, a number that divides the batch; give it batches"
        " of one size (drop_last=True)",
    )
    STAGES_DISAGREE = make_advice(facts.NoFacts)(
        "the stages of the cycle send and receive in orders that do not fit together: their schedules differ in class,"
        " order of actions, or number of micro-batches",
        "create the schedule from the same class, with the same number of stages and micro-batches, on every rank",
    )
    STAGES_STOPPED = make_advice(facts.Ranks)(
        "{who} ran fewer steps of the schedule than the other stages, or steps with fewer micro-batches",
        "step the schedule equally often on every rank, with as many micro-batches; agree on them by all_reduce(MIN)",
    )
    CHECKPOINT_THREAD = make_advice(facts.Ranks)(
        "a thread that saves a checkpoint on {who} shares its group with another thread: chance decides which "
        "calls are matched",
        "give async_save a process_group of its own (dist.new_group), or wait for the save before the next call",
    )
    CHECKPOINT_ALONE = make_advice(facts.Ranks)(
        "saving and loading a distributed checkpoint needs every rank, and only {who} did so",
        "call save and load on every rank: each writes a part; for a file of one rank, use torch.save or no_dist=True",
    )
    CHECKPOINT_MEETS_CALL = make_advice(facts.RanksAndCall)(
        "{who} made {operation} while the others save or load a distributed checkpoint: {who} did not, or the "
        "state_dict() of an object that {who} saved or loaded made it there, and the others' did not",
        "call save and load on every rank, with the same keys; for a file of one rank, use torch.save or no_dist=True",
    )
    OPTIMIZER_MEETS_CALL = make_advice(facts.RanksAndCall)(
        "{who} made {operation} while the others step an optimizer that sends its updates between ranks: the ranks "
        "ran unequal steps, or the optimizer averages in some steps and counts them differently on some ranks",
        "step the optimizer on every rank or on none, by an all_reduce(MIN) of a flag; load its state on every rank",
    )
    STATE_ALONE = make_advice(facts.Ranks)(
        "collecting the state of a sharded optimizer needs every rank, and only {who} did so",
        "call consolidate_state_dict on every rank; call state_dict and save on the rank that receives the state",
    )
    OPTIMIZERS_DIFFER = make_advice(facts.Ranks)(
        "{who} {has} given the optimizer other parameters, or the same in another order; the optimizer distributes them"
        " over the ranks by size and order",
        "create the optimizer with the same parameters in the same order on every rank",
    )
    FEWER_OPTIMIZER_STEPS = make_advice(facts.Ranks)(
        "{who} ran fewer optimizer steps than the others, or did not collect its state; both need every rank, because "
        "each rank sends its updates to the others",
        "step the optimizer equally often on every rank: share the decision by an all_reduce(MIN) of a flag",
    )
    OPTIMIZER_ALONE = make_advice(facts.Ranks)(
        "{who} alone stepped the optimizer, or collected its state; both need every rank",
        "step the optimizer, and call consolidate_state_dict, on every rank",
    )
    NORM_MEETS_CALL = make_advice(facts.RanksAndCall)(
        "{who} made {operation} while the others sum the norm of sharded gradients: clipping needs every rank",
        "clip on every rank or on none: share the decision by an all_reduce(MAX) of a flag",
    )
    NORM_OF_OTHERS = make_advice(facts.Ranks)(
        "{who} {has} gradients for fewer, more or other parameters, and the norm is computed from one number for each",
        "give clip_grad_norm_ the same parameters on every rank, and let the loss depend on all of them",
    )
    NORM_WITHOUT_RANK = make_advice(facts.Ranks)(
        "{who} did not clip, and the norm of sharded gradients needs every rank",
        "clip on every rank or on none: share the decision by an all_reduce(MAX) of a flag",
    )
    NORM_ALONE = make_advice(facts.Ranks)(
        "{who} alone clipped, and the norm of sharded gradients needs every rank",
        "clip on every rank or on none: share the decision by an all_reduce(MAX) of a flag",
    )
