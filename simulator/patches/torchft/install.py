"""Puts the stand-ins in the place of what torchft has in Rust, in C++ and behind sockets."""

import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from ddpsim.simulator.patches.torchft import checkpoints, servers
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.late_modules import call_with_module
from ddpsim.simulator.runtime.replaced import ReplacedAttributes, on_ranks

_KINDS = (servers.LighthouseServer, servers.LighthouseClient, servers.ManagerServer, servers.ManagerClient)


@contextmanager
def torchft_simulated(host: Host) -> Iterator[None]:
    """A context in which torchft, if a rank uses it, waits in the simulation."""
    with ExitStack() as stack:
        replaced = ReplacedAttributes()
        stack.callback(replaced.restore_attributes)
        for name, replace in (
            ("torchft._torchft", _replace_extension),
            ("torchft.process_group", _replace_gloo),
            ("torchft.checkpointing.http_transport", _replace_http),
            ("torchft.futures", _replace_watchdog),
        ):
            stack.callback(call_with_module(name, partial(replace, host, replaced)).uninstall)
        yield


def _replace_extension(host: Host, replaced: ReplacedAttributes, extension: Any) -> None:
    """Replace the servers and clients, in the modules that have imported them, too."""
    for kind in _KINDS:
        name = kind.__name__
        original = getattr(extension, name)
        chosen = _chosen_on_ranks(host, kind, original)
        for module in list(sys.modules.values()):
            found = getattr(module, "__dict__", {}).get(name)
            if found is original or getattr(found, "stands_for", None) is original:
                replaced.set_attribute(module, name, chosen)


def _chosen_on_ranks(host: Host, kind: type, original: Any) -> type:
    """Return a class that makes the stand-in on a rank's thread, and torchft's own object elsewhere."""

    def new(cls: type, *arguments: Any, **options: Any) -> Any:
        return object.__new__(cls) if host.is_rank_thread() else original(*arguments, **options)

    return type(kind.__name__, (kind,), {"__new__": new, "stands_for": original})


def _replace_gloo(host: Host, replaced: ReplacedAttributes, module: Any) -> None:
    """Let torchft's group of gloo have a simulated group itself: a group of torch takes only a backend in C++."""

    def create(original: Callable[..., Any], group: Any, store: Any, rank: int, world_size: int) -> Any:
        return dist.ProcessGroupGloo(store, rank, world_size, group._timeout)

    replaced.replace_attribute(module.ProcessGroupGloo, "_create_pg", on_ranks(host, create))


def _replace_http(host: Host, replaced: ReplacedAttributes, module: Any) -> None:
    def open_url(*arguments: Any, **options: Any) -> Any:
        is_simulated = host.is_rank_thread()
        return (checkpoints.open_url if is_simulated else urllib.request.urlopen)(*arguments, **options)

    server = _chosen_on_ranks(host, checkpoints.CheckpointServer, module._IPv6HTTPServer)
    replaced.set_attribute(module, "_IPv6HTTPServer", server)
    replaced.set_attribute(module, "urllib", SimpleNamespace(request=SimpleNamespace(urlopen=open_url)))


def _replace_watchdog(host: Host, replaced: ReplacedAttributes, module: Any) -> None:
    """Leave out the watchdog of torchft's timers on ranks: it sleeps again and again, and so no hang would be found."""

    replaced.replace_attribute(module._TimeoutManager, "_watchdog_loop", on_ranks(host, lambda original, manager: None))
