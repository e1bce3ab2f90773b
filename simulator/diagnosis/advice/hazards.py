"""Causes: what passes here (hazard.*)."""

from __future__ import annotations

from ddpsim.simulator.diagnosis.advice.facts import Fact, Nothing, about


class Hazards:
    """What passes here (hazard.*)."""

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
    READ_IN_FLIGHT = about(Fact)(
        "a real backend writes the tensor any time until the wait, so either value may be read; here it holds NaN, "
        "or a number near the largest, until then, which shows in {fact}",
        "wait() for the work before the tensor is read or copied",
    )
    READ_UNDEFINED = about(Fact)(
        "elsewhere than on its destination a reduce may leave anything in the tensor: gloo leaves partial sums, NCCL "
        "what was there; here it holds NaN, or a number near the largest, which shows in {fact}",
        "use the result on the destination only, or all_reduce where every rank needs it",
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
    SAMPLERS_OF_OTHER_EPOCHS = about(Nothing)(
        "each rank takes its part of another permutation, so some samples are read twice in this epoch, and others by "
        "nobody",
        "call sampler.set_epoch(epoch) on every rank before each epoch, with the same number",
    )
    SAMPLERS_DIFFER = about(Fact)(
        "each sampler works out its rank's part by itself, which fits the others only if the {fact} is the same: some "
        "samples are read twice, and others by nobody",
        "make it with the same {fact} on every rank",
    )
    SAMPLERS_OF_ONE_RANK = about(Nothing)(
        "ranks read the same part of the samples, and nobody another one",
        "give DistributedSampler the rank in the whole world, dist.get_rank(), or leave it out",
    )
    PROCESS_SHARED = about(Nothing)(
        "ranks are threads of one process here, so each finds what another one left; elsewhere each has its own",
        'give each rank a process: isolation="process" (--isolation process), or the program as it is, ddpsim run '
        "FILE.py",
    )
