"""The backend: puts the simulated process group under torch.distributed while an execution runs.

torch.distributed is not told to use another backend by name: inside a rank every group is simulated, whatever backend the
program asks for, and `dist.get_backend()` answers what it asked for ("gloo" for the default group). So programs, libraries
and DDP run unmodified. What is replaced, and put back afterwards:

- `distributed_c10d._new_process_group_helper`, through which every group is made;
- `init_process_group`, which has been called already when a rank's program starts;
- `torch._C.Future.wait` and `done`, so that waiting for a future lets the other ranks run;
- `torch.distributed._verify_params_across_processes`, see Note [Counting parameters];
- `Reducer._set_forward_pass_work_handle`, see Note [Works that only C++ holds], and `_delay_all_reduce`,
  see Note [Static graphs]; both in reducer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group
from torch.distributed import PrefixStore, distributed_c10d

from simulator.calls import Signature
from simulator.process_group import reducer
from simulator.process_group.group import SimulatedGroup
from simulator.process_group.origins import OriginTracker
from simulator.process_group.store import MemoryStore, StoreContents
from simulator.process_group.work import wait_for_future
from simulator.runtime.execution import Execution
from simulator.transport.payload import Payload

DEFAULT_GROUP = "default"
"""How the group of all ranks is called in calls and reports; torch calls it "0"."""


class Backend:
    """The simulated backend of one execution."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._contents = StoreContents()
        self._trackers = [OriginTracker() for _ in execution.ranks]
        self._everybody = tuple(range(execution.world_size))
        self._same_rank = {rank: rank for rank in self._everybody}

    # --- around the whole run -----------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace what is listed above, and put it back at the end."""
        with ExitStack() as stack:
            for owner, name, replacement in self._replacements():
                original = getattr(owner, name)
                setattr(owner, name, replacement(original))
                stack.callback(setattr, owner, name, original)
            yield

    def _replacements(self) -> list[tuple[Any, str, Callable[[Any], Any]]]:
        return [
            (distributed_c10d, "_new_process_group_helper", self._group_maker),
            (distributed_c10d, "init_process_group", self._second_init),
            (dist, "init_process_group", self._second_init),
            (dist, "_verify_params_across_processes", self._parameter_check),
            (torch._C.Future, "wait", self._future_wait),
            (torch._C.Future, "done", self._future_done),
            (dist.Reducer, "_set_forward_pass_work_handle", reducer.keep_forward_work),
            (dist.Reducer, "_delay_all_reduce", partial(reducer.reduce_at_once, self._execution)),
        ]

    def _is_rank_thread(self) -> bool:
        running = self._execution.scheduler.running
        return running is not None and running.thread.ident == get_ident()

    # --- around each rank's program -----------------------------------------------------------------------------------

    @contextmanager
    def rank_entered(self, rank: int) -> Iterator[None]:
        """Give the running rank its default group, on its own thread."""
        torch.autograd.set_multithreading_enabled(False)  # backward, hooks and finalisation stay on this thread
        world = distributed_c10d._world
        store = MemoryStore(self._execution, self._contents)
        members = self._everybody
        group = self._make_group("0", DEFAULT_GROUP, members, rank, "gloo", PrefixStore("default_pg/0", store), "default_pg")
        world.default_pg = group
        world.pg_group_ranks[group] = self._same_rank
        world.group_count = 1
        yield

    # --- making groups ------------------------------------------------------------------------------------------------

    def _group_maker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def new_process_group_helper(
            group_size: int,
            group_rank: int,
            global_ranks_in_group: list[int],
            backend: str,
            store: Any,
            group_name: str,
            *arguments: Any,
            **options: Any,
        ) -> tuple[Any, Any]:
            if not self._is_rank_thread():
                return original(  # type: ignore[no-any-return]
                    group_size, group_rank, global_ranks_in_group, backend, store, group_name, *arguments, **options
                )
            return self._new_group(global_ranks_in_group, backend, store, group_name, options)

        return new_process_group_helper

    def _new_group(
        self, ranks: list[int], backend: str, store: Any, name: str, options: dict[str, Any]
    ) -> tuple[Any, Any]:
        """What distributed_c10d._new_process_group_helper does, with a simulated group."""
        world = distributed_c10d._world
        rank = self._execution.me.rank
        if name in world.pg_names.values():
            raise ValueError("The specified group name has already been created, please use a different group name")
        tag = options.get("pg_tag")
        if tag:
            existing = distributed_c10d._find_pg_by_ranks_and_tag(tag, ranks)
            if existing:
                return existing, world.pg_map[existing][1]
        is_default = not ranks
        members = self._everybody if is_default else tuple(ranks)
        if rank not in members:
            self._execution.checkpoint()
            return distributed_c10d.GroupMember.NON_GROUP_MEMBER, None
        label = DEFAULT_GROUP if is_default else name
        prefix_store = PrefixStore(f"{name}/", store)
        group = self._make_group(name, label, members, rank, backend, prefix_store, options.get("group_desc"), tag)
        if not is_default:
            group.rendezvous()
        return group, prefix_store

    def _make_group(
        self,
        name: str,
        label: str,
        members: tuple[int, ...],
        rank: int,
        backend: str,
        store: Any,
        description: str | None,
        tag: str | None = None,
    ) -> SimulatedGroup:
        world = distributed_c10d._world
        group = SimulatedGroup(
            self._execution,
            self._trackers[rank],
            label=label,
            members=members,
            rank=rank,
            store=store,
        )
        group._set_group_name(name)
        group._set_group_desc(description or "undefined")
        world.pg_map[group] = (backend, store)
        world.pg_names[group] = name
        world.pg_backend_config[group] = str(distributed_c10d.BackendConfig(distributed_c10d.Backend(backend)))
        _register_process_group(name, group)
        tag = f"user:{tag}" if tag else f"ptd:{name}"
        if not tag.startswith("user:"):
            world.tags_to_pg.setdefault("", []).append(group)
        world.tags_to_pg.setdefault(tag, []).append(group)
        world.pg_to_tag[group] = tag
        return group

    def _second_init(self, original: Callable[..., None]) -> Callable[..., None]:
        def init_process_group(*arguments: Any, **options: Any) -> None:
            if self._is_rank_thread() and distributed_c10d.GroupMember.WORLD is not None:
                raise ValueError(
                    "trying to initialize the default process group twice! The simulator has done it before the program "
                    "starts: leave init_process_group out, or guard it with `if not dist.is_initialized():`"
                )
            original(*arguments, **options)

        return init_process_group

    # --- waiting for futures ------------------------------------------------------------------------------------------

    def _future_wait(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def wait(future: Any) -> Any:
            if self._is_rank_thread() and not original_done(future):
                wait_for_future(self._execution, future, original_done)
            return original(future)

        original_done = torch._C.Future.done
        return wait

    def _future_done(self, original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def done(future: Any) -> bool:
            if not original(future) and self._is_rank_thread() and self._execution.me.pending:
                self._execution.poll()
            return original(future)

        return done

    # --- DDP's check of its parameters --------------------------------------------------------------------------------

    def _parameter_check(self, original: Callable[..., None]) -> Callable[..., None]:
        """Note [Counting parameters].

        verify_params_across_processes (torch/csrc/distributed/c10d/reducer.cpp) gathers every rank's parameter count into
        world-size tensors on each rank: a million tensors for 1,024 ranks, half the time of the whole run. So it is given a
        view of the group that looks like one rank: the same all_gather is issued, its N answers are compared here, and all
        the rest (the broadcast of rank 0's shapes, and the comparison with them) stays torch's own.
        """

        def verify(group: Any, parameters: list[torch.Tensor], logger: Any = None) -> None:
            if isinstance(group, SimulatedGroup):
                group = _OneRankView(group, len(parameters))
            if logger is None:
                return original(group, parameters)
            return original(group, parameters, logger)

        return verify


class _OneRankView(dist.ProcessGroup):
    """A simulated group as the parameter check sees it, see Note [Counting parameters]."""

    def __init__(self, group: SimulatedGroup, parameter_count: int) -> None:
        super().__init__(group.getRank(), 1)
        self._group = group
        self._parameter_count = parameter_count

    def getRank(self) -> int:  # noqa: N802 - torch's name
        return self._group.getRank()

    def getSize(self) -> int:  # noqa: N802
        return 1

    def allgather(self, outputs: Any, inputs: list[torch.Tensor], opts: Any = None) -> Any:
        counts: list[torch.Tensor] = []
        signature = Signature("all_gather", ((1,),), "int64")
        work = self._group._issue(signature, Payload(inputs, (), gathered=counts), [])
        work.wait()
        outputs[0][0].copy_(inputs[0])
        for rank, count in enumerate(counts):
            if int(count) != self._parameter_count:
                raise RuntimeError(
                    f"DDP expects same model across all ranks, but Rank {self.getRank()} has {self._parameter_count} "
                    f"params, while rank {rank} has inconsistent {int(count)} params."
                )
        return work

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._group.broadcast(tensors, opts)
