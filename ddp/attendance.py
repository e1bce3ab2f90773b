"""Who still has input, and what those who have are about to call: the protocol of a join.

Note [Rounds]
    Before each forward every rank says whether it has input: one small all_reduce. While everybody has, that is all.
    Once a rank has joined, the ranks present announce each collective they are about to make in a round of its own,
    and the joined rank makes it, too, with a contribution that changes nothing. So it follows whatever the others do:
    any number of models and forwards, in any order, with collectives of the model's or the loop's own in between.

    Every rank sees every rank's row of a round. So a rank that left by an exception, ranks that are about to do
    different things, and calls that cannot be shadowed are found by all ranks in the same round, and all of them
    raise.

Note [Iterations]
    torch's Join asks for something narrower: a joined rank shadows one iteration at a time, and its Join counts the
    ranks with input in between. There the rounds begin when the count falls short, and end with the iteration: when
    the gradients are reduced, or after a forward that has none to reduce.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d

from ddp.announcement import NARROW, WIDE, Announcement, Forward, Kind, Round, ranks_text, settle
from ddp.errors import JoinError
from ddp.group_store import leave_word, read_word
from ddp.interception import Interception
from ddp.neutral import OPERATIONS, Collective, describe, take_part
from ddp.reducer import Reducer

__ddp_phases__ = {"_exchange": "join control", "_take_part": "following"}


class Member(Protocol):
    """A wrapped model inside a join."""

    reducer: Reducer


@dataclass(frozen=True, slots=True)
class Roll:
    """Who takes part in a forward; ranks are numbers within the group."""

    present: tuple[int, ...]
    source: int
    """The rank whose buffers everybody takes."""
    samples: tuple[int, ...] = ()
    """How many samples each rank has, by rank; empty if nobody counts."""


class Attendance:
    """One rank's part in a join.

    `count_present`, for a join that has its own count of ranks with input (Note [Iterations]): called before each
    forward. `throws`: raise on all ranks as soon as one runs out of input.
    """

    def __init__(
        self,
        members: Sequence[Member],
        group: ProcessGroup,
        device: torch.device,
        *,
        count_present: Callable[[], int] | None = None,
        throws: bool = False,
    ) -> None:
        self.members = tuple(members)
        self.group = group
        self.present = tuple(range(dist.get_world_size(group)))
        """The ranks that had input when last asked."""
        self.is_over = False
        """An error has ended the join, on all ranks alike."""
        self._rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)
        self._device = device
        self._count_present = count_present
        self._throws = throws
        self._announces = False
        self._is_quiet = False
        self._is_following = False
        """This rank ran out of input, and does what the others do."""
        self._interception: Interception | None = None
        self._groups = _groups_like(group)
        self.counts_itself = count_present is None
        self._thread = threading.get_ident()

    # --- on a rank with input -----------------------------------------------------------------------------------------

    def call_roll(self, member: Member, forward: Forward, samples: int) -> Roll:
        """Before a forward: say that this rank has input, and hear who else has."""
        row = Announcement(Kind.FORWARD, self.members.index(member), forward, samples)
        if self._count_present is None:
            told = self._hold(row).samples
        else:
            self.end_iteration()
            told = ()
            if self._count_present() < self._size:
                self._announces = True
                told = self._hold(row).samples
        return Roll(self.present, self.present[-1], told)

    def end_iteration(self) -> None:
        """The forward just called has nothing to reduce, or its gradients are reduced."""
        if self._count_present is not None and self._announces:
            self._hold(Announcement(Kind.END))
            self._stop_announcing()

    @contextmanager
    def step(self, member: Member, kind: Kind, bucket: int) -> Iterator[None]:
        """Around a collective of a member's reducer."""
        if self._announces and not self._is_quiet:
            self._hold(Announcement(kind, self.members.index(member), bucket))
        with self._quiet():
            yield

    @contextmanager
    def _collective(self, group: int, operation: str, arguments: tuple[Any, ...]) -> Iterator[None]:
        """Around any other collective, of the join's group or one with the same ranks."""
        if self._is_quiet or not self._is_programs():
            yield
            return
        collective = describe(operation, arguments)
        details = () if collective is None else (group, *collective.encode())
        if not details or len(details) > WIDE - NARROW:
            self._hold(Announcement(Kind.UNSHADOWED, details=(OPERATIONS.index(operation),)))
        else:
            self._hold(Announcement(Kind.COLLECTIVE, details=details))
        with self._quiet():
            yield

    @contextmanager
    def _part_of_group(self, ranks: Sequence[int], operation: str, arguments: tuple[Any, ...]) -> Iterator[None]:
        """Around a collective of a group that some ranks of the join do not belong to."""
        away = [rank for rank in ranks if rank not in self.present]
        if away and not self._is_quiet:
            raise JoinError(
                f"{operation} in a group of {ranks_text(ranks)}, but {ranks_text(away)} ran out of input, and only "
                "groups of all ranks of the join can be followed: use one, or stop before the first rank joins"
            )
        yield

    def _is_programs(self) -> bool:
        """Whether this is the program's own thread, or a backward; callbacks of other calls are part of those."""
        return threading.get_ident() == self._thread or torch._C._current_graph_task_id() != -1

    # --- on a rank that has none --------------------------------------------------------------------------------------

    def shadow_until_all_joined(self) -> int:
        """Follow the others until nobody has input; return the authoritative rank: the last, of several the highest."""
        while True:
            last = self.present
            settled = self._hold(Announcement(Kind.JOINED))
            if not settled.present:
                return last[-1]
            self._follow(settled.call)

    def shadow_iteration(self) -> None:
        """Follow the others to the end of one iteration."""
        self._announces = True
        while True:
            call = self._hold(Announcement(Kind.JOINED)).call
            if call is None or call.kind is Kind.END:
                self._stop_announcing()
                return
            self._follow(call)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank leaves by `error`."""
        leave_word(self.group, f"ddp/join/{self._rank}", f"{type(error).__name__}: {error}")
        self._exchange(Announcement(Kind.FAILED))

    def _follow(self, call: Announcement | None) -> None:
        """Make the call that the ranks present are about to make."""
        if call is None:
            return
        reducer = self.members[call.engine].reducer
        self._is_following = True
        with self._quiet():
            if call.kind is Kind.BUCKET:
                reducer.shadow_bucket(call.number)
            elif call.kind is Kind.USED_MAP:
                reducer.shadow_used_map()
            elif call.kind is Kind.REBUILD:
                reducer.rebuild(self.present[-1])
            elif call.kind is Kind.COLLECTIVE:
                self._take_part(call.details)

    def _take_part(self, details: Sequence[int]) -> None:
        group, *numbers = details
        take_part(Collective.decode(numbers), self._groups[group], self._device)

    def __ddp_call__(self) -> dict[str, object]:
        """What its calls belong to, for a diagnosis."""
        return {"wrapper": self.members[0], "shadow": self._is_following}

    # --- rounds -------------------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether every rank has input."""
        return len(self.present) == self._size

    def _hold(self, row: Announcement) -> Round:
        """Hold a round; raise JoinError, on all ranks alike, if it shows that they cannot go on together."""
        settled = self._exchange(row)
        self.present = settled.present or self.present
        problem = self._problem(settled)
        if problem is not None:
            self.close()
            self.is_over = True
            raise JoinError(problem)
        if settled.present and not self.is_complete:
            self._start_announcing()
        return settled

    def _exchange(self, row: Announcement) -> Round:
        width = WIDE if self._announces else NARROW
        rows = torch.zeros(self._size, width, dtype=torch.int64)
        rows[self._rank] = torch.tensor(row.encode(width))
        rows = rows.to(self._device)
        with self._quiet():
            dist.all_reduce(rows, group=self.group)
        return settle([Announcement.decode(numbers) for numbers in rows.tolist()])

    def _problem(self, settled: Round) -> str | None:
        if settled.failed:
            words = [f"rank {rank} left it by {read_word(self.group, f'ddp/join/{rank}')}" for rank in settled.failed]
            return f"the join is over: {'; '.join(words)}"
        if not settled.present:
            return None
        joined = [rank for rank in range(self._size) if rank not in settled.present]
        if joined and self._throws:
            return f"{ranks_text(joined)} ran out of input (throw_on_early_termination)"
        if settled.disagreement is not None:
            return f"the ranks inside the join do different things: {settled.disagreement}"
        return self._unshadowed(settled.call, joined) if settled.call is not None else None

    def _unshadowed(self, call: Announcement, joined: Sequence[int]) -> str | None:
        away = f"{ranks_text(joined)}, which ran out of input"
        if call.kind is Kind.UNSHADOWED and joined:
            return f"{OPERATIONS[call.details[0]]} cannot be made on behalf of {away}: leave it out inside the join"
        if call.kind is Kind.COLLECTIVE:
            collective = Collective.decode(call.details[1:])
            if collective.root in joined and collective.operation in ("broadcast", "scatter"):
                return f"{collective} needs what only its root has, {away}: take a root that still has input"
        return None

    def _start_announcing(self) -> None:
        self._announces = True
        if self._interception is None:
            self._interception = Interception(
                {
                    **{group: partial(self._part_of_group, ranks) for group, ranks in _groups_of_part(self.group)},
                    **{group: partial(self._collective, place) for place, group in enumerate(self._groups)},
                }
            )

    def _stop_announcing(self) -> None:
        self._announces = False
        if self._interception is not None:
            self._interception.stop()
            self._interception = None

    def close(self) -> None:
        """Leave the process group as it was."""
        self._stop_announcing()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Calls inside are announced already, or need not be."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before


def _groups_like(group: ProcessGroup) -> list[ProcessGroup]:
    """The group, and others of the same ranks in the same order, alike on all ranks."""
    ranks = dist.get_process_group_ranks(group)
    others = [g for g in _all_groups() if g is not group and dist.get_process_group_ranks(g) == ranks]
    return [group, *others]


def _groups_of_part(group: ProcessGroup) -> list[tuple[ProcessGroup, list[int]]]:
    ranks = dist.get_process_group_ranks(group)
    found = [(g, dist.get_process_group_ranks(g)) for g in _all_groups() if g is not group]
    return [
        (g, [ranks.index(rank) for rank in own if rank in ranks])
        for g, own in found
        if own != ranks and set(own) & set(ranks)
    ]


def _all_groups() -> list[ProcessGroup]:
    """The groups this rank belongs to, in the order they were made; torch has no public list of them."""
    return [group for group in distributed_c10d._world.pg_map if isinstance(group, ProcessGroup)]
