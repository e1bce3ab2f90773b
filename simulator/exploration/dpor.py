"""Dynamic partial order reduction (DPOR): one execution for each class of equivalent interleavings.

The algorithm is Source-DPOR with sleep sets: P. Abdulla, S. Aronis, B. Jonsson, K. Sagonas, "Source Sets: A Foundation
for Optimal Dynamic Partial Order Reduction", Journal of the ACM 64(4), 2017, algorithm 1 (first in POPL 2014). It makes
fewer runs than the DPOR of C. Flanagan and P. Godefroid (POPL 2005). Not used: wakeup trees (Optimal-DPOR of the same
paper), which break no run off but keep parts of runs for each node. With E for the steps of a run so far:

    Explore(E, Sleep):
      if there is p in enabled(E) \\ Sleep:
        backtrack(E) := {p}
        while there is p in backtrack(E) \\ Sleep:
          for each step e of E that is in a reversible race with the next step of p:
            E' := what came before e;  v := the steps after e that do not happen after e, and p's next
            if no initial of v is in backtrack(E'):  add one of them to backtrack(E')
          Explore(E.p, those of Sleep whose next step is independent of p's)
          add p to Sleep

Here backtrack is `Node.todo` and Sleep is `Node.sleep`. Races and initials are those of happens_before.py. They are
computed when a run has ended, because its steps are known then. A run is broken off when all its enabled ranks sleep
(RedundantRun, it does not count); its races are used, too. So each class is run once, and the runs that are broken off
are the only waste. Races are between steps, not between choice points:

- A failed poll and the poll that follows it are one step, unless time lets another rank run in between. Waiting is not
  a step: the rank continues in its next step. It makes no difference whether a rank began to wait before or after its
  keys were set, unless one of the keys is removed again. Then the two are in a race; so are the removal of one of
  several keys and the wait for all of them.
- A receive from any source takes each available message, one per run. A message that came later and could have come
  earlier is in a race with the receive, or with the message that was taken (see MessageRaces). In the run where that
  message comes first, the receive takes only that one.
- A mismatch ends the run although other ranks could still run. So another rank is tried first, too: what it does may
  prevent the mismatch.
- The first choice does not change the result. Ranks whose next step no other rank can observe are tried first: so most
  races are found with few runs broken off, and a program that only uses collectives needs one run.

Threads of a rank share what torch keeps for the rank: the counter of names, the registries of groups, each group, each
future. Reading and changing these are accesses, once the rank has started a thread (isolation/world.py).

Effects between ranks outside torch.distributed and its store (files, shared Python objects) are not seen. Neither is
behaviour that depends on how often ranks polled while virtual time passed. Policies "random" and "dfs" do not rely on
that knowledge. Polling loops are bounded (simulator/policies/spin_detection.py).
"""

from collections.abc import Iterable, Sequence
from itertools import filterfalse

from ddpsim.simulator.accesses import Access, Accesses, AccessMode, Object
from ddpsim.simulator.calls import ANY_SOURCE, Call
from ddpsim.simulator.choices import ChoiceKind, ChoicePoint, RedundantRun
from ddpsim.simulator.diagnosis.nondeterminism import OfferedChoice
from ddpsim.simulator.exploration.happens_before import HappensBefore, initial_ranks
from ddpsim.simulator.exploration.nodes import ChoiceNode, Sleep, must_be_tried, sleep_after_access
from ddpsim.simulator.matching.slots import channel_object
from ddpsim.simulator.policies.dfs import DividedByPaths, find_offer_divergence
from ddpsim.simulator.policies.observer import CallName
from ddpsim.simulator.policies.spin_detection import Location, SpinDetection
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Finding, Verdict
from ddpsim.simulator.wording import join_names

OF_THE_STORE = frozenset(
    [
        *"add append check compare_set delete_key get list_keys multi_get".split(),  # noqa: SIM905
        *"multi_set num_keys queue_len queue_pop queue_push set wait".split(),  # noqa: SIM905
    ]
)
OF_THREADS = frozenset(
    {"Barrier", "Condition", "Event", "Lock", "Queue", "RLock", "Semaphore", "SimpleQueue", "ThreadPoolExecutor"}
)
_COMPARED = OF_THE_STORE | OF_THREADS


