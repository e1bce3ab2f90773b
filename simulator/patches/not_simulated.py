"""What torch.distributed has besides groups and stores and is not simulated: a rank that begins it ends the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch.distributed import rpc

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import Replacement


def replacements(host: Host) -> list[Replacement]:
    """What is replaced."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*arguments: Any, **options: Any) -> Any:
            if host.is_rank_thread():
                _refuse_rpc(host)
            return original(*arguments, **options)

        return begin

    # The latter for a program that has bound the former by name.
    return [(rpc, name, refusing) for name in ("init_rpc", "_init_rpc_backend") if hasattr(rpc, name)]


def _refuse_rpc(host: Host) -> NoReturn:
    error = UsageError(
        f"rank {host.me.rank} calls torch.distributed.rpc.init_rpc, expected collectives, messages or stores: rpc "
        "talks over sockets of its own, which are not simulated: run the program on real processes"
    )
    host.break_off(error)
    raise error
