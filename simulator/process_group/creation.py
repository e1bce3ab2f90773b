"""Makes groups inside ranks: torch's steps around a backend, with simulated groups.

torch makes every group through `distributed_c10d._new_process_group_helper`, whichever way the program asked for it:
init_process_group, new_group, new_subgroups, a device mesh. `split_group` is the exception, since it asks the C++
backend.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from inspect import unwrap
from typing import Any, NamedTuple

import torch
from torch.distributed import distributed_c10d
from torch.optim import Optimizer

from ddpsim.simulator.attribution.meshes import find_mesh_under_construction, mesh_dimension_of
from ddpsim.simulator.attribution.origins import OriginTracker
from ddpsim.simulator.attribution.phases import FrameReaders
from ddpsim.simulator.attribution.wrapper_registry import WrapperRegistry
from ddpsim.simulator.backend_semantics import GLOO, BackendSemantics
from ddpsim.simulator.calls import Call, Signature
from ddpsim.simulator.diagnosis.rank_errors import OF_ATTEMPT, OLD_ADDRESS
from ddpsim.simulator.kernel.requests import AnnounceGroup, Checkpoint, NameGroup, ReportLockUse
from ddpsim.simulator.process_group.argument_rules import RulesByDevice, argument_rules_of, has_nccl
from ddpsim.simulator.process_group.call_hooks import HAS_HOOKS
from ddpsim.simulator.process_group.group import NO_RECONFIGURE, SimulatedGroup, store_under
from ddpsim.simulator.process_group.issuing import CallIssuer
from ddpsim.simulator.process_group.store import SimulatedStore
from ddpsim.simulator.process_group.through_torch import TorchDispatch
from ddpsim.simulator.process_group.user_stores import server_key, store_place, uses_agent_store
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.host import Host

DEFAULT_GROUP = "default"
"""The label, used in findings, of the group of all ranks. torch calls this group "0"."""

_ANSWERS_NON_MEMBER = hasattr(distributed_c10d, "_NonGroupMember")

_SPLIT_NEEDS_DEVICE = next(
    (
        text
        for text in unwrap(distributed_c10d.split_group).__code__.co_consts
        if str(text).startswith("No device associated with the default pg")
    ),
    None,
)
"""The error of torch's split_group where the default group has no device; None if this torch splits without one."""

_NAME_LENGTH = 8
"""How many characters of a hashed group name are shown (torch makes one for use_local_synchronization)."""


class RequestedBackend(NamedTuple):
    """The backend name that a program asks for, and what follows from that name."""

    backend: str
    has_nccl: bool
    answering: str
    """The backend name that the group's `get_backend` answers."""
    config: str
    """The `BackendConfig` that torch makes of the backend's name."""
    rules: RulesByDevice


def requested_backend(backend: str) -> RequestedBackend:
    """Return what follows from a backend's name. A program may have registered backends of its own with torch."""
    config = str(distributed_c10d.BackendConfig(distributed_c10d.Backend(backend)))
    return RequestedBackend(backend, has_nccl(backend), _default_backend(backend), config, argument_rules_of(backend))


