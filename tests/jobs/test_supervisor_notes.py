"""What supervisors tell each other through the store; no process is started."""

from torch.distributed import HashStore

from ddpsim.scenarios.jobs.rank_report import RankEnding, RankReport
from ddpsim.scenarios.jobs.supervisor_notes import FAILED_TO_START, HUNG, LOST, Heartbeats, SupervisorStore


def world(size):
    store = HashStore()
    return [SupervisorStore(rank, size, store) for rank in range(size)]


def report(rank, ending=RankEnding.RETURNED, *, has_started=True):
    return RankReport(rank, ending, 0.0, has_started)


def test_reports_are_gathered():
    first, second = world(2)
    second.write_report(report(1))
    assert not first.have_all_ended()
    first.write_report(report(0))
    assert second.have_all_ended()
    assert first.read_reports() == (report(0), report(1))
    assert first.reason_of_end() is None


def test_a_hang_and_a_rank_that_does_not_start_end_the_run_for_all():
    for ending, has_started, why in ((RankEnding.HUNG, True, HUNG), (RankEnding.RAISED, False, FAILED_TO_START)):
        first, second = world(2)
        second.write_report(report(1, ending, has_started=has_started))
        assert first.reason_of_end() == why, ending


def test_a_supervisor_without_a_sign_of_life_is_reported_once():
    first, second, third = world(3)
    mine, its = Heartbeats(first), Heartbeats(second)
    third.write_report(report(2))
    for now in range(60):
        mine.send_heartbeat(float(now))
        its.send_heartbeat(float(now))
    for now in range(60, 131):  # the second is silent from here on
        mine.send_heartbeat(float(now))
    assert not first.have_all_ended()
    first.write_report(report(0))
    own, lost, ended = first.read_reports()
    assert (own, ended) == (report(0), report(2))  # the third is silent, too, and has reported
    assert (lost.ending, lost.death) == (RankEnding.DIED, LOST)
    assert not first.are_all_idle()
    for own in (first, third):
        own.set_idle(own.rank, is_idle=True)
    assert first.are_all_idle()  # for who is lost, nobody else can say so


def test_all_ranks_are_idle_until_one_takes_it_back():
    first, second = world(2)
    second.set_idle(1, is_idle=True)
    assert not first.are_all_idle()
    first.set_idle(0, is_idle=True)
    assert first.are_all_idle()
    assert second.are_all_idle()
    second.set_idle(1, is_idle=False)
    assert not first.are_all_idle()