def uncompared_features(used: Iterable[str]) -> list[str]:
    """Return, sorted, the used features with which DPOR was never tested against running all schedules."""
    return sorted(set(used) - _COMPARED)


class Dpor(DividedByPaths):
    """The exploration strategy that runs one execution for every class of equivalent interleavings."""

    coverage = None
    limits = ""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._path: list[ChoiceNode] = []
        self._new_from = 0
        """How many nodes (choice points) at the path's start are those of the previous run: their races are known."""
        self._loops: dict[Location, bool] = {}
        self._run: DporRun | None = None
        self._differs: Finding | None = None
        self._used: set[str] = set()
        self._starts_threads = False

    @property
    def outside(self) -> str:
        """Effects between ranks, and between threads of a rank, that DPOR does not see."""
        locks = "locks made before the run, " if self._starts_threads else ""
        return f"files, shared objects, {locks}hash order and time"

    @property
    def untested(self) -> str:
        """The used features with which DPOR was never tested."""
        return join_names(uncompared_features(self._used))

    def next_policy(self) -> "DporRun | None":
        """Return the policy of the next execution; None once all classes of interleavings were explored."""
        if self._run is not None and not self._differs and not self._run.spins.has_learned:
            self._run.find_alternatives()
            self._choose_next_path()
        if self.is_complete or self._differs:
            return None
        self._run = DporRun(self._world_size, self._path, self._new_from, SpinDetection(self._loops), self._used)
        return self._run

    def take(self, result: Result) -> Finding | None:
        """Learn from an execution; return a finding if it did not repeat the choices shared with the one before."""
        assert self._run is not None
        self._starts_threads |= self._run.starts_threads
        self._run.spins.conclude_execution()
        self._differs = self._run.find_divergence(is_cut=result.verdict is Verdict.UNKNOWN)
        if self._differs is None and self._run.is_redundant:
            raise RedundantRun
        return self._differs

    # What a run of a part finds out reaches the nodes before the part as options to try, and as steps of sleep sets.
    # The part only notes it, and its parent adds it once all parts before are added: so nodes are as in one process.

    def absorb(self, end: "Dpor") -> None:
        """Go on behind the runs of a part."""
        super().absorb(end)
        self._new_from = len(self._path)
        self._used |= end._used
        self._starts_threads |= end._starts_threads

    def skip(self, part: object) -> None:
        """Go on behind the runs of a part. Its siblings are left out, as its step is not known, which they need."""
        if self._path and self._path[-1].offer.point.kind is ChoiceKind.RANK:
            self._path.pop()
        self._choose_next_path()

    @property
    def is_complete(self) -> bool:
        """True once all classes of interleavings were explored."""
        return self._is_over

    def _choose_next_path(self) -> None:
        while self._path and not self._path[-1].advance_to_next_option():
            self._path.pop()
        self._new_from = len(self._path)
        self._is_over = not self._path


