"""Swaps the state of the process, such as `os.environ` and random generators, at every context switch between ranks.

Not swapped, because torch and Python keep it per thread and every rank is a new thread: grad mode, inference mode,
autocast, the default device, saved-tensor hooks, the device-mesh stack, CUDA's current device and streams, context
variables (with decimal contexts and numpy's errstate). A rank starts with the defaults, not with the host's values.

Shared by all ranks, on purpose or because swapping would cost too much: imported modules and their globals (a
module-level counter of the user counts all ranks), file descriptors, signal handlers, locale, the state that is
restored after the run (`_restore_shared_state`), torch's global module and
optimizer hooks, unfinished RPC and symmetric-memory state, XPU and MTIA seeds set before those devices are
initialised, and `lru_cache`s.
"""

import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast

import numpy
import torch
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ddpsim.simulator.runtime.isolation.environment import RankEnvironments
from ddpsim.simulator.runtime.isolation.modes import TorchModes
from ddpsim.simulator.runtime.isolation.numpy_random import numpy_generator
from ddpsim.simulator.runtime.isolation.python_random import python_generator, seed_of_rank
from ddpsim.simulator.runtime.isolation.settings import ProcessSettings
from ddpsim.simulator.runtime.isolation.torch_generators import CudaGenerators, cpu_generator
from ddpsim.simulator.runtime.isolation.world import C10dWorlds

HOST = -1
"""The host process's index in a list that has one state for each rank; the host comes last."""

State = tuple[Any, ...]
"""The process state of one rank: all items that `ProcessState.swap_state` swaps."""


class Isolation:
    """Gives each rank its own state of the process, such as `os.environ`, made when the rank first runs."""

    def __init__(self, world_size: int, *, is_alike: bool = True) -> None:
        """`is_alike`: the random generators of all ranks start from one seed, instead of a seed for each rank."""
        self._world_size = world_size
        self._is_alike = is_alike
        self._world = C10dWorlds()
        self._holder: int | None = None
        self._states: list[State | None] = []
        """The process states by rank, the host's last. The entry of the running rank is outdated."""
        self._restore = ExitStack()

    def install(self) -> None:
        """Save the host process's state and prepare for ranks. Call `uninstall` on the same thread later."""
        assert not self._states, "installed twice"
        keep_device_guard()
        self._modes = modes = TorchModes()
        in_place = ProcessState(self._world, RankEnvironments(self._world_size), is_alike=self._is_alike)
        host = in_place.host_state()
        try:
            self._restore.enter_context(_restore_shared_state())
            for part in (self._world, modes, in_place.debug_level):
                self._restore.callback(part.uninstall)
                part.install()
            # Twice, as Ctrl-C may strike in the middle of the first.
            self._restore.callback(in_place.swap_state, host)
            self._restore.callback(in_place.swap_state, host)
        except BaseException:
            self._restore.close()
            raise
        self._holder = None
        self._exchange = in_place.swap_state
        self._initial = in_place.initial_state
        self._states = [None] * (self._world_size + 1)

    def switch_rank(self, outgoing: int | None, incoming: int | None) -> None:
        """Save the process state of rank `outgoing` and restore that of rank `incoming`. None means the host."""
        states = self._states
        if not states or outgoing == incoming:  # a late thread after the end; or nothing to do
            return
        assert outgoing == self._holder, f"{outgoing} gives away what {self._holder} has"
        state = states[HOST if incoming is None else incoming]
        if state is None:
            assert incoming is not None, "the host enters, but no rank ever left it"
            state = self._initial(incoming)
        leaving = HOST if outgoing is None else outgoing
        if self._modes.threads_were_set or states[leaving] is None:
            self._modes.compute_with_one_thread()
        states[leaving] = self._exchange(state)
        self._holder = incoming

    def uninstall(self) -> None:
        """Restore the state that the host process had at `install`. May be called twice."""
        self._states = []
        self._holder = None
        self._restore.close()