class GroupMaker:
    """Makes the process groups of one run; each method makes a group for the rank that is running."""

    def __init__(
        self, host: Host, wrappers: WrapperRegistry, *, poisons: bool = False, semantics: BackendSemantics = GLOO
    ) -> None:
        self._host = host
        self._poisons = poisons
        self._semantics = semantics
        phases = FrameReaders()
        self._trackers = [OriginTracker(host, wrappers, phases, rank) for rank in range(host.world_size)]
        self.through_torch = TorchDispatch()
        self._made: list[dict[str, int]] = [defaultdict(int) for _ in range(host.world_size)]
        self._at_place: list[dict[str, int]] = [defaultdict(int) for _ in range(host.world_size)]
        """By rank: how often it has made a group at a place in a store."""
        self._has_made_nccl = [False] * host.world_size
        """By rank: True if the rank has made a group with NCCL, so a group without NCCL has another backend."""
        self._gloo = requested_backend("gloo")
        self._everybody = tuple(range(host.world_size))
        self._same_rank = {rank: rank for rank in self._everybody}

    def make_default_group(self, rank: int) -> None:
        """Make the default group, as init_process_group does, before the rank's program starts."""
        world = distributed_c10d._world
        store = self.new_store("default_pg/0//")
        label = self._unique_label("0", DEFAULT_GROUP, self._everybody, rank, store)
        group = self._make_group("0", label, self._everybody, rank, self._gloo, store, description="default_pg")
        world.default_pg = group
        world.pg_group_ranks[group] = self._same_rank
        world.group_count = 1

    def new_store(self, prefix: str = "", timeout: timedelta | None = None) -> SimulatedStore:
        """Return the running rank's handle of the key-value store that all ranks share."""
        store = SimulatedStore(self._host, prefix)
        if timeout is not None:
            store._timeout = timeout
        return store

    def rendezvous_store(self, timeout: timedelta | None, port: int | None = None) -> SimulatedStore:
        """Return the store of a default group. torchrun's agent has one for all; otherwise rank 0 opens a new one for
        each default group, at its port, and a rank that looks at another port does not find it."""
        rank = self._host.running_thread.rank
        earlier = self._made[rank]["0"] - (distributed_c10d.GroupMember.WORLD is not None)
        if uses_agent_store():
            return self.new_store(timeout=timeout)
        if earlier:
            self._host.send_request(ReportLockUse("a second default group, which may meet rank 0's old store"))
        if port is None:
            return self.new_store(f"store {earlier + 1}/" if earlier else "", timeout)
        if rank == 0:  # so that the program's own clients of that port find it
            self.new_store().set(server_key(port), str(earlier + 1))
        return self.new_store(store_place(port, earlier + 1), timeout)

    def new_group(
        self,
        ranks: Sequence[int],
        backend: str,
        store: Any,
        name: str,
        *,
        timeout: timedelta | None = None,
        tag: str | None = None,
        device: torch.device | None = None,
        description: str | None = None,
        is_unconnected: bool = False,
    ) -> tuple[Any, Any]:
        """Make a group, as distributed_c10d._new_process_group_helper does. Without `ranks`, make the default group.
        `is_unconnected`: it has no members before it is reconfigured."""
        world = distributed_c10d._world
        rank = self._host.running_thread.rank
        if name in world.pg_names.values():
            raise ValueError("The specified group name has already been created, please use a different group name")
        if device is not None and (device.index is None or device.type == "cpu"):
            raise ValueError("init_process_group device_id parameter must be an accelerator with an index")
        distributed_c10d._check_valid_timeout(timeout)
        if tag:
            existing = distributed_c10d._find_pg_by_ranks_and_tag(tag, list(ranks))
            if existing:
                return existing, world.pg_map[existing][1]
        members = tuple(ranks) or self._everybody
        proposed = self._mesh_label(description, members, rank) or _proposed_label(name, description)
        prefix = store_under(store, f"{name}/")
        label = self._unique_label(name, proposed if ranks else DEFAULT_GROUP, members, rank, prefix)
        if rank not in members:
            self._announce_as_outsider(label, members)
            return distributed_c10d.GroupMember.NON_GROUP_MEMBER, None
        group = self._make_group(
            name,
            label,
            members,
            rank,
            requested_backend(backend),
            prefix,
            timeout=timeout,
            description=description,
            tag=tag,
        )
        if device is not None:
            group.bound_device_id = device
        if not is_unconnected:
            self._exchange_addresses(group, prefix, rank)
            group.rendezvous()
        elif group.name() == "gloo":
            group.await_reconfigure()
        else:
            raise NotImplementedError(NO_RECONFIGURE)
        return group, prefix

    def split_group(
        self,
        parent: Any,
        split_ranks: Sequence[Sequence[int]] | None,
        *,
        timeout: timedelta | None,
        backend: str | None,
        description: str | None,
    ) -> Any:
        """Make groups as torch's split_group does. Every rank of the parent calls it."""
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        world = distributed_c10d._world
        default: Any = distributed_c10d._get_default_group()
        if _SPLIT_NEEDS_DEVICE and not default.bound_device_id:
            raise RuntimeError(_SPLIT_NEEDS_DEVICE)
        parent = parent or default
        if parent not in world.pg_group_ranks:
            raise ValueError(f"Group {parent} is not registered")
        if default.rank() not in world.pg_group_ranks[parent]:
            raise ValueError(f"Global rank {default.rank()} is not part of the parent group {parent}")
        if _SPLIT_NEEDS_DEVICE and not torch.accelerator.is_available():
            raise RuntimeError("No backend for the parent process group or its backend does not support splitting")
        for split in split_ranks:
            _check_split(split, len(self._everybody))
        distributed_c10d._check_valid_timeout(timeout or timedelta(minutes=30))
        mine = next((sorted(split) for split in split_ranks if parent.rank() in split), None)
        parent.await_split()
        if mine is None:  # torch 2.14 returns something else on ranks outside
            return distributed_c10d.GroupMember.NON_GROUP_MEMBER if _ANSWERS_NON_MEMBER else None
        members = tuple(parent.members[rank] for rank in mine)
        name = distributed_c10d._process_group_name(mine, use_hashed_name=True)
        parent_backend, _ = world.pg_map[parent]
        rank = self._host.running_thread.rank
        description = description or f"{parent.group_desc}:split"
        proposed = self._mesh_label(description, members, rank) or _proposed_label(name, description)
        store = self.new_store(f"{name}//")
        label = self._unique_label(name, proposed, members, rank, store)
        asked = requested_backend(backend or parent_backend)
        group = self._make_group(name, label, members, rank, asked, store, timeout=timeout, description=description)
        group.bound_device_id = parent.bound_device_id
        world.pg_group_ranks[group] = {member: index for index, member in enumerate(members)}
        return group

    def gloo_group(
        self,
        store: Any,
        group_rank: int,
        size: int,
        options: Any = None,
        timeout: Any = None,
        enable_reconfigure: bool = False,
    ) -> Any:
        """Make a group as the constructor of torch's ProcessGroupGloo does: ranks find each other by the store, and
        torch does not register the group."""
        rank = self._host.running_thread.rank
        number = store.add(f"gloo/made by {group_rank}", 1)
        store.set(f"gloo/{number}/{group_rank}", f"{rank} {self._made[rank]['gloo'] + 1}")
        self._made[rank]["gloo"] += 1
        entries = [store.get(f"gloo/{number}/{each}").decode() for each in range(size)]
        members = tuple(int(each.split()[0]) for each in entries)
        name = f"gloo of {', '.join(entries)}"
        label = str(self._host.send_request(NameGroup(name, 1, "gloo")))
        if isinstance(options, timedelta):  # torch takes either
            options, timeout = None, options
        timeout = timeout or (options and options._timeout)
        return self._make_group(name, label, members, rank, self._gloo, store, timeout=timeout, is_backend=True)

    def init_p2p_op(
        self, original: Callable[..., None], operation: Any, op: Any, tensor: Any, *arguments: Any, **options: Any
    ) -> None:
        """Replace P2POp's `__init__`: also note which pipeline stage sends or receives the message."""
        original(operation, op, tensor, *arguments, **options)
        self._trackers[self._host.running_thread.rank].messages.record_message(tensor, sys._getframe(2))

    def count_optimizer_step(self, rank: int, optimizer: Optimizer) -> None:
        """Count an optimizer step of a rank for the units (such as FSDP modules) whose parameters it updated."""
        self._trackers[rank].steps.count_optimizer_step(optimizer)

    def _exchange_addresses(self, group: SimulatedGroup, store: Any, rank: int) -> None:
        """Find the other members by the store as gloo does, which does not look whether an address is new. With NCCL
        all members look for the first one.

        A member's first group at a place leaves no key here, since no address can be older, unless ranks are started
        again: a store that lasts has the addresses of the attempt before.
        """
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        mine, me = f"{group.label}, attempt {restarts}" if restarts != "0" else group.label, group.rank()
        kind = "cpu" if "gloo" in distributed_c10d._world.pg_backend_config[group] else "cuda"
        place = _place_of(group.getGroupName(), store) + kind
        self._at_place[rank][place] += 1
        is_first = self._at_place[rank][place] == 1
        if is_first and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
            return
        store.set(f"{kind}/{me}", mine)
        for number, member in enumerate(group.members if kind == "cpu" else group.members[:1]):
            if number == me:
                continue
            found = store.compare_set(f"{kind}/{number}", "", "").decode()
            if found != mine and (found or not is_first):  # where there is none, gloo waits for it
                older = OF_ATTEMPT if restarts != "0" else "of an earlier group"
                raise RuntimeError(f"{OLD_ADDRESS} rank {member}'s address {older}, expected that of {mine!r}")

    def _announce_as_outsider(self, label: str, members: tuple[int, ...]) -> None:
        """Tell the kernel which members a new group has in the view of this rank, itself no member."""
        host = self._host
        host.send_request(Checkpoint())
        host.send_request(
            AnnounceGroup(
                Call(host.running_thread.rank, label, 0, Signature("new_group", members=members), current_user_site())
            )
        )

    def _mesh_label(self, description: str | None, members: tuple[int, ...], rank: int) -> str | None:
        """Return the label of a device mesh's group; None for another group. Also record this rank's coordinates in the
        mesh, unless it has coordinates in a mesh of more dimensions."""
        dimension = mesh_dimension_of(description)
        grid = None if dimension is None else find_mesh_under_construction(sys._getframe(1))
        if dimension is None or grid is None:
            return None
        tracker, coordinates = self._trackers[rank], grid.coordinates_text(rank)
        if coordinates.count(",") > tracker.coordinates.count(",") or not tracker.coordinates:
            tracker.coordinates = coordinates
        return grid.group_name(dimension, members)

    def _unique_label(self, name: str, proposed: str, members: tuple[int, ...], rank: int, store: Any) -> str:
        """Return a group's label, its name in findings.

        A name that is used again, after a destroy, means another group. Groups with one member may share a name (nested
        new_subgroups makes such groups), as their calls never match each other. So their labels name the rank.
        """
        made = self._made[rank]
        made[name] += 1
        again = made[name]
        place = _place_of(name, store)
        self._at_place[rank][place] += 1
        if len(members) == 1 < len(self._everybody):
            proposed = f"{proposed} of rank {members[0]}"
        label = proposed if again == 1 else f"{proposed} ({again})"
        if len(members) > 1:
            return str(self._host.send_request(NameGroup(place, self._at_place[rank][place], label)))
        made[label] += 1
        return label if made[label] == 1 else f"{label} #{made[label]}"

    def _make_group(
        self,
        name: str,
        label: str,
        members: tuple[int, ...],
        rank: int,
        asked: RequestedBackend,
        store: Any,
        *,
        timeout: timedelta | None = None,
        description: str | None = None,
        tag: str | None = None,
        is_backend: bool = False,
    ) -> SimulatedGroup:
        """Make the running rank's handle of a group, and register it with torch, unless it `is_backend`."""
        world: Any = distributed_c10d._world

        def make_issuer(label: str, members: tuple[int, ...]) -> CallIssuer:
            return CallIssuer(
                self._host,
                self._trackers[rank],
                label=label,
                members=members,
                rank=rank,
                has_nccl=asked.has_nccl,
                poisons=self._poisons,
                through_torch=self.through_torch,
                is_beside_nccl=not asked.has_nccl and self._has_made_nccl[rank],
                semantics=self._semantics,
            )

        def make_again(members: tuple[int, ...], uuid: int, store: Any) -> CallIssuer:
            name_then, label_then = f"{name}/reconfigure/{uuid}/", f"{label}, uuid {uuid}"
            return make_issuer(self._unique_label(name_then, label_then, members, rank, store), members)

        group = SimulatedGroup(
            make_issuer(label, members),
            self.through_torch,
            rules=asked.rules,
            name=name,
            description=description or "undefined",
            store=store,
            backend_name=asked.answering,
            timeout=timeout or distributed_c10d.default_pg_timeout,
        )
        if os.environ.get("TORCH_DIST_NAN_CHECK") == "1" and HAS_HOOKS:
            group.hooks.check_for_nan(group.rank())
        group.make_issuer, group.is_backend = make_again, is_backend
        if is_backend:
            return group
        self._has_made_nccl[rank] |= asked.has_nccl
        world.pg_map[group] = (asked.backend, store)
        world.pg_names[group] = name
        world.pg_backend_config[group] = asked.config
        torch._C._distributed_c10d._register_process_group(name, group)  # type: ignore[arg-type]
        if not tag:
            world.tags_to_pg.setdefault("", []).append(group)
        tag = f"user:{tag}" if tag else f"ptd:{name}"
        world.tags_to_pg.setdefault(tag, []).append(group)
        world.pg_to_tag[group] = tag
        return group


def _place_of(name: str, store: Any) -> str:
    """Return where in a store the members of a group meet."""
    return store._prefix if isinstance(store, SimulatedStore) else name


def _proposed_label(name: str, description: str | None) -> str:
    short = name[:_NAME_LENGTH]
    return short if description in (None, "undefined") else f"{description} {short}"


def _check_split(split: Sequence[int], world_size: int) -> None:
    if len(split) == 0:
        raise ValueError("the split group cannot be empty")
    if len(split) > world_size:
        raise ValueError("the split group's size should be less or equal to the world_size set by init_process_group")
    if len(split) != len(set(split)):
        raise ValueError("the split group cannot have duplicate ranks")


def _default_backend(backend: str) -> str:
    """Return the backend name that answers for a group, out of those that the program asked for."""
    name = str(backend)
    if not any(sign in name for sign in ",:") and name != distributed_c10d.Backend.UNDEFINED:
        return name
    return "nccl" if has_nccl(backend) else "gloo"
