"""torch's generic join context, by joinables of our own: what torch's test_join.py asks of it.

The joinables make a number of all_reduces in each iteration, so that totals can be worked out: a rank with `n` inputs
sees, in its iteration `i`, as many ones as there are ranks with more than `i` inputs.
"""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from ddpsim import Verdict, simulate
from tests.kit.results import returned

INPUTS = (3, 4, 5, 6)
"""Of each rank."""


class Counter(Joinable):
    """Counts, in each call, the ranks that have not joined; after the join it holds the last rank's number."""

    def __init__(self):
        super().__init__()
        self.last = torch.tensor(-1)

    def __call__(self, times):
        Join.notify_join_context(self)
        counted = 0
        for _ in range(times):
            ones = torch.ones(1)
            dist.all_reduce(ones)
            counted += int(ones)
        return counted

    def join_hook(self, **options):
        return CounterHook(self, options["times"])

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD


class CounterHook(JoinHook):
    """Adds nothing; in the end the last to join tells its number."""

    def __init__(self, counter, times):
        self.counter = counter
        self.times = times

    def main_hook(self):
        for _ in range(self.times):
            dist.all_reduce(torch.zeros(1))

    def post_hook(self, is_last_joiner):
        self.counter.last.fill_(dist.get_rank() if is_last_joiner else -1)
        dist.all_reduce(self.counter.last, dist.ReduceOp.MAX)


def counted(rank, inputs, counters=1, times=1, **options):
    joinables = [Counter() for _ in range(counters)]
    total = 0
    with Join(joinables, times=times, **options):
        for _ in range(inputs[rank]):
            total += sum(each(times) for each in joinables)
    return total, [int(each.last) for each in joinables]


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(("counters", "times"), [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_joined_ranks_add_nothing_and_the_last_one_tells(counters, times, seed):
    policy = {} if seed is None else {"policy": "random", "seed": seed}
    for rank, (total, last) in enumerate(returned(counted, 4, args=(INPUTS, counters, times), **policy)):
        ranks_at_work = [sum(inputs > iteration for inputs in INPUTS) for iteration in range(INPUTS[rank])]
        assert total == counters * times * sum(ranks_at_work)
        assert last == [3] * counters


@pytest.mark.parametrize("counters", [1, 3])
def test_a_join_that_is_turned_off_lets_equal_inputs_through(counters):
    def program(rank):
        return counted(rank, (3, 3, 3, 3), counters, enable=False)

    assert returned(program, 4) == ((3 * 4 * counters, [-1] * counters),) * 4


def test_a_join_that_is_turned_off_does_not_help_uneven_ones():
    def program(rank):
        return counted(rank, INPUTS, enable=False)

    result = simulate(program, 4)
    assert [(str(finding.code), finding.ranks) for finding in result.findings] == [("deadlock.missing_rank", (0,))]


@pytest.mark.parametrize("counters", [1, 3])
def test_all_ranks_raise_where_a_join_is_told_to(counters):
    def program(rank):
        with pytest.raises(RuntimeError) as caught:
            counted(rank, INPUTS, counters, throw_on_early_termination=True)
        return str(caught.value)

    first, *others = returned(program, 4)
    assert first == "Rank 0 exhausted all inputs."
    assert set(others) == {"Detected at least one rank that exhausted inputs. Throwing across all ranks."}


def test_a_joinable_gives_its_own_arguments_to_its_hook():
    def program(rank):
        counter = Counter()
        with pytest.raises(KeyError, match="times"), Join([counter]):
            pass

    result = simulate(program, 2)
    assert result.verdict is Verdict.PASS


def test_a_join_wants_joinables_of_one_group():
    class OfAnother(Counter):
        @property
        def join_process_group(self):
            return others

    def program(rank):
        global others
        others = dist.new_group([0, 1])
        with pytest.raises(ValueError, match="multiple process groups"):
            Join([Counter(), OfAnother()], times=1)

    simulate(program, 2).raise_for_verdict()
