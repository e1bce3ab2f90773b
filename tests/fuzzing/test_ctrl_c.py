"""Ctrl-C at the worst times: in a weak reference's callback, while shrinking or saving, and with batches under way."""

import os
import signal
import threading
import weakref
from contextlib import nullcontext
from functools import partial

import pytest

from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.fuzzing import corpus
from ddpsim.scenarios.fuzzing.batch import run_batch
from ddpsim.scenarios.fuzzing.campaign import CampaignEnd, campaign_summary, run_campaign
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from ddpsim.simulator.ctrl_c import CtrlCGuard
from tests.kit.own_programs import RACY

pytestmark = pytest.mark.tier("ci")

PROGRAMS = CampaignPlan(kinds=(Kind.PROGRAM, Kind.BROKEN_PROGRAM), executions=30)


@pytest.fixture
def racy(tmp_path):
    """A campaign that finds one failure, and needs no import of ours before it does."""
    (tmp_path / "own.py").write_text(RACY)
    name = str(tmp_path / "own.py") + ":racy"
    plan = CampaignPlan(
        engines=(Engine.TORCH,), executions=20, name=name, saved_as="../own.py:racy", world_sizes=(3, 3)
    )
    return partial(run_campaign, plan, seconds=600, corpus=tmp_path / "corpus")


def press():
    signal.raise_signal(signal.SIGINT)


def press_where_it_is_lost():
    """In a callback, of which Python says that it raised, and goes on."""

    class Mortal:
        pass

    mortal = Mortal()
    reference = weakref.ref(mortal, lambda _: press())
    del mortal
    assert reference() is None


lost = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@lost
def test_one_that_python_loses_is_looked_for():
    before = signal.getsignal(signal.SIGINT)
    went_on = []
    with CtrlCGuard() as ctrl_c:
        press_where_it_is_lost()
        went_on.append(ctrl_c.is_pressed)
        ctrl_c.raise_if_pressed()
        went_on.append("not reached")
    assert went_on == [True]
    assert ctrl_c.is_pressed
    assert signal.getsignal(signal.SIGINT) is before


def test_the_inner_one_ends_and_the_outer_one_goes_on():
    with CtrlCGuard(raises=False) as outer:
        with CtrlCGuard() as inner:
            press()
        assert (inner.is_pressed, outer.is_pressed) == (True, False)
        press()
        assert outer.is_pressed
    with CtrlCGuard() as untouched:
        pass
    assert not untouched.is_pressed


def test_other_threads_and_processes_that_ignore_it_keep_their_handler():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with CtrlCGuard():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    seen = []

    def enter():
        with CtrlCGuard():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def raise_it():
    raise KeyboardInterrupt


@lost
@pytest.mark.parametrize("press", [raise_it, press_where_it_is_lost])
def test_one_within_a_batch_ends_it_lost_or_not(monkeypatch, press):
    runs = []

    def pressed(*each, **options):
        runs.append(each)
        if len(runs) == 10:
            press()
        return run_scenario(*each, **options)

    monkeypatch.setattr("ddpsim.scenarios.fuzzing.judging.run_scenario", pressed)
    report = run_batch(PROGRAMS, 0)
    assert report.is_interrupted
    assert 6 <= report.totals.execution_count <= 10
    assert len(runs) <= 11


@lost
def test_one_that_is_lost_between_batches_ends_the_campaign(racy):
    def pressed(progress):
        if progress.doing == "fuzzing":
            press_where_it_is_lost()

    told = racy(on_progress=pressed)
    assert told.interrupted
    assert [each.how for each in told.kept] == ["not shrunk"]


@pytest.mark.parametrize("place", ["record_outcome_in_file", "save_failure", "shrink_scenario"])
def test_while_a_failure_is_kept_it_is_summed_up(racy, monkeypatch, tmp_path, place):
    before, calls = getattr(corpus, place), []

    def pressed(*each, **options):
        calls.append(each)
        if place != "save_failure" or len(calls) == 3:  # found, saved again, shrunk
            press()
        return before(*each, **options)

    monkeypatch.setattr(corpus, place, pressed)
    told = racy()
    assert told.end is CampaignEnd.INTERRUPT
    (kept,) = told.kept
    assert kept.replay == f"ddpsim run {kept.path}"
    assert (
        kept.how == "not shrunk" if place != "record_outcome_in_file" else kept.how.startswith("shrunk from 3 ranks, ")
    )
    assert [kept.path] == list((tmp_path / "corpus").iterdir())
    assert "(interrupted)" in campaign_summary(told)


def test_batches_under_way_on_other_processes_are_told(monkeypatch, tmp_path):
    def two_at_once(plan, numbers, left):
        coming = iter(numbers)
        first, *_ = next(coming), next(coming), next(coming)
        yield run_batch(plan, first)
        press()

    monkeypatch.setattr(
        "ddpsim.scenarios.fuzzing.campaign.reports_of_workers", lambda workers: nullcontext(two_at_once)
    )
    plan = CampaignPlan(kinds=PROGRAMS.kinds, executions=400)
    told = run_campaign(plan, seconds=600, corpus=tmp_path)
    assert told.totals.execution_count >= 40
    assert "(interrupted: 2 batches under way dropped)" in campaign_summary(told)


def test_a_disk_that_is_full_costs_a_file_and_no_summary(racy, monkeypatch, tmp_path):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (kept,) = racy().kept
    assert kept.how.startswith(
        f"not shrunk; {kept.path} cannot be written (No space left on device): give a writable folder"
    )


def test_a_path_with_a_blank_can_be_pasted(racy, tmp_path):
    told = racy(corpus=tmp_path / "my corpus")
    (kept,) = told.kept
    assert f"  run     ddpsim run '{kept.path}'\n" in str(kept)
    assert kept.replay.startswith(f"ddpsim replay '{kept.path}' s1:")
