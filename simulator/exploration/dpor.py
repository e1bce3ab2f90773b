"""Dynamic partial order reduction: one execution for each class of interleavings that nobody can tell apart.

The algorithm is Source-DPOR with sleep sets, as published: P. Abdulla, S. Aronis, B. Jonsson, K. Sagonas, "Source Sets:
A Foundation for Optimal Dynamic Partial Order Reduction", Journal of the ACM 64(4), 2017, algorithm 1 (first in POPL
2014). In its words, with E for the steps of a run so far:

    Explore(E, Sleep):
      if there is p in enabled(E) \\ Sleep:
        backtrack(E) := {p}
        while there is p in backtrack(E) \\ Sleep:
          for each step e of E that is in a reversible race with the next step of p:
            E' := what came before e;  v := the steps after e that do not happen after e, and p's next
            if no initial of v is in backtrack(E'):  add one of them to backtrack(E')
          Explore(E.p, those of Sleep whose next step is independent of p's)
          add p to Sleep

Here backtrack is `Node.todo`, Sleep is `Node.sleep`; races and initials are those of happens_before.py, and are looked
for when a run is over, as its steps are known then. Of a run whose every enabled rank sleeps (RedundantRun, it does not
count) they are looked for, too. So each class is run once, and those that are broken off are what the algorithm is not
optimal in. It is the steps, not the choice points, that are in races:

- A look in vain at what is not there is one step with the look again that follows, as long as nobody is let in between
  by time. A rank that waits is no step: it goes on in the step of its own that follows. Whether it began to wait before
  its keys came is the same, unless one of them is removed again: then these are in a race, as is who removes one of
  several keys with who waits for all of them.
- A receive from any source takes, in one run after the other, each of the messages that are there. A message that came
  later and could have come earlier is in a race with it, or with the message that was taken (message_races.py); where
  that message is there first, only it is taken.
- A mismatch ends a run, whatever the others could still do. So somebody else goes first, too: what they do then may
  change whether it comes to that.
- Which rank is tried first does not matter. Those that stand before what nobody can observe are, so that most races are
  found with few runs broken off; and of a program of collectives there is one run.

What ranks do to each other past torch.distributed and its store, by files or by Python objects that they share, is not
seen; nor is what hangs on how often ranks have polled while virtual time passes. Policies "random" and "dfs" do without
that knowledge. Loops that poll have an end (simulator/policies/spin_detection.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import filterfalse

from ddpsim.simulator.accesses import Access, Accesses, Mode, Object
from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RedundantRun
from ddpsim.simulator.diagnosis.nondeterminism import Offer, offers_differ
from ddpsim.simulator.exploration.compared import not_compared
from ddpsim.simulator.exploration.happens_before import HappensBefore
from ddpsim.simulator.exploration.nodes import Node, Sleep, disturbed, lets_run
from ddpsim.simulator.exploration.steps import initials
from ddpsim.simulator.kernel.observer import CallName
from ddpsim.simulator.matching.point_to_point import channel_of
from ddpsim.simulator.policies.spin_detection import Location, SpinDetection
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Finding, Verdict
from ddpsim.simulator.wording import listed


class Dpor:
    """A strategy of explorations: covers every class of interleavings."""

    coverage = None
    limits = ""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._path: list[Node] = []
        self._new_from = 0
        """So many nodes of a run are as in one before, with the races of their steps."""
        self._loops: dict[Location, bool] = {}
        self._run: DporRun | None = None
        self._differs: Finding | None = None
        self.is_complete = False
        self._used: set[str] = set()

    @property
    def outside(self) -> str:
        """What it does not see, and what programs used that it was not compared on."""
        names = not_compared(self._used)
        used = f", and for {listed(names)}, which no comparison had" if names else ""
        return f"files, shared objects, hash order and time{used}"

    def next_policy(self) -> DporRun | None:
        """The policy of the next execution; None once all classes were explored."""
        if self._run is not None and not self._differs and not self._run.spins.has_learned:
            self._run.find_alternatives()
            self._advance()
        if self.is_complete or self._differs:
            return None
        self._run = DporRun(self._world_size, self._path, self._new_from, SpinDetection(self._loops), self._used)
        return self._run

    def take(self, result: Result) -> Finding | None:
        """Look whether the execution repeated what it shares with the one before; a finding if it did not."""
        assert self._run is not None
        self._run.spins.conclude()
        self._differs = self._run.divergence(is_cut=result.verdict is Verdict.UNKNOWN)
        if self._differs is None and self._run.is_redundant:
            raise RedundantRun
        return self._differs

    def _advance(self) -> None:
        while self._path and not self._path[-1].advance():
            self._path.pop()
        self._new_from = len(self._path)
        self.is_complete = not self._path


class DporRun:
    """The policy of one execution, and its observer."""

    def __init__(self, world_size: int, path: list[Node], new_from: int, spins: SpinDetection, used: set[str]) -> None:
        self.observer = self
        self._used = used
        self.spins = spins
        self.is_redundant = False
        """A rank took a step that slept."""
        self._path = path
        self._known = len(path)
        self._new_from = new_from
        self._depth = 0
        self._differs: tuple[Offer, Offer] | None = None
        self._order = HappensBefore(world_size)
        self._old_races = 0
        self._intents: list[Accesses] = [()] * world_size
        self._step_node: list[int | None] = [None] * world_size
        self._looks_again: tuple[int, int] | None = None
        """Who has looked in vain just now, and where it was chosen for that."""
        self._sleep: Sleep = {}
        self._taken: dict[int, frozenset[int]] = {}
        """By rank, the sources that need not be tried by the receive it is chosen for."""
        self._open_receives: dict[Object, int] = {}
        self._ended_by: int | None = None
        """Where the rank was chosen that ended the run before its time."""

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of what the path says, and after its end, of what comes first."""
        offer = Offer(point, tuple(options))
        if self._differs is not None:
            return 0
        if (alone := self.spins.follow(offer.options)) is not None:
            return offer.options.index(alone)
        if self.is_redundant:
            raise RedundantRun
        if point.kind is ChoiceKind.SOURCE:
            return self._index(offer, self._source(offer))
        if self._looks_again is not None and (rank := self._same_step(*self._looks_again, offer)) is not None:
            return offer.options.index(rank)
        fresh = list(filterfalse(self.spins.is_idle, offer.options))
        if len(fresh) > 1:
            return self._index(offer, self._rank(offer, fresh))
        chosen = (fresh or offer.options)[0]
        if not lets_run(self._sleep, chosen):
            raise RedundantRun
        self._wake(chosen)
        return offer.options.index(chosen)

    def _same_step(self, rank: int, node: int, offer: Offer) -> int | None:
        """The rank, if nobody came in since it was chosen. Else its look in vain was a step of its own."""
        self._looks_again = None
        if set(self._path[node].offer.options) == set(offer.options):
            return rank
        for access in self._intents[rank]:
            self.touched(rank, Access(access.object, Mode.READ))
        self._begin(rank, None)
        return None

    def _index(self, offer: Offer, node: Node) -> int:
        if node.offer != offer and (node.is_compared or node.chosen not in offer.options):
            self._differs = node.offer, offer
            return 0
        return offer.options.index(node.chosen)

    def _can_be_observed(self, rank: int) -> bool:
        """True if a rank stands before what may depend on others. It only tells whom to try first."""
        for object, mode in self._intents[rank]:
            if mode is not Mode.CONTRIBUTE and (mode is not Mode.SEND or self._open_receives.get(object, 0) > 0):
                return True
        return False

    def _rank(self, offer: Offer, fresh: list[int]) -> Node:
        if self._depth == len(self._path):
            awake = [rank for rank in fresh if lets_run(self._sleep, rank)] if self._sleep else fresh
            if not awake:
                raise RedundantRun
            for rank in awake:
                if not self._can_be_observed(rank):
                    self._path.append(Node(offer, fresh, self._sleep, [rank], is_compared=False))
                    break
            else:
                self._path.append(Node(offer, fresh, self._sleep, awake[:1]))
        node = self._path[self._depth]
        self._begin(node.chosen, self._depth)
        self._depth += 1
        if self._depth == self._new_from:
            self._old_races = len(self._order.races)
        self._sleep = node.sleep
        self._wake(node.chosen)
        if self._taken:
            node.sources |= self._taken.get(node.chosen, frozenset())
        return node

    def _begin(self, rank: int, node: int | None) -> None:
        self._step_node[rank] = node
        self._order.begins(rank, node)

    def _wake(self, rank: int) -> None:
        """A rank is chosen, whether it slept or not."""
        self._taken.pop(rank, None)
        if rank in self._sleep:
            self._taken[rank] = self._sleep[rank].sources
            self._sleep = {each: sleeper for each, sleeper in self._sleep.items() if each != rank}

    def _source(self, offer: Offer) -> Node:
        rank = offer.point.rank
        taken = self._taken.get(rank, frozenset())
        if rank in self._sleep:  # it had no rival, and was not chosen
            taken |= self._sleep[rank].sources
        if self._depth == len(self._path):
            left = [source for source in offer.options if source not in taken]
            if not left:
                raise RedundantRun
            self._path.append(Node(offer, offer.options, {}, left))
        node = self._path[self._depth]
        self._depth += 1
        if self._depth == self._new_from:
            self._old_races = len(self._order.races)
        return node

    def divergence(self, *, is_cut: bool) -> Finding | None:
        """The finding for an execution that offered other choices than the one whose path it repeats.

        One that was cut short by its budget may have come less far.
        """
        if self._differs is not None:
            return offers_differ(*self._differs)
        if self._depth < self._known and not is_cut:
            return offers_differ(self._path[self._depth].offer, None)
        return None

    def find_alternatives(self) -> None:
        """The run is over: for each race, let the later step be tried before the earlier one."""
        for race in (*self._order.races[self._old_races :], *self._order.found_late()):
            if race.earlier.node is not None:  # else nobody but its rank could run there
                self._path[race.earlier.node].try_one_of(initials(race, self._order.steps))
        if self._ended_by is not None:
            self._path[self._ended_by].try_another()

    # --- observing ----------------------------------------------------------------------------------------------------

    def intends(self, rank: int, accesses: Accesses, *, looks_again: bool = False) -> None:
        """Note what a rank stands before; what it did until now belongs to where it was chosen last."""
        if rank in self._sleep:
            self.is_redundant = True
        self._taken.pop(
            rank, None
        )  # that was of the step which ends here; its next receive may take from whom it likes
        self.spins.intends(rank, accesses, looks_again=looks_again)
        node = self._step_node[rank]
        is_first_look = looks_again and accesses == self._intents[rank] and not self._order.has_touched(rank)
        if node is not None and is_first_look and not self.spins.is_idle(rank):
            self._looks_again = rank, node
            return
        self._looks_again = None
        self._intents[rank] = accesses
        self._begin(rank, None)

    def created(self, rank: int, key: Object) -> None:
        """Note a new key."""
        self._order.created(rank, key)

    def needs(self, rank: int, key: Object) -> None:
        """Note that a rank would have waited for a key."""
        self._order.needs(rank, key)

    def removed(self, key: Object) -> None:
        """Note that a key is there no more."""
        self._order.removed(key)

    def waits(self, rank: int, *, is_for_good: bool) -> None:
        """Note that a rank begins to wait for keys."""
        self._order.waits(rank, is_for_good=is_for_good)

    def let_go(self, by: int, rank: int, keys: Sequence[Object]) -> None:
        """Note who made the last of the keys that another rank waits for."""
        self._order.let_go(by, rank, keys)

    def issued(self, rank: int, name: CallName, call: Call) -> None:
        """Note a call, and whether it receives from any source."""
        self.spins.issued(rank, name, call)
        self._order.issued(rank, name)
        if call.peer is None:
            return
        channel, is_wild = channel_of(call), call.peer == ANY_SOURCE
        self._order.issued_message(rank, name, channel, is_wild=is_wild)
        if is_wild:
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

    def cancelled(self, rank: int) -> None:
        """Note that a rank's thread goes no further: what it would have done is no step any more."""
        self._intents[rank] = ()
        self._sleep = {each: sleeper for each, sleeper in self._sleep.items() if each != rank}

    def touched(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """Note a touch: it wakes who depends on it, and may be in races."""
        self.spins.touched(rank, access)
        self._looks_again = None
        if access.mode in (Mode.RECEIVE, Mode.ANSWER):
            self._open_receives[access.object] -= 1
        if source is not None:
            self._note_source(rank, source)
        elif not lets_run(self._sleep, rank):
            self.is_redundant = True
        if self._sleep:
            self._sleep = disturbed(self._sleep, rank, access)
        node = self._step_node[rank]
        if node is not None:
            self._path[node].accesses[access] = None
            if source is not None:
                self._path[node].sources.add(source)
        self._order.touched(rank, access, candidates)

    def _note_source(self, rank: int, source: int) -> None:
        """A rank took a message: not one that it took before, in the same place."""
        self._taken[rank] = taken = self._taken.get(rank, frozenset())
        if rank in self._sleep:
            taken |= self._sleep[rank].sources
            self._wake(rank)
        if source in taken:
            self.is_redundant = True

    def used(self, kind: str) -> None:
        """Note what coverage hangs on."""
        self._used.add(kind)

    def cut_short(self, rank: int) -> None:
        """Note where the rank was chosen that ended the run."""
        self._ended_by = self._step_node[rank]
