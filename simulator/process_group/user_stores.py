"""The stores that a program makes by hand.

Each is served by the kernel, so that waiting lets other ranks run and a key that never comes is found. The keys of all
lie in one place there, each store's under a prefix of its own: by port (`TCPStore`), by file (`FileStore`), by process
(`HashStore`). Signatures and errors are torch's. A time-out that the program gives passes in virtual time; torch's 300
seconds end no wait in a deadlock.

A rank that is a process finds our classes under torch's names (`replace_store_classes`). Where ranks are threads,
torch's own classes make ours while a run lasts (`stores_replaced_on_ranks`).
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from types import ModuleType
from typing import Any, ClassVar

import torch._C._distributed_c10d as _c10d
from torch._C._distributed_c10d import Store
from torch.distributed import DistNetworkError, DistStoreError

from ddpsim.simulator.hosts import MASTER_PORT
from ddpsim.simulator.process_group.store import DEFAULT_TIMEOUT, SimulatedStore
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_FIRST_FREE_PORT = 49_152
"""The first port that a TCPStore with port 0 may get. Ports below are left to programs."""

_IN_USE = (
    "The server socket has failed to listen on any local network address. port: {}, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)

_MADE_AGAIN = " made again by rank "


class UserStore(SimulatedStore):
    """The base of the stores that a program makes. Each run makes subclasses, which know the run's host."""

    _of: ClassVar[Host]
    _class_of_torch: ClassVar[Any]
    """torch's own store class, used where no rank runs: in a process that a rank has forked."""
    _at_end: ClassVar[Callable[[Callable[[str], None], str], object]]
    """Registers a function that runs at the end: it removes a file, or ends a server."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """Return a simulated store on a rank's thread, and torch's own store elsewhere."""
        if not cls._of.is_rank_thread():
            return cls._class_of_torch(*arguments, **options)
        return super().__new__(cls)

    def _store_under(self, namespace: str) -> None:
        self._prefix = self._namespace = namespace

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self.list_keys())

    getNumKeys = num_keys

    @property
    def underlying_store(self) -> SimulatedStore:
        """Return the store itself: the program knows of no prefix of it."""
        return self


class TCPStore(UserStore):
    """torch.distributed.TCPStore; no socket is opened."""

    _servers: ClassVar[weakref.WeakValueDictionary[tuple[int, int], TCPStore]]

    libuvBackend = True

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        """Make the store from the arguments of torch's TCPStore."""
        super().__init__(self._of)
        if not 0 <= port < 2**16:
            raise TypeError(f"__init__(): incompatible constructor arguments: port {port}, expected 0 to 65535")
        self.host, self.port = host_name, port
        self.set_timeout(timeout)
        if is_agent_port(port):
            return
        generation = self._record_server(multi_tenant) if is_master else self._await_server()
        self._store_under(store_place(self.port, generation))
        self._server = server_key(self.port)
        if wait_for_workers and world_size is not None:
            self._wait_for_workers(world_size, is_master)

    def _record_server(self, is_shared: bool) -> int:
        """Record a server store at its port. Return how many server stores the port has had."""
        if not self.port:
            self.port = _FIRST_FREE_PORT - 1 + int(self._ask_kernel("add", ["tcp ports"], amount=1))
        place, me = f"owner of tcp port {self.port}", str(self._of.running_thread.rank).encode()
        owner = bytes(self._ask_kernel("compare_set", [place], [b"", me]))
        here = self._of.running_thread.rank, self.port
        mine = self._servers.get(here)
        if owner != me or (mine is not None and not is_shared):
            if uses_agent_store():  # then torch goes on as a client
                return self._await_server()
            raise DistNetworkError(_IN_USE.format(self.port))
        self._servers[here] = self
        type(self)._at_end(self._end_server, server_key(self.port))
        return int(self._ask_kernel("add", [server_key(self.port)], amount=int(mine is None)))

    @classmethod
    def _end_server(cls, server: str) -> None:
        """End a server as its rank's program ends normally. After an error, that error is all there is to tell."""
        error = sys.exc_info()[1]
        if cls._of.is_rank_thread() and not (error.code if isinstance(error, SystemExit) else error):
            SimulatedStore(cls._of).delete_key(server)

    def _await_server(self) -> int:
        """Wait until the server store of this client exists."""
        try:
            return int(self.get(server_key(self.port)))
        except DistStoreError:
            raise DistNetworkError(
                f"The client socket has timed out after {round(self._timeout.total_seconds() * 1000)}ms while trying "
                f"to connect to ({self.host}, {self.port})."
            ) from None

    def _wait_for_workers(self, world_size: int, is_master: bool) -> None:
        joined = self.add("init/", 1)
        everybody, ports = f"all {world_size} clients of tcp port {self.port}", SimulatedStore(self._of)
        if joined == world_size:
            ports.set(everybody, b"1")
        if not is_master:
            return
        try:
            ports.wait([everybody], self._limit)
        except DistStoreError:
            raise DistStoreError(
                f"Timed out after {int(self._timeout.total_seconds()) + 1} seconds waiting for clients. "
                f"{self.add('init/', 0)}/{world_size} clients joined."
            ) from None

    def __repr__(self) -> str:
        return f"TCPStore(host={self.host!r}, port={self.port})"