class ProcessState:
    """The current state of the process, such as `os.environ`, which is that of the running rank.

    Exactly one rank runs at a time, so all code that reads the process state, including functions bound earlier, sees
    the running rank's. No function is patched to look up the current rank.

    At a switch the CPU's caches are cold, so its cost is the number of functions and the memory that it touches. So
    `swap_state` is one function over all kinds of state, and writes only what differs. The file of each kind has its
    rarely needed parts, explains why it is swapped, and defines its initial state.
    """

    def __init__(self, world: C10dWorlds, environment: RankEnvironments, *, is_alike: bool) -> None:
        self._is_alike = is_alike
        self._world = world
        self._environment = environment
        self._settings = ProcessSettings()
        self._torch = cpu_generator(torch.default_generator)
        self._on_cuda = CudaGenerators()
        self._python = python_generator()
        self._numpy = numpy_generator()
        # What `exchange` uses, looked up beforehand.
        self._c10d: dict[str, Any] = vars(distributed_c10d)
        self._active_module: Mapping[str, Any] = vars(DistributedDataParallel)
        self._sys: dict[str, Any] = vars(sys)
        self._warnings: dict[str, Any] = vars(warnings)
        self.debug_level = self._settings.debug_level
        self._start_settings = self._settings.start
        self._base_filters: list[Any] = self._warnings["filters"].copy()
        self._forget_shown = _function_that_forgets_warnings(self._warnings)
        self._environ, self._environb = environment.text, environment.binary
        self._written = environment.written_by_ranks
        self._cuda: dict[str, Any] = vars(torch.cuda)
        self._torch_probe = self._torch.probe
        self._python_probe, self._python_gauss_of = self._python.probe, cast(Any, random._inst)
        self._numpy_probe, self._numpy_gauss = self._numpy.probe, self._numpy.probe_gauss
        self._bit_generator_of, self._numpy_mersenne = cast(Any, numpy.random.mtrand._rand), self._numpy.mersenne

    def host_state(self) -> State:
        """Return the current process state, which is the host's."""
        return (
            self._c10d["_world"],
            self._active_module["_active_ddp_module"],
            self._sys["argv"],
            self._sys["excepthook"],
            self._environment.host,
            self._warnings["filters"],
            True,
            self._cuda["_lazy_seed_tracker"],
            self._torch.save_state(),
            self._on_cuda.save_states(),
            self._python.save_state(),
            self._numpy.save_state(),
            self._settings.read_settings(),
        )

    def initial_state(self, rank: int) -> State:
        """Return a rank's initial state: that of a fresh process, or the host's where a launcher would pass it on.

        May be called while the state of any rank, or of the host, is in place.
        """
        on_torch, on_python, on_numpy = self._torch.start, self._python.start, self._numpy.start
        if not self._is_alike:
            seed = seed_of_rank(rank)
            on_torch, on_python = self._torch.seeded_state(seed), self._python.seeded_state(seed)
            on_numpy = self._numpy.seeded_state(seed)
        return (
            self._world.world_of_rank(rank),
            None,
            self._settings.host_argv.copy(),
            self._settings.host_excepthook,
            self._environment.initial_variables(rank),
            self._base_filters.copy(),
            True,
            self._on_cuda.new_lazy_seeds(),
            on_torch,
            (),
            on_python,
            on_numpy,
            self._settings.start,
        )

    def swap_state(self, state: State) -> State:
        """Make the given process state current, and return the previous one."""
        (
            world,
            active_module,
            argv,
            excepthook,
            variables,
            filters,
            has_host_filters,
            lazy_seeds,
            on_torch,
            on_cuda,
            on_python,
            on_numpy,
            settings,
        ) = state

        c10d = self._c10d
        outgoing_world, c10d["_world"] = c10d["_world"], world
        outgoing_active_module = self._active_module["_active_ddp_module"]
        if active_module is not outgoing_active_module:
            DistributedDataParallel._active_ddp_module = active_module

        interpreter = self._sys
        outgoing_argv, interpreter["argv"] = interpreter["argv"], argv
        outgoing_excepthook, interpreter["excepthook"] = interpreter["excepthook"], excepthook

        environ = self._environ
        outgoing_variables = environ["_data"]
        if self._written:  # before the rest: were it interrupted, it would be done again
            self._environment.exchange_in_c(outgoing_variables, variables)
        environ["_data"] = self._environb["_data"] = variables

        outgoing_settings = self._settings.read_settings()
        if outgoing_settings == settings:
            outgoing_settings = settings
        else:
            self._settings.write_settings(settings)

        shown = self._warnings
        outgoing_filters, shown["filters"] = shown["filters"], filters
        had_host_filters = outgoing_filters == self._base_filters and (
            outgoing_settings is self._start_settings or outgoing_settings[:2] == self._start_settings[:2]
        )
        if not (had_host_filters and has_host_filters):
            self._forget_shown()

        cuda = self._cuda
        outgoing_lazy_seeds, cuda["_lazy_seed_tracker"] = cuda["_lazy_seed_tracker"], lazy_seeds
        # A generator that has the marks of the next state is in that state already.
        outgoing_torch = on_torch if self._torch_probe() == on_torch.marks else self._torch.swap_state(on_torch)
        outgoing_on_cuda = self._on_cuda.swap_states(on_cuda) if cuda["default_generators"] else ()
        if self._python_probe() == on_python.marks and self._python_gauss_of.gauss_next is on_python.gauss:
            outgoing_python = on_python
        else:
            outgoing_python = self._python.swap_state(on_python)
        if (
            self._numpy_probe() == on_numpy.marks
            and self._numpy_gauss() == on_numpy.gauss
            and self._bit_generator_of._bit_generator is self._numpy_mersenne
        ):
            outgoing_numpy = on_numpy
        else:
            outgoing_numpy = self._numpy.swap_state(on_numpy)

        return (
            outgoing_world,
            outgoing_active_module,
            outgoing_argv,
            outgoing_excepthook,
            outgoing_variables,
            outgoing_filters,
            had_host_filters,
            outgoing_lazy_seeds,
            outgoing_torch,
            outgoing_on_cuda,
            outgoing_python,
            outgoing_numpy,
            outgoing_settings,
        )


