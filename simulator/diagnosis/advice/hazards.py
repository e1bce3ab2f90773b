"""Causes: code that passes in the simulator, but may fail elsewhere (hazard.*)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Fact, Nothing, about


class Hazards:
    """Code that passes in the simulator, but may fail elsewhere (hazard.*)."""

    GROUP_ORDER = about(Fact)(
        "ranks use groups {fact} in different orders: gloo accepts that, but NCCL can hang, because a call of one "
        "group blocks a call of the other",
        "let all ranks use their groups in the same order",
    )
    NEVER_WAITED_FOR = about(Nothing)(
        "nothing guarantees that the data has moved when the rank continues or ends; on a real backend it may not have",
        "keep the work and call wait() on it before the tensor is used and before the rank ends",
    )
    HOOK_DID_NOT_WAIT = about(Nothing)(
        "the future that a communication hook returned did not wait for it: a real backend may still be running when "
        "the gradients are taken from the bucket",
        "return work.get_future().then(...) from the hook, or wait() for the work in it",
    )
    CHANGED_IN_FLIGHT = about(Nothing)(
        "a real backend reads and writes the tensor any time until the wait, so either value may be sent or kept",
        "wait() for the work first, or work on a copy",
    )
    READ_IN_FLIGHT = about(Fact)(
        "a real backend writes the tensor any time until the wait, so either value may be read; here the tensor holds "
        "NaN, or a number near the largest, until then, and that value appears in {fact}",
        "wait() for the work before the tensor is read or copied",
    )
    READ_UNDEFINED = about(Fact)(
        "on ranks other than its destination a reduce may leave anything in the tensor: gloo leaves partial sums, NCCL"
        " the old value; here the tensor holds NaN, or a number near the largest, and that value appears in {fact}",
        "use the result on the destination only, or use all_reduce if every rank needs it",
    )
    NAMES_MEET = about(Nothing)(
        "the ranks iterate over the same tensors in different orders, so each tensor is reduced with a different one: "
        "the order comes from a set, a loaded state, or a dictionary filled in another order",
        "sort the names, and iterate in that order on every rank; if the orders differ on purpose, this is no mistake",
    )
    SHARED_IN_FLIGHT = about(Nothing)(
        "a real backend reads and writes the tensors of both calls any time until the waits, in either order",
        "wait() for the first call before the second is made, or give each call a tensor of its own",
    )
    LINES_MEET = about(Nothing)(
        "the ranks took different branches, and their calls still agree",
        "if these calls are not supposed to meet, let every rank make the same calls in the same order",
    )
    SAMPLERS_OF_OTHER_EPOCHS = about(Nothing)(
        "each rank takes its part of a different permutation, so in this epoch some samples are read twice, and others"
        " are never read",
        "call sampler.set_epoch(epoch) on every rank before each epoch, with the same number",
    )
    SAMPLERS_DIFFER = about(Fact)(
        "each sampler computes its rank's part by itself, and the parts fit together only if the {fact} is the same: "
        "some samples are read twice, and others are never read",
        "create the sampler with the same {fact} on every rank",
    )
    SAMPLERS_OF_ONE_RANK = about(Nothing)(
        "several ranks read the same part of the samples, and no rank reads another part",
        "give DistributedSampler the rank in the whole world, dist.get_rank(), or leave it out",
    )
    PROCESS_SHARED = about(Nothing)(
        "ranks are threads of one process here, so each sees what another one left; in a real job each has its own "
        "process",
        'run each rank as a process: isolation="process" (--isolation process), or run the program itself, ddpsim run '
        "FILE.py",
    )
