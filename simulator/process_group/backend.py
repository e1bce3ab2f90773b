"""The backend: puts the simulated process group under torch.distributed while an execution runs.

torch.distributed is not told to use another backend by name: inside a rank every group is simulated, whatever backend
the program asks for, and `dist.get_backend()` answers what it asked for ("gloo" for the default group). So programs,
libraries and DDP run unmodified. What is replaced, and put back afterwards:

- `distributed_c10d._new_process_group_helper`, through which every group is made, and `split_group`, which goes past
  it;
- `init_process_group`, which has been called already when a rank's program starts, and after a destroy needs no
  address; and `distributed_c10d.rendezvous`, which an `init_process_group` that was imported by name comes to;
  Not where a program makes its groups itself (`makes_groups` is False): there `init_process_group` and the rendezvous
  are torch's own, and `_create_c10d_store` of the latter gives the simulator's store, without a socket;
- `batch_isend_irecv`, under the rules of a backend to which it is one unit;
- `torch._C.Future.wait` and `done`, so that waiting for a future lets the other ranks run; `set_result`, `then` and
  `add_done_callback`, which other threads notice;
- the functions that start and end torch's profiler (profilers.py);
- `tell` of simulator/agreeing.py, which does nothing elsewhere;
- `torch.distributed.rpc.init_rpc`, which is rejected, and where torch has no NCCL, its version and default time-out
  (not_simulated.py);
- `__init__` and `__iter__` of `DataLoader` and `DistributedSampler`, which report the number of batches, and the part
  of the samples that a rank reads (data_loading.py);
- functions that wait for file locks, for locks and data of multiprocessing and for child processes, or look for files
  (outside_waits.py);
- `torch.distributed._verify_params_across_processes`, see Note [Counting parameters] in parameter_check.py;
- `Reducer._set_forward_pass_work_handle`, see Note [Works that only C++ holds], `_delay_all_reduce`,
  see Note [Static graphs], and `torch._jit_internal._extract_tensors`, see Note [Tensors of a bucket]; all in
  reducer_patches.py;
- `DistributedDataParallel._register_builtin_comm_hook`, see Note [Built-in hooks] in reducer_patches.py;
- `DistributedDataParallel._get_ddp_logging_data`, which names the backend;
- `DistributedDataParallel._ddp_init_helper`, `Reducer.prepare_for_forward`, `prepare_for_backward` and
  `torch.distributed._register_comm_hook`, which tell where a wrapper stands; see wrapper_registry.py.

Besides, torch's compiler is loaded late (late_dynamo.py), it skips our functions, and a rank that waits for its lock
lets other ranks run (compiler.py); a hook on every optimizer counts steps (data_loading.py), and one on every module
reports evaluations to check="replicas" (replica_check.py).
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch._C._distributed_c10d as _c10d
import torch.distributed as dist
from torch import _jit_internal
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.modules import module as modules
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpsim.simulator import agreeing
from ddpsim.simulator.attribution.wrapper_registry import WrapperRegistry, reducer_parameter_names
from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.comparing.recorder import TrainingRecorder
from ddpsim.simulator.comparing.records import Recording
from ddpsim.simulator.diagnosis.deadlock_snapshot import OutsideCall
from ddpsim.simulator.diagnosis.hazards import Noticed, NoticedKind
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.events import NOT_CHECKED, EventKind
from ddpsim.simulator.kernel.requests import (
    AskLatestStep,
    CloseBatch,
    OpenBatch,
    ReportAgreedValue,
    ReportLockUse,
    WriteNote,
)
from ddpsim.simulator.patches import data_loading, not_simulated
from ddpsim.simulator.patches.compiler import CompilerLock, skip_simulator_in_dynamo, wrap_has_any_global_hook
from ddpsim.simulator.patches.data_loading import Listener, watch_optimizer_steps
from ddpsim.simulator.patches.deepspeed import deepspeed_without_shared_memory
from ddpsim.simulator.patches.late_dynamo import dynamo_loaded_late
from ddpsim.simulator.patches.outside_waits import OutsideWaits
from ddpsim.simulator.patches.profilers import ProfilerGuard
from ddpsim.simulator.patches.torchft.install import torchft_simulated
from ddpsim.simulator.process_group import reducer_patches
from ddpsim.simulator.process_group.call_hooks import HAS_HOOKS
from ddpsim.simulator.process_group.creation import GroupMaker
from ddpsim.simulator.process_group.group import SimulatedGroup
from ddpsim.simulator.process_group.named_group import NamedGroup
from ddpsim.simulator.process_group.parameter_check import parameter_check
from ddpsim.simulator.process_group.user_stores import blocks_process, is_agent_port, uses_agent_store
from ddpsim.simulator.process_group.work import future_is_done, note_callback, set_future, wait_for_future
from ddpsim.simulator.replicas.replica_check import ReplicaSampler, check_reads_first
from ddpsim.simulator.replicas.replica_tensors import NoticeReplica, ReplicaFact
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import ReplacedAttributes, Replacement, on_ranks

_RENDEZVOUS: Any = sys.modules["torch.distributed.rendezvous"]
"""The module torch.distributed.rendezvous, under a name of its own: `torch.distributed` has a function called that."""

FAKE = "fake"
"""torch's "fake" backend, which communicates with no rank, for any world size. Its groups are not simulated."""

