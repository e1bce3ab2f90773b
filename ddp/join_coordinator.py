"""Coordinates the ranks of a join: which have input, and which collectives they are about to make.

Note [Rounds]
    Before each forward the ranks hold a round: one small all_reduce, in which every rank says whether it has input.
    Once a rank has joined (run out of input), the other ranks also announce each collective in a round, and the joined
    rank makes it too, with a contribution that changes nothing; torch's engine has a fixed list of such calls
    (`_DDPJoinHook.main_hook`). Rounds show every rank's row to all ranks. So all of them raise in the same round if a
    rank left by an exception, if the announcements differ, or if a joined rank cannot answer a call.

Note [Leaving by an exception]
    While all ranks have input, nothing is announced: the others continue until the next round, and wait for this
    rank in each collective before it. So it makes these calls too, with zeros, and says in the round that it leaves.
    The log of earlier iterations predicts the calls, if iterations that began like this one continued in the same
    way. If not, only the models know which calls the others wait for.

Note [Iterations]
    With torch's Join, a joined rank answers one iteration at a time, and torch counts the ranks with input in between.
    Then rounds begin when the count is too small, and end with the iteration: when gradients are reduced, or after a
    forward without gradients to reduce.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d

from ddpsim.ddp.collective_table import OPERATIONS
from ddpsim.ddp.collectives import Collective, collective_of_call, make_neutral_collective, public_name
from ddpsim.ddp.errors import JoinError
from ddpsim.ddp.group_store import post_message, read_messages
from ddpsim.ddp.interception import CollectiveInterception
from ddpsim.ddp.join_protocol import (
    WIDE,
    WIDTH_WITHOUT_DETAILS,
    AnnouncedKind,
    AnnouncementRound,
    ForwardKind,
    JoinAnnouncement,
    JoinEvent,
    JoinState,
    calls_since_latest_forward,
    needed_row_width,
    next_join_state,
    predict_calls,
    read_round,
)
from ddpsim.ddp.reducer import Reducer
from ddpsim.ddp.text_formats import ranks_text

__ddp_phases__ = {"_gather_rows": "join control", "_make_call_without_input": "following"}

_REMEMBERED = 4096
"""The number of calls that a rank's log keeps: a few iterations of a large model."""


class JoinedModel(Protocol):
    """The interface of a wrapped model to a join's coordinator."""

    reducer: Reducer
    process_group: ProcessGroup

    @property
    def join_device(self) -> torch.device:
        """The device for the tensors that the join itself communicates."""

    def check_together(self) -> None:
        """Raise JoinError if the ranks' parameters may differ since an earlier join."""

    def begin_join(self, coordinator: JoinCoordinator, *, divides_by_initial_size: bool, weighs_samples: bool) -> None:
        """From now on, notify the coordinator before each forward and each reduction."""

    def end_join(self, coordinator: JoinCoordinator, authoritative: int | None) -> None:
        """Leave the join of `coordinator`; if rank `authoritative` is given, take over its parameters and buffers."""

    def make_calls_of_leaving_rank(self, *, with_buffers: bool) -> None:
        """Make, with zeros, the calls that other ranks still wait for in this iteration."""


@dataclass(frozen=True, slots=True)
class ForwardParticipants:
    """The ranks that take part in a forward, by their numbers in the group."""

    present: tuple[int, ...]
    source: int
    """The rank that broadcasts its buffers."""
    samples: tuple[int, ...] = ()
    """The number of samples of each rank; () if they are not counted."""


