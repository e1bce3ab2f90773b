"""Causes and advice for FSDP2, pipelines, DTensors, checkpoints and optimizers (mismatch.*, deadlock.*)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Made, Messages, Nothing, Parameters, Ranks, about


class Parallelism:
    """Causes and advice for FSDP2, pipelines, DTensors, checkpoints and optimizers (mismatch.*, deadlock.*)."""

    UNUSED_IN_UNIT = about(Parameters)(
        "{who} {has} no gradient for {parameters} in this step, and a unit reduces only the gradients that there "
        "are, as one tensor",
        "let the loss depend on all parameters of a unit on every rank, multiplied by zero where they are not "
        "needed; or use set_reduce_scatter_unused_params(True), in a torch that has it",
    )
    UNIT_LEFT_OUT = about(Ranks)(
        "{who} reached another unit, or another pass through it, than the others: a layer, a forward or a backward was"
        " left out, or was run once more; parameters of one unit are combined with those of another",
        "run every rank through the same units in the same order, on a dummy input with a loss weight of zero if "
        "necessary; let all ranks skip a step together, by an all_reduce(MIN) of a flag",
    )
    UPDATES_DIFFER = about(Ranks)(
        "on {who} the optimizer has updated this unit more or fewer times than on the others, so one parameter "
        "consists of shards from different steps: an optimizer.step() was left out or repeated, or a step has fewer or"
        " more micro-batches",
        "step the optimizer on every rank or on none, after the same number of micro-batches: share the decision by an"
        " all_reduce(MIN) of a flag",
    )
    UNITS_MEET_CALL = about(Made)(
        "{who} made {operation} while the others were in a forward or backward of FSDP units, which needs every rank: "
        "only some ranks ran a step or an evaluation, or a loop ended earlier",
        "run every forward and backward of a sharded model on all ranks, in evaluation too; agree on the length of a "
        "loop by all_reduce(MIN), and share the value that decides a branch",
    )
    UNITS_WITHOUT_RANK = about(Ranks)(
        "{who} ran out of input, or stopped, before the others, and a forward or backward of FSDP units needs every "
        "rank",
        "agree on the number of steps by all_reduce(MIN), or continue with a dummy input and a loss weight of zero: "
        "join() does not support FSDP",
    )
    UNITS_ALONE = about(Ranks)(
        "{who} ran a forward or backward through FSDP units that the others did not run; it needs every rank",
        "run it on every rank, in evaluation too, or gather the full state first and run another model with it",
    )
    OTHER_REDISTRIBUTION = about(Ranks)(
        "on {who} the DTensor has other placements than on the other ranks, so unrelated parts are combined; no "
        "backend would notice",
        "give a DTensor the same placements, and make the same operations on it, on every rank of its mesh",
    )
    DTENSOR_MEETS_CALL = about(Made)(
        "{who} made {operation} while the others redistribute a DTensor: an operation that looks local communicates "
        "(full_tensor(), a norm, printing), in a branch that only some ranks take",
        "run operations on DTensors on every rank of their mesh, and branch on their result afterwards",
    )
    OTHER_STAGES_MESSAGE = about(Messages)(
        "{sent}, is received as {expected}: messages between two ranks are matched in the order in which they are "
        "sent, and the schedules of the ranks order them differently",
        "create the schedule from the same class, with the same number of stages and micro-batches, on every rank",
    )
    MICRO_BATCHES_DIFFER = about(Nothing)(
        "the two stages process the same micro-batch with different sizes: they split the batch into different numbers"
        " of micro-batches, or received a batch of another size than the first one, which fixes the shapes",
        "create the schedule with the same number of micro-batches on every rank, and give it batches of one size "
        "(drop_last=True)",
    )
    STAGES_DISAGREE = about(Nothing)(
        "the stages of the cycle send and receive in orders that do not fit together: their schedules differ in class,"
        " order of actions, or number of micro-batches",
        "create the schedule from the same class, with the same number of stages and micro-batches, on every rank",
    )
    STAGES_STOPPED = about(Ranks)(
        "{who} ran fewer steps of the schedule than the other stages, or steps with fewer micro-batches",
        "step the schedule equally often on every rank, with the same number of micro-batches; agree on the number by "
        "all_reduce(MIN)",
    )
    CHECKPOINT_THREAD = about(Ranks)(
        "a thread that saves a checkpoint on {who} shares the group with calls of another thread, so chance decides "
        "which calls meet",
        "give async_save a process_group of its own (dist.new_group), or wait for the save before the next call",
    )
    CHECKPOINT_ALONE = about(Ranks)(
        "saving and loading a distributed checkpoint needs every rank, and only {who} did so",
        "call save and load on every rank: each writes its own part; for a file of one rank use torch.save, or "
        "no_dist=True",
    )
    OPTIMIZER_MEETS_CALL = about(Made)(
        "{who} made {operation} while the others step an optimizer that sends its updates between ranks: only some "
        "ranks ran that step, or a loop ended earlier",
        "step the optimizer on every rank or on none: share the decision by an all_reduce(MIN) of a flag",
    )
    STATE_ALONE = about(Ranks)(
        "collecting the state of a sharded optimizer needs every rank, and only {who} did so",
        "call consolidate_state_dict on every rank; call state_dict and save on the rank that receives the state",
    )
    OPTIMIZERS_DIFFER = about(Ranks)(
        "{who} {has} given the optimizer other parameters, or the same in another order; the optimizer distributes "
        "them over the ranks by size and order",
        "create the optimizer with the same parameters in the same order on every rank",
    )
    FEWER_OPTIMIZER_STEPS = about(Ranks)(
        "{who} ran fewer optimizer steps than the others, or did not collect its state; both need every rank, because "
        "each rank sends its updates to the others",
        "step the optimizer equally often on every rank: share the decision by an all_reduce(MIN) of a flag",
    )
    OPTIMIZER_ALONE = about(Ranks)(
        "{who} alone stepped the optimizer, or collected its state; both need every rank",
        "step the optimizer, and call consolidate_state_dict, on every rank",
    )
    NORM_MEETS_CALL = about(Made)(
        "{who} made {operation} while the others sum the norm of sharded gradients: clipping needs every rank",
        "clip on every rank or on none: share the decision by an all_reduce(MAX) of a flag",
    )
    NORM_OF_OTHERS = about(Ranks)(
        "{who} {has} gradients for fewer, more or other parameters, and the norm is computed from one number for each",
        "give clip_grad_norm_ the same parameters on every rank, and let the loss depend on all of them",
    )
    NORM_WITHOUT_RANK = about(Ranks)(
        "{who} did not clip, and the norm of sharded gradients needs every rank",
        "clip on every rank or on none: share the decision by an all_reduce(MAX) of a flag",
    )
    NORM_ALONE = about(Ranks)(
        "{who} alone clipped, and the norm of sharded gradients needs every rank",
        "clip on every rank or on none: share the decision by an all_reduce(MAX) of a flag",
    )