_THREADED = "threaded"
"""The backend of torch's own tests, whose ranks are threads. Its groups are simulated, as every rank is one already."""


class SimulatedBackend:
    """Installs the simulated process groups under torch.distributed for one run."""

    def __init__(
        self,
        host: Host,
        *,
        checks_replicas: bool = False,
        makes_groups: bool = True,
        poisons: bool = False,
        semantics: BackendSemantics = GLOO,
        are_processes: bool = False,
        recording: Recording | None = None,
        ranks: Iterable[int] = (),
    ) -> None:
        """`makes_groups`: each rank has its default group before its program starts.

        `poisons`: tensors of unfinished calls get values that show early reads. `ranks`: those of this process, which
        record their training if there is a `recording`.
        """
        self._recorder = None if recording is None else TrainingRecorder(host, recording, ranks)
        self._host = host
        self.outside = OutsideWaits(host, are_processes=are_processes)
        self._makes_groups = makes_groups
        self._semantics = semantics
        self._wrappers = WrapperRegistry(
            lambda: host.running_thread.rank if host.is_rank_thread() else None,
            lambda *key: host.send_request(AskLatestStep(*key)),
        )
        self._replicas: ReplicaSampler | None = None
        if checks_replicas:
            notice: NoticeReplica = partial(_notice_replica, host)
            if poisons:
                notice = check_reads_first(notice, host.hazards.check_for_poison)
            self._replicas = ReplicaSampler(self._wrappers, host.hazards.unwaited_calls, notice)
            host.hazards.listeners.append(self._replicas.call_issued)
        self._groups = GroupMaker(host, self._wrappers, poisons=poisons, semantics=semantics)

    # --- around the whole run -----------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """A context in which functions of torch are replaced, as this module's docstring lists."""
        compiler_lock = CompilerLock()

        def prepare_for_dynamo() -> None:
            skip_simulator_in_dynamo()
            compiler_lock.install()

        prepare_for_dynamo()
        # its functions have a default argument, the default group at the time of the import
        importlib.import_module("torch.distributed.nn.functional")
        with dynamo_loaded_late(when_loaded=prepare_for_dynamo), ExitStack() as stack:
            stack.enter_context(deepspeed_without_shared_memory())
            stack.enter_context(torchft_simulated(self._host))
            stack.callback(compiler_lock.uninstall)
            stack.callback(self._wrappers.remove_hooks)
            stack.callback(self._groups.through_torch.restore_kernels)
            listeners: list[Listener] = [self._groups.count_optimizer_step]
            replacements = self._replacements()
            if self._replicas is not None:
                listeners.append(self._replicas.optimizer_step_ended)
                hook: Any = register_module_forward_pre_hook(self._replicas.module_forward_begins)
                stack.callback(hook.remove)
                stack.callback(register_optimizer_step_pre_hook(self._replicas.optimizer_step_begins).remove)
                replacements.append((modules, "_has_any_global_hook", partial(wrap_has_any_global_hook, hook.id)))
            if self._recorder is not None:
                listeners.append(self._recorder.optimizer_step_ended)
                stack.callback(self._recorder.close)
                replacements += self._recorder.start()
            stack.callback(watch_optimizer_steps(self._host, listeners).remove)
            replaced = ReplacedAttributes()
            stack.callback(replaced.restore_attributes)
            for owner, name, made_of in replacements:
                replaced.replace_attribute(owner, name, made_of)
            yield

    def _replacements(self) -> list[Replacement]:
        on = partial(on_ranks, self._host)
        if self._makes_groups:
            first: list[Replacement] = [
                *((owner, "init_process_group", on(self._init_process_group)) for owner in (distributed_c10d, dist)),
                (distributed_c10d, "rendezvous", on(self._rendezvous)),
            ]
        else:
            first = [(_RENDEZVOUS, "_create_c10d_store", on(self._rendezvous_store))]
        if self._semantics.batch_is_unit:
            first += [(owner, "batch_isend_irecv", on(self._batch_isend_irecv)) for owner in (distributed_c10d, dist)]
        return [
            *first,
            *ProfilerGuard(self._host).replacements(),
            *not_simulated.not_simulated_replacements(self._host),
            *data_loading.data_loading_replacements(self._host),
            *data_loading.gradient_replacements(self._host),
            *self.outside.replacements(),
            (distributed_c10d, "_new_process_group_helper", on(self._new_process_group_helper)),
            (distributed_c10d, "_warn_not_in_group", on(self._warn_not_in_group)),
            *((owner, "ProcessGroupGloo", self._direct_gloo) for owner in (dist, distributed_c10d, _c10d)),
            (distributed_c10d.P2POp, "__init__", on(self._groups.init_p2p_op)),
            (distributed_c10d, "_set_pg_timeout", on(self._set_pg_timeout)),
            *((owner, "split_group", on(self._split_group)) for owner in (distributed_c10d, dist, device_mesh)),
            (dist, "_verify_params_across_processes", parameter_check),
            *([(vars(_c10d)["NanCheckHook"], "attach", _attach_nan_check)] if HAS_HOOKS else []),
            (agreeing, "tell", on(self._report_agreed_value)),
            (torch._C.Future, "wait", self._wrap_future_wait),
            (torch._C.Future, "done", self._wrap_future_done),
            (torch._C.Future, "set_result", self._wrap_future_set_result),
            (torch._C.Future, "then", self._wrap_future_callback),
            (torch._C.Future, "add_done_callback", self._wrap_future_callback),
            (_c10d.Reducer, "_set_forward_pass_work_handle", reducer_patches.keep_forward_work_alive),
            (_c10d.Reducer, "_delay_all_reduce", partial(reducer_patches.wait_for_delayed_reduce, self._host)),
            (_jit_internal, "_extract_tensors", reducer_patches.extract_tensors_fast),
            (DistributedDataParallel, "_register_builtin_comm_hook", reducer_patches.python_builtin_hook),
            (DistributedDataParallel, "_get_ddp_logging_data", reducer_patches.backend_logging_data),
            (DistributedDataParallel, "_ddp_init_helper", self._wrappers.replace_ddp_init_helper),
            (_c10d.Reducer, "prepare_for_forward", self._wrappers.replace_prepare_for_forward),
            (_c10d.Reducer, "prepare_for_backward", self._wrappers.replace_prepare_for_backward),
            (dist, "_register_comm_hook", self._wrappers.replace_register_comm_hook),
        ]

    def _warn_not_in_group(self, original: Callable[..., Any], op_name: str) -> None:
        outside = OutsideCall(self._host.running_thread.rank, op_name, current_user_site())
        self._host.send_request(Noticed(NoticedKind.OUTSIDE, (), outside))
        text = f"Running {op_name} on global rank {outside.rank} which does not belong to the given group."
        warnings.warn(text, stacklevel=3)  # torch's own would name this file

    def _batch_isend_irecv(self, original: Callable[..., Any], p2p_op_list: Any) -> Any:
        self._host.send_request(OpenBatch())
        try:
            return original(p2p_op_list)
        finally:
            self._host.send_request(CloseBatch())

    # --- around each rank's program -----------------------------------------------------------------------------------

    @contextmanager
    def rank_entered(self, rank: int) -> Iterator[None]:
        """Give the running rank its default group, on the rank's own thread, unless the program makes it itself."""
        torch.autograd.set_multithreading_enabled(False)  # the backward pass, its hooks and its end stay on this thread
        if self._makes_groups:
            self._groups.make_default_group(rank)
        try:
            yield
            self.rank_returned(rank)
        finally:  # torch keeps a thread's registry, and the memory of each group in it, for the life of the process
            torch._C._distributed_c10d._unregister_all_process_groups()

    def rank_returned(self, rank: int) -> None:
        """Record that the running rank's program returned, so its models do not change any more."""
        if self._replicas is not None:
            self._replicas.rank_returned(rank)

    def thread_entered(self) -> None:
        """Prepare a thread that the running rank has started, so that torch finds the rank's groups by name there."""
        torch.autograd.set_multithreading_enabled(False)
        world: Any = distributed_c10d._world
        for group, name in world.pg_names.items():
            torch._C._distributed_c10d._register_process_group(name, group)

    def parameter_names(self, rank: int, indices: Sequence[int]) -> Sequence[str]:
        """Return the names of DDP parameters that an error gives by index; () if they are unknown."""
        return reducer_parameter_names(self._wrappers, rank, indices)

    # --- making groups ------------------------------------------------------------------------------------------------

    def _new_process_group_helper(
        self,
        original: Callable[..., Any],
        group_size: int,
        group_rank: int,
        global_ranks_in_group: list[int],
        backend: str,
        store: Any,
        group_name: str,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        if backend == FAKE or self._is_own_backend(backend):
            return original(
                group_size, group_rank, global_ranks_in_group, backend, store, group_name, *arguments, **options
            )
        if not global_ranks_in_group and not self._makes_groups:
            self._check_world(group_rank, group_size)
            _check_backend(backend)
        return self._groups.new_group(
            global_ranks_in_group,
            backend,
            store,
            group_name,
            timeout=options.get("timeout"),
            tag=options.get("pg_tag"),
            device=options.get("device_id"),
            description=options.get("group_desc"),
            is_unconnected=options.get("enable_reconfigure", False),
        )

    def _direct_gloo(self, original: Any) -> Any:
        return _GlooClass(original, self._groups.gloo_group, self._host)

    def _is_own_backend(self, backend: str) -> bool:
        """True if the program has registered the backend itself: torch then makes the group, and nothing of the group
        is simulated. Raise if the group is to have another backend, too."""
        plugins = dist.Backend._plugins.items()  # torch 2.14 registers its own backends, too
        own = {name.lower() for name, each in plugins if each.creator_fn.__module__ != distributed_c10d.__name__}
        own -= {FAKE, _THREADED}
        names = {part.partition(":")[2] or part for part in str(backend).lower().split(",")}
        if not names & own:
            return False
        if len(names) > 1:
            line = (
                f"the program asks for a group with backend {backend!r}, of which {min(names & own)!r} is its own, "
                "expected a backend of its own alone: make two groups"
            )
            self._host.abort_run(UsageError(line))
            raise UsageError(line)
        (name,) = names
        self._host.send_request(ReportLockUse(f'backend "{name}"'))
        text = f'{NOT_CHECKED}the calls of groups on "{name}", a backend of the program\'s own, which moves their data'
        self._host.send_request(WriteNote(EventKind.NOTE, text))
        return True

    def _split_group(
        self,
        original: Callable[..., Any],
        parent_pg: Any = None,
        split_ranks: Any = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: Any = None,
    ) -> Any:
        return self._groups.split_group(
            parent_pg, split_ranks, timeout=timeout, backend=backend, description=group_desc
        )

    def _set_pg_timeout(self, original: Callable[..., None], timeout: timedelta, group: Any = None) -> None:
        """Set the time-out of a simulated group, which torch takes for no group of gloo."""
        group = group or distributed_c10d._get_default_group()
        if isinstance(group, NamedGroup):
            group.set_timeout(timeout)
        else:
            original(timeout, group)

    def _init_process_group(
        self, original: Callable[..., None], backend: Any = None, *arguments: Any, **options: Any
    ) -> None:
        """Replace `init_process_group` for programs that run inside a rank.

        The simulator makes the default group before a program starts. After a destroy, the program may make a new one.
        """
        if backend == FAKE:
            return original(backend, *arguments, **options)
        if distributed_c10d.GroupMember.WORLD is not None:
            raise ValueError(
                "trying to initialize the default process group twice! The simulator has done it before the "
                "program starts: leave init_process_group out, or guard it with `if not dist.is_initialized():`"
            )
        options |= dict(zip(("init_method", "timeout", "world_size", "rank", "store"), arguments, strict=False))
        given = self._own_rank_and_world_size(options.get("rank", -1), options.get("world_size", -1))
        store, url = options.get("store"), options.get("init_method")
        if store is None and _is_file(url):
            return original(backend or "gloo", **options | given)
        if store is None or blocks_process(store):
            store = self._groups.rendezvous_store(options.get("timeout"))
        options |= given | {"init_method": None, "store": store}
        return original(backend or "gloo", **options)

    def _rendezvous(
        self, original: Callable[..., Any], url: str, rank: int = -1, world_size: int = -1, **options: Any
    ) -> Any:
        """Replace torch's rendezvous, for an `init_process_group` that was imported by name."""
        given = self._own_rank_and_world_size(rank, world_size)
        if _is_file(url):
            return original(url, **given, **options)
        return iter([(self._groups.rendezvous_store(options.get("timeout")), given["rank"], given["world_size"])])

    def _rendezvous_store(
        self, original: Callable[..., Any], hostname: str, port: int, *arguments: Any, **options: Any
    ) -> Any:
        """Make the simulated store for torch's own rendezvous by tcp:// and env://.

        Under torchrun each rank is a client, so torch's own function finds a server only at the port of the agent."""
        if not 0 <= port < 2**16 or (uses_agent_store() and not is_agent_port(port)):
            return original(hostname, port, *arguments, **options)
        return self._groups.rendezvous_store(arguments[2] if len(arguments) > 2 else options.get("timeout"), port)

    def _check_world(self, rank: int, world_size: int) -> None:
        """Raise for a rank or world size that the run does not have."""
        size, own = self._host.world_size, self._host.running_thread.rank
        if world_size not in (-1, size):
            line = (
                f"the program asks for world size {world_size}, expected {size}, the number of ranks that run: "
                f"take world size {world_size} (--world-size {world_size}), or let the program read WORLD_SIZE"
            )
        elif rank not in (-1, own):
            line = (
                f"the program of rank {own} asks for rank {rank}, expected {own}: let it read RANK, "
                "or pass the number that it was started with"
            )
        else:
            return
        self._host.abort_run(UsageError(line))
        raise UsageError(line)

    def _own_rank_and_world_size(self, rank: int, world_size: int) -> dict[str, int]:
        """Return the running rank's number and the world size. Raise if the program asks for other values."""
        given = {"world_size": self._host.world_size, "rank": self._host.running_thread.rank}
        for name, asked in (("world_size", world_size), ("rank", rank)):
            if asked not in (-1, given[name]):
                raise ValueError(
                    f"init_process_group got {name} {asked}, expected {given[name]}: leave rank and world_size "
                    "out, or read RANK and WORLD_SIZE"
                )
        return given

    # --- what a program says ------------------------------------------------------------------------------------------

    def _report_agreed_value(self, original: Callable[[str, object], None], name: str, value: object) -> None:
        self._host.send_request(ReportAgreedValue(str(name), agreeing.text_of_value(value), current_user_site()))

    # --- waiting for futures ------------------------------------------------------------------------------------------

    def _wrap_future_wait(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def wait(future: Any) -> Any:
            if self._host.is_rank_thread() and not original_done(future):
                wait_for_future(self._host, future, original_done)
            return original(future)

        original_done = torch._C.Future.done
        return wait

    def _wrap_future_done(self, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda future: future_is_done(self._host, future, original)

    def _wrap_future_callback(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def add_callback(future: Any, callback: Any) -> Any:
            note_callback(self._host, future)
            return original(future, callback)

        return add_callback

    def _wrap_future_set_result(self, original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def set_result(future: Any, result: Any) -> None:
            set_future(self._host, future, partial(original, future, result))

        return set_result


def _attach_nan_check(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda group: group.hooks.check_for_nan(group.rank()) if isinstance(group, NamedGroup) else original(group)


def _is_file(url: object) -> bool:
    return str(url).startswith("file:")


def _notice_replica(host: Host, fact: ReplicaFact) -> None:
    host.send_request(Noticed(NoticedKind.REPLICA, detail=fact))


def _check_backend(backend: str) -> None:
    """Raise torch's error if no backend has this name."""
    known = dist.Backend
    for name in distributed_c10d.BackendConfig(known(backend)).get_device_backend_map().values():
        if name not in (*known.backend_list, known.UNDEFINED) and name.upper() not in known._plugins:
            raise AssertionError(f"Unknown backend type {name}")


class _GlooClass:
    """Stands for torch's ProcessGroupGloo. Its constructor makes a simulated group."""

    def __init__(self, original: Any, make_group: Callable[..., Any], host: Host) -> None:
        self._original, self._make_group, self._host = original, make_group, host

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return (self._make_group if self._host.is_rank_thread() else self._original)(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._original) or (isinstance(value, SimulatedGroup) and value.name() == "gloo")
