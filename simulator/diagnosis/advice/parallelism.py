"""Causes: FSDP2, pipelines, DTensors, checkpoints, optimizers (mismatch.*, deadlock.*)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Made, Messages, Nothing, Parameters, Ranks, about


class Parallelism:
    """FSDP2, pipelines, DTensors, checkpoints, optimizers (mismatch.*, deadlock.*)."""

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
    MICRO_BATCHES_DIFFER = about(Nothing)(
        "the two stages mean the same micro-batch, and have it in other sizes: they cut the batch into other numbers "
        "of micro-batches, or took another batch than the first, from which shapes are known",
        "make the schedule with as many micro-batches on every rank, and give it batches of one size (drop_last=True)",
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
    OPTIMIZER_MEETS_CALL = about(Made)(
        "{who} came to {operation} where the others step an optimizer that sends its updates between ranks: a step "
        "that only some ranks make, or a loop that ends earlier",
        "step the optimizer on every rank or on none: share what decides by an all_reduce(MIN) of a flag",
    )
    STATE_ALONE = about(Ranks)(
        "collecting the state of a sharded optimizer takes every rank, and only {who} came to it",
        "call consolidate_state_dict on every rank, and state_dict and the save on the one that it collects for",
    )
    OPTIMIZERS_DIFFER = about(Ranks)(
        "{who} {has} given the optimizer other parameters, or in another order, and it deals them out to the ranks by "
        "their sizes and order",
        "make the optimizer with the same parameters in the same order on every rank",
    )
    FEWER_OPTIMIZER_STEPS = about(Ranks)(
        "{who} made fewer steps of the optimizer than the others, or left out collecting its state, and each takes "
        "every rank: it sends what ranks have updated to the others",
        "step the optimizer as often on every rank: share what decides by an all_reduce(MIN) of a flag",
    )
    OPTIMIZER_ALONE = about(Ranks)(
        "{who} stepped the optimizer, or collected its state, alone, and each takes every rank",
        "step the optimizer, and call consolidate_state_dict, on every rank",
    )
    NORM_MEETS_CALL = about(Made)(
        "{who} came to {operation} where the others sum the norm of gradients that lie in shards: clipping takes every "
        "rank",
        "clip on every rank or on none: share what decides by an all_reduce(MAX) of a flag",
    )
    NORM_OF_OTHERS = about(Ranks)(
        "{who} {has} gradients of other parameters, fewer or more, and the norm is taken of one number for each",
        "give clip_grad_norm_ the same parameters on every rank, and let the loss depend on all of them",
    )
    NORM_WITHOUT_RANK = about(Ranks)(
        "{who} did not clip, and the norm of gradients that lie in shards takes every rank",
        "clip on every rank or on none: share what decides by an all_reduce(MAX) of a flag",
    )
    NORM_ALONE = about(Ranks)(
        "{who} alone clipped, and the norm of gradients that lie in shards takes every rank",
        "clip on every rank or on none: share what decides by an all_reduce(MAX) of a flag",
    )
