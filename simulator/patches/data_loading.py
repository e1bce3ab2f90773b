"""Reports what each rank reads: the number of batches of its data loaders, and its part of a data set; and the end of
every optimizer step, by which ddpsim counts iterations; and that a rank computes gradients.

A rank with fewer batches leaves its loop first. The part is reported as the inputs from which torch's
DistributedSampler computes it.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.diagnosis.samplers import SamplerSettings
from ddpsim.simulator.events import NOT_CHECKED, EventKind
from ddpsim.simulator.kernel.requests import LoaderStarted, SamplerStarted, StepDone, WriteNote
from ddpsim.simulator.runtime.call_sites import current_user_site, frames_outwards
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import Replacement, on_ranks

Listener = Callable[[int, Optimizer], None]


def watch_optimizer_steps(host: Host, listeners: Sequence[Listener]) -> Any:
    """Report each end of an optimizer step and call `listeners` then, until the result's `remove()` is called."""

    def report_optimizer_step(optimizer: Optimizer, arguments: Any, options: Any) -> None:
        if host.is_rank_thread() and not _is_nested_step():
            rank = host.running_thread.rank
            host.send_request(StepDone())
            for listener in listeners:
                listener(rank, optimizer)

    return register_optimizer_step_post_hook(report_optimizer_step)


def _is_nested_step() -> bool:
    """True for the step of an optimizer inside another optimizer's step, as in ZeroRedundancyOptimizer."""
    wrapper = sys._getframe(2)
    return any(frame.f_code is wrapper.f_code for frame in frames_outwards(wrapper.f_back))


def gradient_replacements(host: Host) -> list[Replacement]:
    """Return the replacement by which a rank's first backward is reported."""
    known = set[int]()

    def backward(original: Callable[..., None], *arguments: Any, **options: Any) -> None:
        if (rank := host.running_thread.rank) not in known:
            known.add(rank)
            host.send_request(Noticed(NoticedKind.GRADIENTS, detail=rank))
        original(*arguments, **options)

    return [(torch.autograd, "backward", on_ranks(host, backward))]


def data_loading_replacements(host: Host) -> list[Replacement]:
    """Return the replacements of functions of DataLoader and DistributedSampler.

    Not reported: samplers of a subclass, which may distribute samples in another way, and samplers that another rank
    made. Ranks may read two loaders of one line in turn, so those of a line are numbered as they are made.
    """
    made: WeakKeyDictionary[Any, tuple[int, Site, int]] = WeakKeyDictionary()
    times: Counter[tuple[int, Site, type]] = Counter()
    passes: WeakKeyDictionary[Any, Counter[tuple[SamplerSettings, Site]]] = WeakKeyDictionary()

    def init(original: Callable[..., None], instance: Any, *arguments: Any, **options: Any) -> None:
        original(instance, *arguments, **options)
        if type(instance) in (DataLoader, DistributedSampler):
            rank, site = host.running_thread.rank, current_user_site()
            times[rank, site, type(instance)] += 1
            made[instance] = rank, site, times[rank, site, type(instance)]

    def begin_sampler(original: Callable[[Any], Any], sampler: Any) -> Any:
        if sampler in made:
            rank, site, number = made[sampler]
            if rank == host.running_thread.rank and (sampling := _sampler_inputs(sampler)) is not None:
                host.send_request(SamplerStarted(sampling, site, number, line := current_user_site()))
                trains = torch.is_grad_enabled()
                (own := passes.setdefault(sampler, Counter()))[sampling, line] += trains
                note = "" if trains else sampling.repeats_note(site)
                if trains and sampling.shuffle and own[sampling, line] == 2:
                    what = f"{line} reads the shuffling DistributedSampler of {site} again"
                    note = f"{NOT_CHECKED}whether epochs may have one order: {what}, with no set_epoch() between"
                if note:
                    host.send_request(WriteNote(EventKind.NOTE, note))
        return original(sampler)

    def begin_loader(original: Callable[[Any], Any], loader: Any) -> Any:
        if (batches := _number_of_batches(loader)) is not None:
            line = made[loader][1:] if type(loader) is DataLoader and loader in made else None
            host.send_request(LoaderStarted(batches, line, current_user_site()))
        return original(loader)

    return [
        (DataLoader, "__init__", on_ranks(host, init)),
        (DataLoader, "__iter__", on_ranks(host, begin_loader)),
        (DistributedSampler, "__init__", on_ranks(host, init)),
        (DistributedSampler, "__iter__", on_ranks(host, begin_sampler)),
    ]


def _number_of_batches(loader: Any) -> int | None:
    """Return a data loader's number of batches; None if it is unknown, as for a stream."""
    try:
        return len(loader)
    except Exception:  # a sampler is the program's
        return None


def _sampler_inputs(sampler: Any) -> SamplerSettings | None:
    """Return the inputs from which a sampler computes its part of a data set; None if the program replaced one."""
    try:
        return SamplerSettings(
            int(sampler.num_replicas),
            int(sampler.rank),
            len(sampler.dataset),
            bool(sampler.shuffle),
            int(sampler.seed),
            int(sampler.epoch),
            bool(sampler.drop_last),
        )
    except Exception:  # torch itself will report the error
        return None
