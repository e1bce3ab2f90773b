"""torch.distributed's own state for each rank: its process groups, and which of them is the default one.

c10d keeps it in three places. In Python, `distributed_c10d._world` is one object that every function looks up in its
module at each call, so swapping the module attribute is enough. In C++, group names resolve through a registry that
`_set_thread_isolation_mode(True)` makes per thread (torch/csrc/distributed/c10d/GroupRegistry.cpp), and it does the
same for the functional collectives' pending works. Third, a DeviceMesh hashes by its contents, so meshes of different
ranks would be one key in DTensor's caches, although the cached values depend on the rank.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch.distributed import ProcessGroup, device_mesh, distributed_c10d

from ddpsim.simulator.accesses import Access, AccessMode
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_in_c: Any = torch._C._distributed_c10d
"""c10d's extension module, as Any: its type stub lacks the functions used here."""


class C10dWorld(distributed_c10d._World):
    """One rank's c10d world.

    `_World` has properties that read globals of its module; here each is a plain attribute instead. An attribute that a
    later torch adds to `_World` works, and is shared between ranks only if it is such a global again.
    """

    pg_map: Any = None  # on the class, it hides the property, so that instances can have their own
    pg_names: Any = None
    pg_group_ranks: Any = None
    pg_backend_config: Any = None
    group_count: Any = None
    tags_to_pg: Any = None
    pg_to_tag: Any = None

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.pg_map, self.pg_names, self.pg_group_ranks, self.pg_backend_config = {}, {}, {}, {}
        self.group_count = 0
        self.tags_to_pg, self.pg_to_tag = {}, {}


_REGISTRIES = frozenset(
    {"default_pg", "group_count", "pg_map", "pg_names", "pg_group_ranks"}
    | {"pg_backend_config", "tags_to_pg", "pg_to_tag", "pg_coalesce_state"}
)


class _WatchedWorld(C10dWorld):
    """A c10d world that several threads of a rank share: it reports who reads and who changes which registry."""

    _report: Callable[[str, AccessMode], None]

    def __getattribute__(self, name: str) -> Any:
        if name in _REGISTRIES:
            self._report(name, AccessMode.READ)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _REGISTRIES:
            self._report(name, AccessMode.WRITE)
        super().__setattr__(name, value)


def _reporting_change(name: str) -> Callable[..., Any]:
    change = getattr(dict, name)

    def change_and_report(registry: Any, *arguments: Any) -> Any:
        registry.report()
        return change(registry, *arguments)

    return change_and_report


_WatchedDict: Any = type(
    "_WatchedDict",
    (dict,),
    {
        name: _reporting_change(name)
        for name in ("__setitem__", "__delitem__", "setdefault", "update", "pop", "popitem", "clear")
    },
)


def watch_world(rank: int, report: Callable[[Access], None]) -> None:
    """Report to the exploration of schedules, from now on, what threads of the running rank do to its c10d world:
    names are counted there, and groups are found and forgotten."""
    world: Any = distributed_c10d._world
    kept = {name: getattr(world, name) for name in _REGISTRIES}

    def report_registry(name: str, mode: AccessMode) -> None:
        report(Access(("registry", rank, name), mode))

    world.__class__ = C10dWorld  # so that the registries are its own also where the rank has its own process
    for name, value in kept.items():
        if isinstance(value, dict):
            value = kept[name] = _WatchedDict(value)
            value.report = partial(report_registry, name, AccessMode.WRITE)
        vars(world)[name if name in vars(C10dWorld) else f"_{name}"] = value
    world._report = report_registry
    world.__class__ = _WatchedWorld


class C10dWorlds:
    """The ranks' c10d worlds, and the changes to torch that several worlds in one process need. Two other globals of
    c10d are swapped (`settings.py`), and the attribute in which DDP keeps the running module."""

    def __init__(self) -> None:
        self._worlds: dict[int, C10dWorld] = {}
        self._was_isolating_threads = False
        self._replaced = ReplacedAttributes()

    def world_of_rank(self, rank: int) -> C10dWorld:
        """Return a rank's c10d world. At first it is that of a process that has not called `init_process_group`."""
        if rank not in self._worlds:
            self._worlds[rank] = C10dWorld(rank)
        return self._worlds[rank]

    def install(self) -> None:
        """Give each thread its own registry of groups, and each rank's meshes an identity of their own."""
        self._was_isolating_threads = _isolate_threads()
        self._replaced.replace_attribute(device_mesh.DeviceMesh, "__init__", _device_mesh_constructor_for_ranks)

    def uninstall(self) -> None:
        """Restore the mode of c10d's group registry, and drop the ranks' groups."""
        self._replaced.restore_attributes()
        _in_c._set_thread_isolation_mode(self._was_isolating_threads)
        default = distributed_c10d._world.default_pg
        # init_process_group passes the rank to C++, for its logs.
        _in_c._set_global_rank(-1 if default is None else default.rank())
        self._worlds.clear()


def _isolate_threads() -> bool:
    """Turn thread isolation on, and return whether it was on.

    Python cannot read the mode. So a name is registered before and after: the second fails if isolation was on. A
    look-up of the name would raise if it was off, the usual case, and that takes torch 45 us.
    """
    name = "ddpsim: is thread isolation on?"
    group = cast(Any, ProcessGroup)(0, 1)  # the stub lacks this constructor
    _in_c._register_process_group(name, group)
    _in_c._set_thread_isolation_mode(True)
    try:
        _in_c._register_process_group(name, group)
    except RuntimeError:
        _in_c._unregister_process_group(name)
        return True
    _in_c._unregister_process_group(name)
    _in_c._set_thread_isolation_mode(False)
    _in_c._unregister_process_group(name)
    _in_c._set_thread_isolation_mode(True)
    return False


def _device_mesh_constructor_for_ranks(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of DeviceMesh, changed to store the rank in `_thread_id`.

    `_thread_id` is part of a mesh's hash and equality; torch sets it for its own threaded group only. It stores the
    rank instead of the thread, so that caches do not grow with every simulation.
    """

    def construct(mesh: device_mesh.DeviceMesh, *args: Any, **kwargs: Any) -> None:
        constructor(mesh, *args, **kwargs)
        world = distributed_c10d._world
        if isinstance(world, C10dWorld):
            mesh._thread_id = world.rank
            mesh._hash = None

    return construct
