"""Parts of torch.distributed that are not simulated: rpc and what `public_names.txt` says raise an error; a torch
without NCCL gets its constants."""

from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d, rpc

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.foreign_names.checking import resolve_name_path
from ddpsim.simulator.foreign_names.public import refused_names
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import Replacement, on_ranks

NCCL_VERSION = (2, 28, 9)
"""The version of NCCL in torch 2.13."""

NCCL_TIMEOUT = timedelta(minutes=10)
"""The default time-out of NCCL groups (torch/distributed/constants.py)."""


@cache
def _refused_parts() -> tuple[tuple[Any, str, str], ...]:
    """Return the functions of parts of torch that are refused: owner, name and error text of each."""
    found = []
    for path in ("torch._C._distributed_c10d._SymmetricMemory", "torch.distributed._transport"):
        with suppress(ImportError, AttributeError):  # another version of torch
            owner = resolve_name_path(path)
            for name, advice in refused_names(path).items():
                what = f"{name} of torch's {path.rpartition('._')[2]} is not simulated: {advice}"
                found.append((owner, name, what))
    return tuple(found)


def not_simulated_replacements(host: Host) -> list[Replacement]:
    """Return the replacements of functions and constants of torch. Programs that name NCCL need its time-out, and
    torch's error log its version."""

    def refuse(text: str, *_: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(text)

    def end_run(*_: Any, **options: Any) -> NoReturn:
        error = UsageError(
            f"rank {host.running_thread.rank} calls torch.distributed.rpc.init_rpc, expected collectives, messages or "
            "stores: rpc uses its own sockets, which are not simulated: run the program on real processes"
        )
        host.abort_run(error)
        raise error

    # The private one is for a program that has bound the public one by name.
    names = ("init_rpc", "_init_rpc_backend")
    refused: list[Replacement] = [(rpc, name, on_ranks(host, end_run)) for name in names if hasattr(rpc, name)]
    refused += [(*each, on_ranks(host, partial(refuse, text))) for *each, text in _refused_parts()]
    if dist.is_nccl_available():
        return refused
    return [
        *refused,
        (torch.cuda.nccl, "version", lambda original: lambda: NCCL_VERSION),
        (distributed_c10d, "default_pg_nccl_timeout", lambda original: NCCL_TIMEOUT),
    ]
