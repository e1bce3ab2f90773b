"""Depth-first search: every schedule of a program, one execution each.

Only the choices of an execution are kept. The next execution repeats them up to the last choice with an untried option,
takes that option, and continues with the default. If no choice has an untried option, all schedules were run
(P. Godefroid: Model Checking for Programming Languages using VeriSoft, POPL 1997).

A polling loop has infinitely many schedules. So a thread whose next poll would fail again may not poll before another
thread makes progress (simulator/policies/spin_detection.py).

A bound on preemptions (switches away from a rank that could continue) makes the search much smaller, and two of them
are enough for most bugs (M. Musuvathi, S. Qadeer: Iterative Context Bounding, PLDI 2007).
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, Policy
from ddpsim.simulator.diagnosis.nondeterminism import OfferedChoice, differing_choice_finding
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.policies.spin_detection import Location, SpinDetection
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Finding, Verdict


@dataclass(slots=True)
class _PathChoice:
    offer: OfferedChoice
    idle: frozenset[int] = frozenset()
    """Ranks that wait in a polling loop: their next poll would fail again."""
    taken: int = 0
    tried: int = 0
    left: list[int] = field(default_factory=list)
    """The untried options; the search takes the last of them next."""

    @property
    def is_preemption(self) -> bool:
        return self.taken > 0 and _can_continue(self.offer)

    @property
    def option_count(self) -> int:
        """The number of options of this choice that the search tries in total."""
        return self.tried + 1 + len(self.left)

    def without_others(self) -> "_PathChoice":
        return _PathChoice(self.offer, self.idle, self.taken)

    def take_over(self, shared: "_PathChoice") -> None:
        """Nothing: the options are known beforehand."""


def _can_continue(offer: OfferedChoice) -> bool:
    """Return whether the running rank can continue; every choice except 0 is then a preemption."""
    point = offer.point
    return point.kind is ChoiceKind.RANK and point.number > 0 and offer.options[0] == point.rank


class DividedByPaths:
    """A strategy that goes through a tree of choices. A part of it (exploration/parts.py) is what lies below a path.

    Its path begins with the nodes that it shares with the parts around it, of which it takes one option each.
    """

    parts_of_task = 8
    _path: list[Any]
    _shared: Sequence[Any] = ()
    _loops: dict[Location, bool]
    _run: Any
    _is_over = False

    def next_part(self, most: int) -> Any:
        """Return the part below the path that was chosen last; None if none is left."""
        part = copy(self)
        part._shared = [each.without_others() for each in self._path]
        part._path = [*part._shared]
        return None if self._is_over else part

    def absorb(self, end: Any) -> None:
        """Go on behind the executions of a part."""
        for node, shared in zip(self._path, end._shared, strict=True):
            node.take_over(shared)
        self._path += end._path[len(end._shared) :]
        self._loops = end._loops
        if end._is_over:
            self._choose_next_path()

    def skip(self, part: object) -> None:
        """Go on behind all executions of a part."""
        self._choose_next_path()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}  # the execution under way stays in its process

    @property
    def key(self) -> tuple[object, ...]:
        """The path, and the known loops."""
        return self._path, self._loops

    def _choose_next_path(self) -> None:
        raise NotImplementedError


class Dfs(DividedByPaths):
    """The exploration strategy that runs every schedule, or every one with a bounded number of preemptions."""

    outside = ""

    def __init__(self, *, preemptions: int | None = None) -> None:
        if preemptions is not None and (not isinstance(preemptions, int) or preemptions < 0):
            raise UsageError(
                f"preemptions is {preemptions!r}, expected a whole number from 0 on, or None for no bound: correct it"
            )
        self._bound = preemptions
        self._path: list[_PathChoice] = []
        self._loops: dict[Location, bool] = {}
        self._run: _RepeatingPolicy | None = None
        self._is_cut = False
        """True if schedules were left out, by the bound or because an execution did not repeat the one before."""
        self._is_over = False

    @property
    def is_complete(self) -> bool:
        """True once every schedule has been run."""
        return self._is_over and not self._is_cut

    @property
    def limits(self) -> str:
        """The limit on the schedules that the search runs, as text."""
        if not self._bound:
            return "" if self._bound is None else "without preemptions"
        return f"with at most {self._bound} preemption{'s' if self._bound > 1 else ''}"

    @property
    def coverage(self) -> float:
        """The estimated share (0 to 1) of schedules that were run, if all options of a choice lead to equally many."""
        if self._is_over:
            return 1.0
        covered, share = 0.0, 1.0
        for choice in self._path:
            share /= choice.option_count
            covered += choice.tried * share
        return covered

    def next_policy(self) -> Policy | None:
        """Return the policy of the next execution; None if no schedule is left."""
        if self._run is not None and not self._run.observer.has_learned:
            self._choose_next_path()
        if self._is_over:
            return None
        self._run = _RepeatingPolicy(self._path, SpinDetection(self._loops))
        return self._run

    def take(self, result: Result) -> Finding | None:
        """Learn the choices of an execution; return a finding if it did not repeat the choices of the one before."""
        assert self._run is not None
        self._run.observer.conclude_execution()
        is_cut = result.verdict is Verdict.UNKNOWN
        finding = self._run.find_divergence(is_cut=is_cut)
        if finding is not None:
            self._is_over = self._is_cut = True
            return finding
        self._is_cut = self._is_cut or is_cut
        known = len(self._path)
        self._path = self._run.path
        self._set_untried_options(known)
        return None

    def absorb(self, end: "Dfs") -> None:
        """Go on behind the executions of a part."""
        super().absorb(end)
        self._is_cut = self._is_cut or end._is_cut

    def _choose_next_path(self) -> None:
        """Go back to the last choice that has an untried option, and take that option."""
        while self._path and not self._path[-1].left:
            self._path.pop()
        if not self._path:
            self._is_over = True
            return
        choice = self._path[-1]
        choice.taken = choice.left.pop()
        choice.tried += 1

    def _set_untried_options(self, known: int) -> None:
        """Set the untried options of all choices after the first `known` choices."""
        preemptions = 0
        for index, choice in enumerate(self._path):
            if index >= known:
                others = range(len(choice.offer.options) - 1, 0, -1)
                choice.left = [taken for taken in others if choice.offer.options[taken] not in choice.idle]
                if preemptions == self._bound and _can_continue(choice.offer):
                    self._is_cut = self._is_cut or bool(choice.left)
                    choice.left = []
            preemptions += choice.is_preemption


class _RepeatingPolicy:
    """One execution's policy. It repeats the choices of a given path, then takes the default; it records all."""

    def __init__(self, path: Sequence[_PathChoice], spins: SpinDetection) -> None:
        self.observer = spins
        self._known = path
        self.path: list[_PathChoice] = []
        self._differs: tuple[OfferedChoice, OfferedChoice] | None = None

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the choice that the path gives, or 0 after the path's end."""
        now = OfferedChoice(point, tuple(options))
        if point.rank not in options:  # it waits now, or has ended
            self.observer.note_progress()
        if (alone := self.observer.thread_to_run_alone(now.options)) is not None:
            return now.options.index(alone)
        if len(self.path) >= len(self._known) or self._differs:
            is_of_ranks = point.kind is ChoiceKind.RANK
            self.path.append(
                _PathChoice(
                    now, frozenset(filter(self.observer.would_poll_in_vain, now.options if is_of_ranks else ()))
                )
            )
            return 0
        choice = self._known[len(self.path)]
        if choice.offer != now:
            self._differs = choice.offer, now
            return 0
        self.path.append(choice)
        return choice.taken

    def find_divergence(self, *, is_cut: bool) -> Finding | None:
        """Return the finding if this execution offered other choices than the execution whose path it repeats."""
        missing = self._known[len(self.path)].offer if len(self.path) < len(self._known) else None
        return find_offer_divergence(self._differs, missing, is_cut=is_cut)


def find_offer_divergence(
    differing: tuple[OfferedChoice, OfferedChoice] | None, missing: OfferedChoice | None, *, is_cut: bool
) -> Finding | None:
    """Return the finding for an execution that did not repeat the choice points of the one before.

    `missing` is an expected choice point that it did not reach; an execution whose budget ran out may miss some.
    """
    if differing is not None:
        return differing_choice_finding(*differing)
    return None if missing is None or is_cut else differing_choice_finding(missing, None)