def _function_that_forgets_warnings(module: dict[str, Any]) -> Callable[[], None]:
    """Return the function that makes Python forget which warnings were shown: `warnings` calls it for changed filters.

    `warnings.catch_warnings` replaces the filters and puts them back on exit, so interleaved ranks would put back each
    other's; each rank has a copy. Python records the shown warnings in `__warningregistry__`, a global of each module
    that warns; these are too many to swap. Ranks that still have the host's filters and functions share the records:
    1,024 ranks do not each print the same deprecation. If a rank has changed its filters, every switch from or to it
    clears the records. So inside `catch_warnings` each rank gets its warnings as if it were alone; it may get one again
    after a context switch.
    """
    if "_filters_mutated" in module:
        forget: Callable[[], None] = module["_filters_mutated"]
        return forget

    def forget_under_lock() -> None:  # Python 3.14 on
        with module["_lock"]:
            module["_filters_mutated_lock_held"]()

    return forget_under_lock


@contextmanager
def _restore_shared_state() -> Iterator[None]:
    """Restore state that all ranks share: the working folder, logging, the recursion limit, `threading.excepthook`.

    Handlers that the run has added to the root logger are closed, as at the end of a process.
    """
    folder, root = _working_folder(), logging.root
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    recursion_limit, excepthook = sys.getrecursionlimit(), threading.excepthook
    try:
        yield
    finally:
        if folder and folder != _working_folder():
            with suppress(OSError):  # the folder does not exist any more
                os.chdir(folder)
        for handler in [each for each in root.handlers if each not in handlers]:
            handler.close()
        root.handlers[:] = handlers
        if root.level != level:
            root.setLevel(level)
        if root.manager.disable != disabled:
            logging.disable(disabled)
        if sys.getrecursionlimit() != recursion_limit:
            sys.setrecursionlimit(recursion_limit)
        threading.excepthook = excepthook


def _working_folder() -> str:
    """Return the working folder; "" if it does not exist any more."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def keep_device_guard() -> None:
    """Make torch's CUDA device guard outlive the ranks' threads, on a machine without CUDA devices.

    DTensor computes shapes with fake tensors. In a CUDA build of torch these install a no-op device guard. In torch
    2.11 it belongs to the first thread that needs it, and is used after that thread's end: the process crashes at the
    first fake tensor of the next simulation. So the thread that runs the simulation installs it first.

    The guard reports one device. The first backward of a process starts a thread for each reported device, and after
    that no fork of the process, such as a rank process, can run a backward (Engine::start_device_threads in
    torch/csrc/autograd/engine.cpp). So a backward is run before the guard is installed.
    """
    if torch.version.cuda is not None and torch.cuda.device_count() == 0:
        with torch.inference_mode(False):
            torch.zeros((), device="cpu", requires_grad=True).backward()
        torch._C._ensureCUDADeviceGuardSet()