class JoinCoordinator:
    """One rank's part in a join. Ranks are numbers in the group.

    `count_present`, for torch's Join (Note [Iterations]), is called before each forward and returns the number of ranks
    with input. `tells_samples`: exchange the numbers of samples before each forward. `throws`: raise on all ranks as
    soon as one runs out of input.
    """

    def __init__(
        self,
        members: Sequence[JoinedModel],
        group: ProcessGroup,
        device: torch.device,
        *,
        count_present: Callable[[], int] | None = None,
        tells_samples: bool = False,
        throws: bool = False,
    ) -> None:
        self.members = tuple(members)
        self.group = group
        self.present = tuple(range(dist.get_world_size(group)))
        """The ranks that had input in the latest round (Note [Rounds])."""
        self._rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)
        self._world_ranks = dist.get_process_group_ranks(group)
        self._device = device
        self._count_present = count_present
        self._tells_samples = tells_samples
        self._throws = throws
        self._state = JoinState.COMPLETE
        self._log: deque[JoinAnnouncement] = deque(maxlen=_REMEMBERED)
        """Calls of this rank while all ranks had input; see Note [Leaving by an exception]."""
        self._latest_first: tuple[JoinedModel, ...] = ()
        """The wrapped models of the join, sorted by their latest forward, the most recent first."""
        self._groups: list[ProcessGroup] = []
        self._interception: CollectiveInterception | None = None
        self._thread = threading.get_ident()
        if self.counts_ranks_in_rounds:
            self._intercept_collectives()

    @property
    def counts_ranks_in_rounds(self) -> bool:
        """Whether rounds (Note [Rounds]) count the ranks with input; else torch's Join counts them."""
        return self._count_present is None

    @property
    def is_over(self) -> bool:
        """Whether an error has ended the join on all ranks."""
        return self._state in (JoinState.LEFT, JoinState.ENDED)

    @property
    def was_left_by_exception(self) -> bool:
        """Whether a rank left by an exception, so the ranks may be at different steps."""
        return self._state in (JoinState.LEAVING, JoinState.RETRACING, JoinState.LEFT) and self._size > 1

    def _change_state(self, event: JoinEvent) -> None:
        following = next_join_state(self._state, event)
        assert following is not None, f"{event.value} while {self._state.value}"
        self._state = following

    def announce_forward(
        self, member: JoinedModel, forward: ForwardKind, samples: int, *, continues: bool = False
    ) -> ForwardParticipants:
        """Before a forward: tell others that this rank has input. `continues`: an earlier forward is to be reduced."""
        if self.is_over:
            raise JoinError("a forward inside a join that an error has ended on all ranks: leave its context")
        self._latest_first = (member, *(other for other in self._latest_first if other is not member))
        row = JoinAnnouncement(AnnouncedKind.FORWARD, self.members.index(member), forward, samples)
        counts: tuple[int, ...] = ()
        if self._count_present is None:
            counts = self._exchange_and_check(row).samples
        else:
            if not continues:
                self.end_iteration()
                if self._count_present() < self._size:
                    self._change_state(JoinEvent.SOMEBODY_JOINED)
            if self._state is JoinState.ANNOUNCING or self._tells_samples:
                counts = self._exchange_and_check(row).samples
        self._log.append(replace(row, samples=0))
        return ForwardParticipants(self.present, self.present[-1], counts)

    def end_iteration(self) -> None:
        """Record that an iteration ended: its gradients are reduced, or there are none."""
        if self._count_present is not None and self._state is JoinState.ANNOUNCING:
            self._exchange_and_check(JoinAnnouncement(AnnouncedKind.END))
            self._stop_announcing()

    def _stop_announcing(self) -> None:
        self._change_state(JoinEvent.ITERATION_ENDED)
        self.stop_interception()

    @contextmanager
    def announce_reduction(self, member: JoinedModel, kind: AnnouncedKind, bucket: int) -> Iterator[bool]:
        """Return a context for a collective of a reducer; its value is True if joined ranks make the call, too."""
        self._announce_or_log(JoinAnnouncement(kind, self.members.index(member), bucket))
        with self._without_interception():
            yield self._state is JoinState.ANNOUNCING

    @contextmanager
    def _announce_collective(self, group: int, operation: str, arguments: tuple[Any, ...]) -> Iterator[None]:
        """Return a context for a collective that no reducer makes, of a group with exactly the ranks of the join."""
        if not self._is_call_of_program():
            yield
            return
        collective = collective_of_call(operation, arguments)
        kind = AnnouncedKind.UNANSWERABLE_COLLECTIVE
        details: tuple[int, ...] = (OPERATIONS.index(operation),)
        if collective is not None:
            kind, details = AnnouncedKind.COLLECTIVE, (group, *collective.encode())
        self._announce_or_log(JoinAnnouncement(kind, details=details))
        with self._without_interception():
            yield

    @contextmanager
    def _check_smaller_group(self, ranks: Sequence[int], operation: str, arguments: tuple[Any, ...]) -> Iterator[None]:
        """Return a context for a collective of a group that lacks some ranks of the join."""
        away = [rank for rank in ranks if rank not in self.present]
        if away:
            raise JoinError(
                f"{public_name(operation)} in a group of {self._format_ranks(ranks)}, "
                f"but {self._format_ranks(away)} ran out of input, "
                "and joined ranks only answer calls of groups of all ranks: use such a group, or leave the call out"
            )
        yield

    def _is_call_of_program(self) -> bool:
        """Return whether the program's thread or a backward makes the current call, not a callback of another call."""
        return threading.get_ident() == self._thread or torch._C._current_graph_task_id() != -1

    def _announce_or_log(self, call: JoinAnnouncement) -> None:
        if self._state is JoinState.ANNOUNCING:
            self._exchange_and_check(call)
        elif self._state is JoinState.COMPLETE:
            self._log.append(call)

    def answer_calls_until_all_joined(self) -> int:
        """Answer the other ranks' calls until no rank has input; return the last (highest) rank to run out of input."""
        self._change_state(JoinEvent.RAN_OUT)
        while True:
            last = self.present
            held = self._exchange_and_check(JoinAnnouncement(AnnouncedKind.JOINED))
            if not held.present:
                return last[-1]
            self._make_announced_call(held.call)

    def answer_calls_of_iteration(self) -> None:
        """Answer the other ranks' calls until their iteration ends."""
        self._change_state(JoinEvent.ITERATION_ANSWERED)
        while True:
            call = self._exchange_and_check(JoinAnnouncement(AnnouncedKind.JOINED)).call
            if call is None or call.kind is AnnouncedKind.END:
                self._stop_announcing()
                return
            self._make_announced_call(call)

    def leave_with_error(self, error: BaseException) -> None:
        """Leave the join by an exception, so that the other ranks notice in their next round."""
        self._change_state(JoinEvent.RAISED)
        post_message(self.group, f"ddp/join/{self._rank}", f"{type(error).__name__}: {error}")
        if len(self.present) == self._size:
            calls = predict_calls([call for call in self._log if call.kind is not AnnouncedKind.REBUILD])
            if calls is None:
                self._abandon_members(self._latest_first, with_buffers=True)
            elif AnnouncedKind.REBUILD in [call.kind for call in calls_since_latest_forward(self._log)]:
                # The buckets were rebuilt since, so the models make their own calls; other calls are before or after.
                indices = [index for index, call in enumerate(calls) if call.kind is not AnnouncedKind.COLLECTIVE]
                first, last = (indices[0], indices[-1] + 1) if indices else (0, 0)
                reducing = {self.members[calls[index].engine] for index in indices}
                self._make_logged_calls(calls[:first])
                self._abandon_members(
                    [member for member in self._latest_first if member in reducing], with_buffers=False
                )
                self._make_logged_calls(calls[last:])
            else:
                self._make_logged_calls(calls)
        self._exchange_announcements(JoinAnnouncement(AnnouncedKind.FAILED))

    def _make_logged_calls(self, calls: Sequence[JoinAnnouncement]) -> None:
        for call in calls:
            self._change_state(JoinEvent.LOG_FOLLOWED)
            self._make_announced_call(call)

    def _abandon_members(self, members: Iterable[JoinedModel], *, with_buffers: bool) -> None:
        # If models are chained, the last one called has the first backward.
        with self._without_interception():
            for member in members:
                member.make_calls_of_leaving_rank(with_buffers=with_buffers)

    def _make_announced_call(self, call: JoinAnnouncement | None) -> None:
        """Make the call that ranks with input have announced; this rank's contribution changes nothing."""
        if call is None:
            return
        reducer = self.members[call.engine].reducer
        with self._without_interception():
            if call.kind is AnnouncedKind.REBUILD:
                reducer.rebuild_for_joined_rank(self.present[-1])
            elif call.kind is AnnouncedKind.COLLECTIVE:
                self._make_call_without_input(call.details)
            elif call.kind is AnnouncedKind.BUCKET:
                reducer.reduce_bucket_without_input(call.number)
            elif call.kind is AnnouncedKind.USED_MAP:
                reducer.report_no_used_parameters()

    def _make_call_without_input(self, details: Sequence[int]) -> None:
        group, *numbers = details
        make_neutral_collective(Collective.decode(numbers), self._groups[group], self._device)

    def __ddp_call__(self) -> dict[str, object]:
        """Return labels of the current call, for a diagnosis."""
        is_shadow = self._state in (JoinState.JOINING, JoinState.FOLLOWING, JoinState.RETRACING)
        declared: dict[str, object] = {"wrapper": self.members[0], "shadow": is_shadow}
        if self._state is JoinState.JOINING:
            declared["joined"] = self.members
        return declared

    def _exchange_and_check(self, row: JoinAnnouncement) -> AnnouncementRound:
        """Hold a round (Note [Rounds]); raise JoinError on all ranks if they cannot continue together."""
        was_complete = len(self.present) == self._size
        held = self._exchange_announcements(row)
        self.present = held.present or self.present
        problem = self._describe_problem_of_round(held)
        if problem is not None:
            self.stop_interception()
            self._change_state(JoinEvent.RANK_LEFT if held.failed else JoinEvent.DISAGREED)
            raise JoinError(problem)
        if len(self.present) < self._size:
            self._change_state(JoinEvent.SOMEBODY_JOINED)
            if was_complete or self._interception is None:
                self._intercept_collectives()
        return held

    def _exchange_announcements(self, row: JoinAnnouncement) -> AnnouncementRound:
        has_joined_ranks = len(self.present) < self._size or self._state in (JoinState.ANNOUNCING, JoinState.FOLLOWING)
        width = WIDE if has_joined_ranks else WIDTH_WITHOUT_DETAILS
        rows = self._gather_rows(row.encode(width))
        needed = needed_row_width(rows)
        if needed > width:
            rows = self._gather_rows(row.encode(needed))
        calls = [JoinAnnouncement.decode(numbers) for numbers in rows]
        return read_round(calls, members=self._world_ranks, describe=_describe_collective)

    def _gather_rows(self, row: Sequence[int]) -> list[list[int]]:
        rows = torch.zeros(self._size, len(row), dtype=torch.int64)
        rows[self._rank] = torch.tensor(row)
        rows = rows.to(self._device)
        with self._without_interception():
            dist.all_reduce(rows, group=self.group)
        if self._state is JoinState.JOINING:
            self._change_state(JoinEvent.ROW_EXCHANGED)
        listed: list[list[int]] = rows.tolist()
        return listed

    def _describe_problem_of_round(self, held: AnnouncementRound) -> str | None:
        if held.failed:
            messages = [read_messages(self.group, [key]).get(key) for key in map("ddp/join/{}".format, held.failed)]
            words = [
                f"{self._format_ranks([r])} left it by {text}" for r, text in zip(held.failed, messages, strict=True)
            ]
            return f"the join is over: {'; '.join(words)}"
        if not held.present:
            return None
        joined = [rank for rank in range(self._size) if rank not in held.present]
        if joined and self._throws:
            return f"{self._format_ranks(joined)} ran out of input (throw_on_early_termination)"
        if held.disagreement is not None:
            return f"the ranks inside the join do different things: {held.disagreement}"
        return self._describe_problem_of_call(held.call, joined) if held.call is not None else None

    def _describe_problem_of_call(self, call: JoinAnnouncement, joined: Sequence[int]) -> str | None:
        away = f"{self._format_ranks(joined)}, which ran out of input"
        if call.kind is AnnouncedKind.UNANSWERABLE_COLLECTIVE and joined:
            name = public_name(OPERATIONS[call.details[0]])
            return f"{name} cannot be made on behalf of {away}: leave it out inside the join"
        if call.kind is AnnouncedKind.COLLECTIVE:
            collective = Collective.decode(call.details[1:])
            if collective.root in joined and collective.operation in ("broadcast", "scatter"):
                return f"{collective} needs what only its root has, {away}: take a root that still has input"
        return None

    def _format_ranks(self, ranks: Sequence[int]) -> str:
        return ranks_text([self._world_ranks[rank] for rank in ranks])

    def _intercept_collectives(self) -> None:
        """Intercept every collective of the groups that share ranks with the join's group and exist now."""
        self.stop_interception()
        if self._size == 1:
            return
        self._groups, others = _groups_by_ranks(self.group)
        self._interception = CollectiveInterception(
            {
                **{group: partial(self._check_smaller_group, ranks) for group, ranks in others},
                **{group: partial(self._announce_collective, number) for number, group in enumerate(self._groups)},
            }
        )

    def stop_interception(self) -> None:
        """Stop the interception of collectives."""
        if self._interception is not None:
            self._interception.stop_intercepting()
            self._interception = None

    def _without_interception(self) -> AbstractContextManager[None]:
        return nullcontext() if self._interception is None else self._interception.pause()


def _describe_collective(details: Sequence[int]) -> str:
    group, *numbers = details
    return str(Collective.decode(numbers)) + (f" in group {group}" if group else "")


def _groups_by_ranks(group: ProcessGroup) -> tuple[list[ProcessGroup], list[tuple[ProcessGroup, list[int]]]]:
    """Return two lists: groups with the same ranks (`group` first, in one order everywhere), and with some of them."""
    ranks = dist.get_process_group_ranks(group)
    alike, others = [group], []
    all_groups = distributed_c10d._world.pg_map  # in the order of creation; torch has no public list
    for other in (each for each in all_groups if isinstance(each, ProcessGroup)):
        own = dist.get_process_group_ranks(other)
        if other is not group and own == ranks:
            alike.append(other)
        elif own != ranks and set(own) & set(ranks):
            others.append((other, [ranks.index(rank) for rank in own if rank in ranks]))
    return alike, others
