"""A replay that diverges shows both sides: what was recorded, what is open now, and the steps before."""

import pickle

import pytest
import torch
import torch.distributed as dist

from ddpsim import ChoiceKind, ReplayDivergedError, Schedule, replay, simulate
from ddpsim.simulator.choices import program_identity


def collects(rank, senders):
    """Rank 0 takes a message of each of the first so many other ranks."""
    if rank > senders:
        return None
    if rank:
        return dist.send(torch.tensor(rank), dst=0)
    message = torch.tensor(0)
    return [dist.recv(message) for _ in range(senders)]


SEND = collects.__code__.co_firstlineno + 5
RECV = SEND + 2


def token(*choices):
    return str(Schedule(choices, program_identity("collects", 4)))


def caught(*choices, senders):
    with pytest.raises(ReplayDivergedError) as found:
        replay(collects, 4, token(*choices), args=(senders,))
    return found.value


def test_both_sides_of_a_choice_of_ranks():
    # Rank 3 starts, and before its send the fourth of 3, 0, 1, 2 goes on. Without a send it returns: three are left.
    assert replay(collects, 4, token(3, 3, 0, 2, 1), args=(3,)).schedule.choices[:5] == (3, 3, 0, 2, 1)
    error = caught(3, 3, 0, 2, 1, senders=1)
    assert str(error).splitlines() == [
        "replay diverged at step 0: choice 1 of the schedule (which rank runs next) takes option 3, but only 3 are "
        "open: the program or its input has changed since the recording",
        "  recorded   takes option 3, so 4 or more were open, and continues with 0.2.1",
        f'  open now   rank 0  next: issue recv #0  int64[]  from any source  group "default"  test_replay.py:{RECV}',
        f'             rank 1  next: issue send #0  int64[]  to rank 0  group "default"        test_replay.py:{SEND}',
        "             rank 2  next: return",
        "  not open   rank 3  has returned",
        "  before       step      time  choice  rank  what",
        "                  0       0 s             3  return",
    ]
    # In fields, too, which other processes get.
    again = pickle.loads(pickle.dumps(error))
    for each in (error, again):
        assert (each.choice, each.choice_points, each.rank, each.answer, each.options) == (1, 0, 3, 3, (0, 1, 2))
    assert str(again) == str(error)


def test_a_run_that_ends_early():
    error = caught(0, 0, 0, 2, 1, senders=0)
    assert str(error).splitlines() == [
        "replay diverged: the run ended after 3 choices, but the schedule has 2 more: the program or its "
        "input has changed since the recording",
        "  recorded   continues with 2.1",
        "  before       step      time  choice  rank  what",
        *(f"                  0       0 s             {rank}  return" for rank in range(4)),
    ]
    assert (error.choice, error.rank, error.answer, error.options) == (3, None, 2, ())


def test_a_rank_that_waits_is_not_open():
    # Rank 1 starts, goes on to its send and to its wait, where ranks 2, 3 and 0 are left.
    error = caught(1, 0, 0, 3, senders=1)
    assert (error.rank, error.options) == (1, (2, 3, 0))
    where = f'send #0  int64[]  to rank 0  group "default"  test_replay.py:{SEND}'
    text = str(error).splitlines()
    assert f"  not open   rank 1  waits in {where}" in text
    assert text[-1].endswith(f"1  wait    {where}")


class FirstSender:
    """Takes the default among ranks, and among messages the third."""

    def choose(self, point, options):
        return 2 if point.kind is ChoiceKind.SOURCE else 0


def mails(rank, late):
    """All others send to rank 0, which receives when all have; `late` sends to rank 1 instead."""
    if rank:
        dist.isend(torch.tensor(rank), dst=1 if rank == late else 0)
    dist.barrier()
    if rank == 0:
        dist.recv(torch.tensor(0))


def test_both_sides_of_a_choice_of_messages():
    recorded = simulate(mails, 4, args=(None,), policy=FirstSender())
    with pytest.raises(ReplayDivergedError) as found:
        replay(mails, 4, recorded.schedule, args=(3,))
    line = mails.__code__.co_firstlineno + 3
    text = str(found.value).splitlines()
    assert "(whose message a receive takes) takes option 2, but only 2 are open: " in text[0]
    assert text[2:4] == [
        f'  open now   rank 1  last: issue send #0  int64[]  to rank 0  group "default"  test_replay.py:{line}',
        f'             rank 2  last: issue send #0  int64[]  to rank 0  group "default"  test_replay.py:{line}',
    ]
    assert text[-1].endswith(f'recv #0  int64[]  from any source  group "default"  test_replay.py:{line + 3}')
    assert (found.value.rank, found.value.answer, found.value.options) == (0, 2, (1, 2))


def test_a_lenient_replay_goes_on_with_what_fits():
    result = replay(collects, 4, token(3, 3, 0, 2, 1), args=(1,), strict=False)
    assert result.returns[0] == [1]
    assert result.schedule.choices[:3] == (3, 3 % 3, 0)
    result.raise_for_verdict()


def test_many_ranks_share_a_line():
    with pytest.raises(ReplayDivergedError) as found:
        replay(collects, 64, Schedule((63, 63), program_identity("collects", 64)), args=(1,))
    text = str(found.value).splitlines()
    assert "             ranks 2-62  next: return" in text
    assert len(text) < 12
