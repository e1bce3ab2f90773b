"""Reports which part of a data set each rank reads: the inputs from which torch's DistributedSampler computes it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DistributedSampler

from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.samplers import Sampling
from ddpsim.simulator.kernel.requests import Sampled
from ddpsim.simulator.runtime.call_sites import site_here
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import Replacement


def replacements(host: Host) -> list[Replacement]:
    """What is replaced.

    A subclass may deal out its samples in another way, and one that a rank did not make itself may be for others.
    """
    made: WeakKeyDictionary[Any, tuple[int, Site]] = WeakKeyDictionary()

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(sampler: Any, *arguments: Any, **options: Any) -> None:
            original(sampler, *arguments, **options)
            if host.is_rank_thread() and type(sampler) is DistributedSampler:
                made[sampler] = host.me.rank, site_here()

        return __init__

    def telling(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def __iter__(sampler: Any) -> Any:
            if host.is_rank_thread() and sampler in made:
                rank, site = made[sampler]
                if rank == host.me.rank and (sampling := _sampling(sampler)) is not None:
                    host.ask(Sampled(sampling, site, site_here()))
            return original(sampler)

        return __iter__

    return [(DistributedSampler, "__init__", noting), (DistributedSampler, "__iter__", telling)]


def _sampling(sampler: Any) -> Sampling | None:
    """None if the program has put something else in the place of a number."""
    try:
        return Sampling(
            int(sampler.num_replicas),
            int(sampler.rank),
            len(sampler.dataset),
            bool(sampler.shuffle),
            int(sampler.seed),
            int(sampler.epoch),
            bool(sampler.drop_last),
        )
    except Exception:  # torch itself will say what is wrong
        return None