class DporRun(HappensBefore):
    """The policy of one execution, and its observer: it records the happens-before order and the choices."""

    def __init__(
        self, world_size: int, path: list[ChoiceNode], new_from: int, spins: SpinDetection, used: set[str]
    ) -> None:
        super().__init__(world_size)
        self.observer = self
        self._used = used
        self.spins = spins
        self.starts_threads = False
        self.is_redundant = False
        """True if a rank took a step of the sleep set (steps that need no try)."""
        self._path = path
        self._known = len(path)
        self._new_from = new_from
        self._depth = 0
        self._differs: tuple[OfferedChoice, OfferedChoice] | None = None
        self._old_races = 0
        self._intents: list[Accesses] = [()] * world_size
        self._failed_poll: tuple[int, int] | None = None
        """The rank whose last step was a failed poll, and the index of the node (choice point) that chose the rank."""
        self._sleep: Sleep = {}
        self._tried_sources: dict[int, frozenset[int]] = {}
        """By rank, the message sources that the rank's next receive need not try."""
        self._open_receives: dict[Object, int] = {}
        self._ended_by: int | None = None
        """The index of the node (choice point) that chose the rank whose step ended the run early."""

    # --- choosing -----------------------------------------------------------------------------------------------------

    def choose(self, point: ChoicePoint, options: Sequence[int]) -> int:
        """Return the index of the option on the planned path; after its end, of the first option worth trying."""
        offer = OfferedChoice(point, tuple(options))
        if self._differs is not None:
            return 0
        if (alone := self.spins.thread_to_run_alone(offer.options)) is not None:
            return offer.options.index(alone)
        if self.is_redundant:
            raise RedundantRun
        if point.kind is ChoiceKind.SOURCE:
            return self._index_of_chosen(offer, self._choose_source(offer))
        if (
            self._failed_poll is not None
            and (rank := self._continue_failed_poll(*self._failed_poll, offer)) is not None
        ):
            return offer.options.index(rank)
        fresh = list(filterfalse(self.spins.would_poll_in_vain, offer.options))
        if len(fresh) > 1:
            return self._index_of_chosen(offer, self._choose_rank(offer, fresh))
        chosen = (fresh or offer.options)[0]
        if not must_be_tried(self._sleep, chosen):
            raise RedundantRun
        self._wake_rank(chosen)
        return offer.options.index(chosen)

    def _continue_failed_poll(self, rank: int, node: int, offer: OfferedChoice) -> int | None:
        """Choose again the rank whose poll failed, if the same ranks can run; else count the failed poll as a step."""
        self._failed_poll = None
        if set(self._path[node].offer.options) == set(offer.options):
            return rank
        for access in self._intents[rank]:
            self.accessed(rank, Access(access.object, AccessMode.READ))
        self.begin_step(rank, None)
        return None

    def _index_of_chosen(self, offer: OfferedChoice, node: ChoiceNode) -> int:
        if node.offer != offer and (node.is_compared or node.chosen_option not in offer.options):
            self._differs = node.offer, offer
            return 0
        return offer.options.index(node.chosen_option)

    def _can_be_observed(self, rank: int) -> bool:
        """Return whether the rank's next step may depend on steps of other ranks. Ranks for which it cannot are tried
        first."""
        return any(
            mode is not AccessMode.CONTRIBUTE
            and (mode is not AccessMode.SEND or self._open_receives.get(object, 0) > 0)
            for object, mode in self._intents[rank]
        )

    def _choose_rank(self, offer: OfferedChoice, fresh: list[int]) -> ChoiceNode:
        if self._depth == len(self._path):
            awake = [rank for rank in fresh if must_be_tried(self._sleep, rank)] if self._sleep else fresh
            if not awake:
                raise RedundantRun
            hidden = next((rank for rank in awake if not self._can_be_observed(rank)), None)
            first = awake[0] if hidden is None else hidden
            self._path.append(ChoiceNode(offer, fresh, self._sleep, [first], is_compared=hidden is None))
        self.begin_step(self._path[self._depth].chosen_option, self._depth)
        node = self._advance_to_next_node()
        self._sleep = node.sleep
        self._wake_rank(node.chosen_option)
        if self._tried_sources:
            node.sources |= self._tried_sources.get(node.chosen_option, frozenset())
        return node

    def _wake_rank(self, rank: int) -> None:
        """Remove a chosen rank from the sleep set (the ranks that need no try)."""
        self._tried_sources.pop(rank, None)
        if rank in self._sleep:
            self._tried_sources[rank] = self._sleep[rank].sources
            self._sleep = {each: sleeper for each, sleeper in self._sleep.items() if each != rank}

    def _choose_source(self, offer: OfferedChoice) -> ChoiceNode:
        rank = offer.point.rank
        taken = self._tried_sources.get(rank, frozenset())
        if rank in self._sleep:  # no other rank could run, so it was not chosen
            taken |= self._sleep[rank].sources
        if self._depth == len(self._path):
            left = [source for source in offer.options if source not in taken]
            if not left:
                raise RedundantRun
            self._path.append(ChoiceNode(offer, offer.options, {}, left))
        return self._advance_to_next_node()

    def _advance_to_next_node(self) -> ChoiceNode:
        self._depth += 1
        if self._depth == self._new_from:
            self._old_races = len(self.races)
        return self._path[self._depth - 1]

    def find_divergence(self, *, is_cut: bool) -> Finding | None:
        """Return the finding if this execution offered other choices than the one whose path it repeats."""
        missing = self._path[self._depth].offer if self._depth < self._known else None
        return find_offer_divergence(self._differs, missing, is_cut=is_cut)

    def find_alternatives(self) -> None:
        """After the run: for each race, schedule a run in which the later step comes before the earlier one."""
        for race in (*self.races[self._old_races :], *self._messages.remaining_races()):
            if race.earlier.node is not None:  # else only its own rank could run there
                self._path[race.earlier.node].add_one_rank_of(initial_ranks(race, self.steps))
        if self._ended_by is not None:
            self._path[self._ended_by].add_another_rank()

    # --- observing ----------------------------------------------------------------------------------------------------

    def about_to_access(self, rank: int, accesses: Accesses, *, looks_again: bool = False) -> None:
        """Record the accesses of a rank's next step; the rank's accesses until now belong to the step before."""
        if rank in self._sleep:
            self.is_redundant = True
        # It belonged to the step that ends here; the next receive may take from any source.
        self._tried_sources.pop(rank, None)
        self.spins.about_to_access(rank, accesses, looks_again=looks_again)
        node = self._nodes[rank]
        is_first_look = looks_again and accesses == self._intents[rank] and self._current[rank] is None
        if node is not None and is_first_look and not self.spins.would_poll_in_vain(rank):
            self._failed_poll = rank, node
            return
        self._failed_poll = None
        self._intents[rank] = accesses
        self.begin_step(rank, None)

    def issued_call(self, rank: int, name: CallName, call: Call) -> None:
        """Record that a rank issued a call."""
        self.spins.issued_call(rank, name, call)
        super().issued_call(rank, name, call)
        if call.peer == ANY_SOURCE:
            channel = channel_object(call)
            self._open_receives[channel] = self._open_receives.get(channel, 0) + 1

    def started_thread(self, rank: int, thread: int) -> None:
        """Record that a rank started a thread, which can be chosen from now on."""
        self.spins.started_thread(rank, thread)
        self.starts_threads = True
        self._intents.append(())
        super().started_thread(rank, thread)

    def woke_task(self, by: int | None, rank: int) -> None:
        """Record that rank `by` (None: the clock) let `rank` continue."""
        self.spins.woke_task(by, rank)
        super().woke_task(by, rank)

    def cancelled_thread(self, rank: int) -> None:
        """Record that a rank's thread was cancelled, so that its next step will not happen."""
        self._intents[rank] = ()
        self._sleep = {each: sleeper for each, sleeper in self._sleep.items() if each != rank}

    def accessed(self, rank: int, access: Access, source: int | None = None, candidates: Sequence[int] = ()) -> None:
        """Record an access of a rank: it wakes sleeping ranks whose steps depend on the access, and may be in races."""
        self.spins.accessed(rank, access)
        self._failed_poll = None
        if access.mode in (AccessMode.RECEIVE, AccessMode.ANSWER):
            self._open_receives[access.object] -= 1
        if source is not None:
            self._note_message_source(rank, source)
        elif not must_be_tried(self._sleep, rank):
            self.is_redundant = True
        if self._sleep:
            self._sleep = sleep_after_access(self._sleep, rank, access)
        node = self._nodes[rank]
        if node is not None:
            self._path[node].accesses[access] = None
            if source is not None:
                self._path[node].sources.add(source)
        super().accessed(rank, access, source, candidates)

    def _note_message_source(self, rank: int, source: int) -> None:
        """Record the source of a received message; the run is redundant if an earlier run received from it here."""
        self._tried_sources[rank] = taken = self._tried_sources.get(rank, frozenset())
        if rank in self._sleep:
            taken |= self._sleep[rank].sources
            self._wake_rank(rank)
        if source in taken:
            self.is_redundant = True

    def used_feature(self, kind: str) -> None:
        """Record a feature that the program used, because it may depend on this whether DPOR covers the program."""
        self._used.add(kind)

    def run_cut_short(self, rank: int) -> None:
        """Record the rank whose step ended the run early."""
        self._ended_by = self._nodes[rank]