class FileStore(UserStore):
    """torch.distributed.FileStore; its file says at most how often it was made."""

    _made: ClassVar[Counter[tuple[int, str]]]
    """By rank and path, how often the rank has made the file: one that is made again has no keys."""

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        """Make the store from the arguments of torch's FileStore."""
        self.path = file_name
        super().__init__(self._of)
        place, rank = os.path.realpath(file_name), self._of.running_thread.rank
        try:
            file = os.open(file_name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            with open(file_name, "rb") as made:
                mark = made.read(99).decode(errors="ignore")
            self._store_under(f"file {place}{mark if mark.startswith(_MADE_AGAIN) else ''}/")
            return
        except OSError as error:
            raise RuntimeError(f"unable to open {file_name}: {error.strerror}") from None
        earlier = self._made[rank, place]
        self._made[rank, place] += 1
        mark = f"{_MADE_AGAIN}{rank}, {earlier}" if earlier else ""
        os.write(file, mark.encode())
        os.close(file)
        self._store_under(f"file {place}{mark}/")
        if world_size > 0:  # torch removes the file with the last handle of as many ranks
            type(self)._at_end(_remove, file_name)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


class HashStore(UserStore):
    """torch.distributed.HashStore, which a process shares with no other process."""

    _numbers: ClassVar[Counter[int]]
    """By rank, the number of HashStores that the rank has made."""

    def __init__(self) -> None:
        """Make the store from the arguments of torch's HashStore."""
        super().__init__(self._of)
        rank = self._of.running_thread.rank
        self._store_under(f"hash store {self._numbers[rank]} of rank {rank}/")
        self._numbers[rank] += 1


class PrefixStore(UserStore):
    """torch.distributed.PrefixStore over a simulated store, or torch's own over any other store."""

    def __new__(cls, prefix: str, store: Store) -> Any:
        """Return a simulated store if `store` is one."""
        if not isinstance(store, SimulatedStore):
            return cls._class_of_torch(prefix, store)
        return super().__new__(cls, prefix, store)

    def __init__(self, prefix: str, store: SimulatedStore) -> None:
        """Make the store from the arguments of torch's PrefixStore."""
        super().__init__(self._of, f"{store._prefix}{prefix}/")
        self._store = store
        self._server, self._namespace = store._server, store._namespace
        self._timeout, self._limit = store._timeout, store._limit

    @property
    def underlying_store(self) -> SimulatedStore:
        """The store without this prefix."""
        return self._store

    @property
    def _underlying_non_prefix_store(self) -> SimulatedStore:
        store = self._store
        return store._underlying_non_prefix_store if isinstance(store, PrefixStore) else store

    def num_keys(self) -> int:
        """Return the number of keys of the store."""
        return self._store.num_keys()

    getNumKeys = num_keys

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of this store and of the store below."""
        super().set_timeout(timeout)
        self._store.set_timeout(timeout)


@cache
def store_names() -> tuple[frozenset[str], list[tuple[ModuleType, type[UserStore]]]]:
    """Return the names of all modules, and which of them name which of torch's store classes.

    A server calls it before it forks ranks: in each of them, looking into all modules would copy their memory.
    """
    found = [(module, kind) for module in list(sys.modules.values()) for kind in _KINDS if _has_class(module, kind)]
    return frozenset(sys.modules), found


def _has_class(module: ModuleType, kind: type[UserStore]) -> bool:
    name = kind.__name__
    names = getattr(module, "__dict__", {})
    return names is not globals() and names.get(name) is getattr(_c10d, name)


def replace_store_classes(host: Host) -> None:
    """Replace torch's store classes by simulated ones, also under names that the program imported, for good."""
    known, places = store_names()
    new = [module for name, module in list(sys.modules.items()) if name not in known]
    places = [*places, *((module, kind) for module in new for kind in _KINDS if _has_class(module, kind))]
    for kind in _KINDS:
        made = _bound_arguments(kind, getattr(_c10d, kind.__name__), host, atexit.register)
        for module in (module for module, named in places if named is kind):
            ReplacedAttributes().set_attribute(module, kind.__name__, made)


_KINDS = (TCPStore, FileStore, HashStore, PrefixStore)


@contextmanager
def stores_replaced_on_ranks(host: Host) -> Iterator[None]:
    """A context in which torch's store classes make simulated stores when a rank calls them, under whatever name."""
    replaced = ReplacedAttributes()
    with ExitStack() as at_end:
        at_end.callback(replaced.restore_attributes)
        for kind in _KINDS:
            real: Any = getattr(_c10d, kind.__name__)
            bind = partial(_bound_arguments, kind, real, host, at_end.callback)
            replaced.set_attribute(real, "__new__", _choosing_new(bind, real, host))
        yield


def server_key(port: int) -> str:
    """Return the key that exists once a server listens at a port. Findings show this key."""
    return f"server at tcp port {port}"


def store_place(port: int, generation: int) -> str:
    """Return the prefix of the keys of the n-th server at a port."""
    return f"tcp port {port}/" if generation == 1 else f"tcp port {port} ({generation})/"


def uses_agent_store() -> bool:
    """True if the running rank is one of torchrun's, whose agent has the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def is_agent_port(port: int) -> bool:
    """True for the port at which the agent's store listens, which is that of the default group."""
    return uses_agent_store() and str(port) == MASTER_PORT


def blocks_process(store: Store) -> bool:
    """True for a store of torch's own, made before the run: a wait for its key would block the whole process."""
    base = getattr(store, "_underlying_non_prefix_store", store)
    return isinstance(base, (_c10d.TCPStore, _c10d.FileStore, _c10d.HashStore))


def _choosing_new(bind: Callable[[], type[UserStore]], real: Any, host: Host) -> Callable[..., Any]:
    make_real = real.__new__
    made: list[type[UserStore]] = []  # most programs make no store

    def new(kind: type, *arguments: Any, **options: Any) -> Any:
        below = [each for each in (*arguments, *options.values()) if isinstance(each, Store)]
        if kind is real and host.is_rank_thread() and all(isinstance(each, SimulatedStore) for each in below):
            if not made:
                made.append(bind())
            return made[0](*arguments, **options)
        return make_real(kind)  # whose __init__ takes the arguments

    return new


def _bound_arguments(kind: type[UserStore], real: Any, host: Host, at_end: Callable[..., object]) -> type[UserStore]:
    own: dict[str, Any] = {
        "_of": host,
        "_class_of_torch": real,
        "_at_end": staticmethod(at_end),
        "_servers": weakref.WeakValueDictionary(),
        "_numbers": Counter(),
        "_made": Counter(),
    }
    return type(kind.__name__, (kind,), {"__module__": real.__module__, **own})
