"""Dynamic partial order reduction: one execution for each class of interleavings that nobody can tell apart.

After each step that depends on an earlier one of another rank (simulator/accesses.py), with nothing else that orders
the two, whoever leads to the later one is to be tried where the earlier one was chosen (C. Flanagan, P. Godefroid:
Dynamic Partial-Order Reduction for Model Checking Software, POPL 2005). Whom to try is found by source sets, and what
was explored is not explored again further down, by sleep sets (P. Abdulla, S. Aronis, B. Jonsson, K. Sagonas: Optimal
Dynamic Partial Order Reduction, POPL 2014).

Steps that touch nothing are run first, as they commute with all others. So choices are made only where every enabled
rank stands before something that others can observe, and a program of collectives has no choice at all.

A receive from any source takes, in one run after the other, each of the messages that are there. For one that came
later and could have come earlier it is run again, with that one and no other.

What ranks do to each other past torch.distributed and its store, by files or by Python objects that they share, is not
seen: of such a program only some interleavings are run. Policies "random" and "dfs" do without that knowledge.

Loops that poll have an end (simulator/policies/spin_detection.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulator.accesses import CAN_BE_POLLED, Access, Accesses, Mode, Object
from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RedundantRun
from ddpsim.simulator.diagnosis.nondeterminism import Offer, offers_differ
from ddpsim.simulator.exploration.happens_before import HappensBefore, Race
from ddpsim.simulator.exploration.nodes import Node, Sleep
from ddpsim.simulator.kernel.observer import CallName
from ddpsim.simulator.matching.point_to_point import channel_of
from ddpsim.simulator.policies.spin_detection import Location, SpinDetection
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Finding


class Dpor:
    """A strategy of explorations: covers every class of interleavings."""

    coverage = None
    limits = ""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._path: list[Node] = []
        self._polled: set[Object] = set()
        """Calls that somebody polls for: contributions to them can be observed. Only asked about."""
        self._loops: dict[Location, bool] = {}
        self._run: DporRun | None = None
        self._differs: Finding | None = None
        self.is_complete = False

    def next_policy(self) -> DporRun | None:
        """The policy of the next execution; None once all classes were explored."""
        if self._run is not None and not self._differs and not self._run.spins.has_learned:
            self._advance(self._run)
        if self.is_complete or self._differs:
            return None
        self._run = DporRun(self._world_size, self._path, self._polled, SpinDetection(self._loops))
        return self._run

    def take(self, result: Result) -> Finding | None:
        """Look whether the execution repeated what it shares with the one before; a finding if it did not."""
        assert self._run is not None
        self._run.spins.conclude()
        self._differs = self._run.divergence()
        return self._differs

    def _advance(self, run: DporRun) -> None:
        if run.polled - self._polled:
            self._polled |= run.polled  # what was explored so far did not know of them
            self._path = []
            return
        while self._path and not self._path[-1].advance():
            self._path.pop()
        self.is_complete = not self._path


class DporRun:
    """The policy of one execution, and its observer."""

    def __init__(self, world_size: int, path: list[Node], polled: set[Object], spins: SpinDetection) -> None:
        self.observer = self
        self.polled = set(polled)
        self.spins = spins
        self._path = path
        self._known = len(path)
        self._depth = 0
        self._differs: tuple[Offer, Offer] | None = None
        self._order = HappensBefore(world_size)
        self._intents: list[Accesses] = [()] * world_size
        self._step_node: list[int | None] = [None] * world_size
        self._sleep = Sleep()
        self._taken: frozenset[int] = frozenset()
        """Sources that need not be tried by the receive under way."""
        self._open_receives: dict[Object, int] = {}

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of what the path says, and after its end, of what comes first."""
        offer = Offer(point, tuple(options))
        if self._differs is not None:
            return 0
        if (alone := self.spins.follow(offer.options)) is not None:
            self._step_node[alone] = None
            return offer.options.index(alone)
        if point.kind is ChoiceKind.SOURCE:
            return self._index(offer, self._source(offer))
        fresh = [rank for rank in offer.options if not self.spins.is_idle(rank)]
        quiet = [rank for rank in fresh if not any(map(self._can_be_observed, self._intents[rank]))]
        if fresh and not quiet:
            return self._index(offer, self._rank(offer, tuple(fresh)))
        chosen = quiet[0] if quiet else offer.options[0]
        self._step_node[chosen] = None
        return offer.options.index(chosen)

    def _index(self, offer: Offer, node: Node) -> int:
        if node.offer != offer:
            self._differs = node.offer, offer
            return 0
        return offer.options.index(node.chosen)

    def _can_be_observed(self, access: Access) -> bool:
        if access.mode is Mode.SEND:
            return self._open_receives.get(access.object, 0) > 0
        return access.mode is not Mode.CONTRIBUTE or access.object in self.polled

    def _rank(self, offer: Offer, fresh: tuple[int, ...]) -> Node:
        if self._depth == len(self._path):
            awake = [rank for rank in fresh if self._sleep.lets_run(rank)]
            if not awake:
                raise RedundantRun
            self._path.append(Node(offer, fresh, self._sleep, awake[:1]))
        node = self._path[self._depth]
        self._step_node[node.chosen] = self._depth
        self._depth += 1
        self._sleep = node.sleep.copy()
        self._taken = self._sleep.take(node.chosen)
        node.accesses = []
        node.sources.update(self._taken)
        return node

    def _source(self, offer: Offer) -> Node:
        taken = self._taken | self._sleep.take(offer.point.rank)  # it sleeps if it had no rival, and was not chosen
        if self._depth == len(self._path):
            left = [source for source in offer.options if source not in taken]
            if not left:
                raise RedundantRun
            self._path.append(Node(offer, offer.options, Sleep(), left))
        node = self._path[self._depth]
        self._depth += 1
        return node

    def divergence(self) -> Finding | None:
        """The finding for an execution that offered other choices than the one whose path it repeats."""
        if self._differs is not None:
            return offers_differ(*self._differs)
        if self._depth < self._known:
            return offers_differ(self._path[self._depth].offer, None)
        return None

    # --- observing ----------------------------------------------------------------------------------------------------

    def intends(self, rank: int, accesses: Accesses, *, looks_again: bool = False) -> None:
        """Note what a rank stands before; what it did until now belongs to where it was chosen last."""
        self._intents[rank] = accesses
        self._step_node[rank] = None
        self.spins.intends(rank, accesses, looks_again=looks_again)

    def created(self, rank: int, key: Object) -> None:
        """Note a new key."""
        self._order.created(rank, key)

    def needs(self, rank: int, key: Object) -> None:
        """Note that a rank would have waited for a key."""
        self._order.needs(rank, key)

    def issued(self, rank: int, name: CallName, call: Call) -> None:
        """Note a call, and whether it receives from any source."""
        self.spins.issued(rank, name, call)
        self._order.issued(rank, name)
        if call.operation == "recv" and call.peer == ANY_SOURCE:
            channel = channel_of(call)
            self._open_receives[channel] = self._open_receives.get(channel, 0) + 1

    def completed(self, names: Sequence[CallName]) -> None:
        """Note calls that met."""
        self._order.completed(names)

    def learned(self, rank: int, name: CallName) -> None:
        """Note that a rank has seen a call complete."""
        self._order.learned(rank, name)

    def started(self, rank: int, thread: int) -> None:
        """Note one more that can be chosen."""
        self.spins.started(rank, thread)
        self._intents.append(())
        self._step_node.append(None)
        self._order.started(rank, thread)

    def joined(self, rank: int, thread: int) -> None:
        """Note that a rank has seen a thread end."""
        self._order.joined(rank, thread)

    def woke(self, by: int | None, rank: int) -> None:
        """Note who let a rank go on."""
        self.spins.woke(by, rank)
        self._order.woke(by, rank)

    def touched(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """Note a touch; for each race that it is the second part of, let it be tried first."""
        self._intents[rank] = ()
        self.spins.touched(rank, access)
        if access.object[0] in CAN_BE_POLLED and access.mode is Mode.READ:
            self.polled.add(access.object)
        if access.mode is Mode.CONTRIBUTE and access.object not in self.polled:
            return
        if access.mode in (Mode.RECEIVE, Mode.ANSWER):
            self._open_receives[access.object] -= 1
        self._sleep.disturb(rank, access)
        node = self._step_node[rank]
        if node is not None:
            self._path[node].accesses.append(access)
            self._path[node].sources.update(() if source is None else (source,))
        self._try(self._order.touched(rank, access, node, candidates))

    def cut_short(self, ranks: Sequence[int]) -> None:
        """Let what was left undone be tried, too, before what it is in a race with."""
        for rank in ranks:
            for access in filter(self._can_be_observed, self._intents[rank]):
                self._try(self._order.could_touch(rank, access))

    def _try(self, races: Sequence[Race]) -> None:
        for race in races:
            if race.earlier.node is not None:  # else nobody but its rank could run there
                self._path[race.earlier.node].try_one_of(race.leading)
