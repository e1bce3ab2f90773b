"""The progress of each rank while a program is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ddpsim.simulator.calls import Call, Signature, Site
from ddpsim.simulator.diagnosis.deadlock_snapshot import RankSnapshot, RankState
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.operations import POINT_TO_POINT
from ddpsim.simulator.programs.checked import RankEnd
from ddpsim.simulator.programs.program import CRASH, Group, Step
from ddpsim.simulator.waits import CallWait

ERROR = f"{InjectedCrashError.__name__}: {CRASH}"
"""What a rank raises that crashes."""


class Progress:
    """The progress of one rank through its steps."""

    def __init__(self, rank: int, groups: Sequence[Group], steps: Sequence[Step]) -> None:
        self.rank = rank
        self.to_create = [group for group in reversed(groups) if rank in group.ranks]
        """The groups it makes before its first step, the next one last."""
        self.steps = steps
        self.step = 0
        self.state: RankState | None = None
        """None while it can go on."""
        self.wait: CallWait | None = None
        self.calls: dict[str, Call] = {}
        """By name."""
        self.unwaited: dict[str, Call] = {}
        self.last_call: Call | None = None
        self._sequences: Counter[tuple[str, bool]] = Counter()

    def next_call(self, group: str, signature: Signature, site: Site, *, peer: int | None = None, tag: int = 0) -> Call:
        """Return the call that the rank makes next; messages are counted separately from collectives."""
        count = (group, signature.operation in POINT_TO_POINT)
        call = Call(self.rank, group, self._sequences[count], signature, site, peer=peer, tag=tag)
        self._sequences[count] += 1
        self.last_call = call
        return call

    def block(self, call: Call) -> None:
        """The rank waits for a call until it is woken."""
        self.state, self.wait = RankState.WAITING, CallWait((call,), call.site)

    def wake(self) -> None:
        """The rank can continue."""
        self.state = self.wait = None

    def end(self) -> RankEnd:
        """Return where the rank stopped."""
        return RankEnd(self.state, self.step)

    def snapshot(self) -> RankSnapshot:
        """Return the rank's state, for the diagnosis."""
        assert self.state is not None
        error = ERROR if self.state is RankState.RAISED else ""
        return RankSnapshot(
            self.rank, self.state, self.wait, self.last_call, calls_made=self._sequences.total(), error=error
        )
