"""Campaigns: what fails is shrunk and kept, and tried first the next time; what ends one early loses nothing."""

import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from ddpsim import UsageError
from ddpsim.scenarios import load, run_scenario, shrink_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.fuzzing.batch import run_batch
from ddpsim.scenarios.fuzzing.campaign import CampaignEnd, campaign_summary, run_campaign
from ddpsim.scenarios.fuzzing.corpus import CorpusFileState, run_corpus_files
from ddpsim.scenarios.fuzzing.plan import CampaignPlan
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from ddpsim.scenarios.training.training import IterationRule, NetworkChoice
from ddpsim.simulator.exploration.workers import WorkersLostError
from tests.fuzzing.replaying import planted
from tests.tiers import sweep

TRAININGS = CampaignPlan(engines=(Engine.DDP,), kinds=(Kind.TRAINING,), executions=12)
PROGRAMS = CampaignPlan(kinds=(Kind.PROGRAM, Kind.BROKEN_PROGRAM), executions=30)


@pytest.fixture
def broken_engine():
    """Two ranks' gradients are divided by three."""
    with planted(only=2) as patch:
        yield patch


@pytest.fixture
def campaign(tmp_path):
    """Runs one with a corpus of its own."""
    return partial(run_campaign, seconds=600, corpus=tmp_path / "corpus")


def test_where_nothing_is_wrong_nothing_is_found(campaign, tmp_path):
    shown = []
    told = campaign(PROGRAMS, on_progress=shown.append)
    assert {each.doing for each in shown} == {"fuzzing"}
    assert told.end is CampaignEnd.BUDGET
    assert not told.has_failures
    assert 30 <= told.totals.execution_count <= 32
    assert not (tmp_path / "corpus").exists()
    assert re.fullmatch(r"3\d executions in .*\n\nnothing found", campaign_summary(told), re.DOTALL)
    assert campaign_summary(replace(told, standing="ends early")).startswith("ends early\n\n3")


@pytest.mark.tier("ci")
def test_what_fails_is_shrunk_kept_and_tried_first_the_next_time(campaign, tmp_path, broken_engine):
    first = campaign(TRAININGS)
    assert first.has_failures
    kept = first.kept[0]
    assert re.fullmatch(r"divergence\.gradients-[0-9a-f]{8}\.toml", kept.path.name)
    assert sorted((tmp_path / "corpus").iterdir()) == sorted(each.path for each in first.kept)
    scenario = load(str(kept.path))
    (training,) = scenario.args
    assert (scenario.world_size, training.iterations, training.networks) == (
        2,
        IterationRule(1),
        (NetworkChoice("linear"),),
    )
    assert scenario.engine is Engine.DDP
    assert not scenario.expected_by(Engine.DDP).is_met_by(run_scenario(scenario))
    assert kept.replay == run_scenario(scenario).replay

    again = campaign(replace(TRAININGS, seed=5000, executions=1))
    assert [(tried.path, tried.state) for tried in again.corpus] == [
        (each.path, CorpusFileState.FAILS) for each in sorted(first.kept, key=lambda each: each.path)
    ]
    assert again.has_failures
    assert again.totals.executions["training", Engine.DDP] == len(first.kept) + 1

    broken_engine.undo()
    repaired = campaign(replace(TRAININGS, seed=5000, executions=1))
    assert {tried.state for tried in repaired.corpus} == {CorpusFileState.PASSES}
    assert not repaired.has_failures
    assert kept.path.exists()


@pytest.mark.tier("ci")
def test_a_failure_that_the_corpus_has_is_no_new_one(campaign, broken_engine):
    first = campaign(TRAININGS)
    again = campaign(TRAININGS)
    assert [each.path for each in again.kept] == [each.path for each in first.kept]
    assert all(each.is_known for each in again.kept)
    count = len(first.kept)
    text = f"found: {count} failure{'s' * (count > 1)} reproduced from the corpus"
    assert campaign_summary(again).endswith(text)
    assert f"found: {count} new failure{'s' * (count > 1)}" in campaign_summary(first)


@pytest.mark.tier("ci")
def test_ctrl_c_while_shrinking_keeps_the_rest_as_it_is(campaign, monkeypatch, broken_engine):
    def interrupt(progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        "ddpsim.scenarios.fuzzing.corpus.shrink_scenario", partial(shrink_scenario, on_progress=interrupt)
    )
    told = campaign(TRAININGS)
    first, *others = told.kept
    assert told.interrupted
    assert first.how.startswith("shrunk from ")
    assert first.how.endswith(", maybe not minimal")
    assert [each.how for each in others] == ["not shrunk"] * len(others)


@pytest.mark.parametrize("number", sweep([2, 3], lambda number: number == 3))
def test_a_failure_that_does_not_come_again_is_kept_as_it_is(campaign, monkeypatch, broken_engine, number):
    runs = []

    def passes_once(scenario, *each, **options):
        if "policy" in options:  # a simpler scenario is tried
            return run_scenario(scenario, *each, **options)
        runs.append(scenario)
        return run_scenario("join-baseline" if len(runs) == number else scenario, *each, **options)

    monkeypatch.setattr("ddpsim.scenarios.fuzzing.shrinking.shrinker.run_scenario", passes_once)
    told = campaign(TRAININGS)
    first, *others = told.kept
    assert first.how == "not shrunk: it did not fail again under its schedule, so it depends on time or chance"
    assert first.path.exists()
    assert all(each.how.startswith("shrunk from ") for each in others)
    assert "found: " in campaign_summary(told)


def test_workers_that_are_lost_end_it_with_what_was_found(campaign, monkeypatch):
    def lost(plan, numbers, left):
        yield run_batch(plan, next(iter(numbers)))
        raise WorkersLostError("KilledWorker: three times")

    monkeypatch.setattr("ddpsim.scenarios.fuzzing.campaign.reports_of_workers", lambda workers: nullcontext(lost))
    told = campaign(PROGRAMS)
    assert told.end is CampaignEnd.LOST
    assert told.totals.execution_count >= 30
    assert "(the workers were lost: KilledWorker: three times)" in campaign_summary(told)


def test_an_exception_of_ours_is_a_finding_and_ends_nothing(campaign, monkeypatch):
    def raises(scenario, *each, **options):
        if scenario.args[0].world_size == 3:
            raise ZeroDivisionError("of ours")
        return run_scenario(scenario, *each, **options)

    for module in ("fuzzing.judging", "fuzzing.corpus", "fuzzing.shrinking.shrinker"):
        monkeypatch.setattr(f"ddpsim.scenarios.{module}.run_scenario", raises)
    told = campaign(PROGRAMS)
    assert all(each.path.exists() and each.how == "not shrunk" for each in told.kept)
    assert {each.failure.group.code for each in told.kept} == {"ZeroDivisionError"}
    assert all(each.failure.found == "ZeroDivisionError: of ours" for each in told.kept)
    assert told.totals.execution_count > told.totals.outcomes["ZeroDivisionError"] > 0


def write(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return folder


WHOLE = 'ddpsim = 1\nsummary = "one iteration"\nworld_size = 2\niterations = 1\n[expect]\noracle = true\n'


def test_files_that_cannot_be_read_are_one_line_each_and_end_nothing(tmp_path):
    corpus = write(
        tmp_path / "corpus",
        a_version=WHOLE.replace("ddpsim = 1", "ddpsim = 99"),
        b_cut_short=WHOLE[: len(WHOLE) // 2],
        c_edited=WHOLE.replace("world_size = 2", "world_size = 'two'"),
        d_unknown_scenario='ddpsim = 1\nsummary = "x"\nscenario = "no-such-scenario"\n',
        e_binary="",
        f_whole=WHOLE,
    )
    (corpus / "e_binary.toml").write_bytes(b"\xff\xfe\x00")
    tried = list(run_corpus_files(corpus, tuple(Engine)))
    assert [each.state for each in tried] == [CorpusFileState.UNREADABLE] * 5 + [CorpusFileState.PASSES]
    for each in tried[:-1]:
        text = str(each)
        assert text.count("\n") == 0
        assert text.startswith(f"{each.path}  cannot be read: ")
        assert text.endswith("; the other files are run: correct or delete this one")
    assert "1, the version that this ddpsim reads" in tried[0].text
    assert str(tried[-1]) == f"{tried[-1].path}  passes now: kept, in case it comes back"


def test_files_of_another_engine_are_not_tried(tmp_path):
    corpus = write(tmp_path / "corpus", own=WHOLE.replace("iterations", 'runs_on = "ddp"\niterations'))
    (tried,) = run_corpus_files(corpus, (Engine.TORCH,))
    assert str(tried) == f"{tried.path}  not tried: it runs on ddp"
    assert not tried.executions


def test_a_corpus_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "corpus"
    path.write_text("")
    with pytest.raises(UsageError, match=r"^corpus '.*corpus' is not a folder: give a folder or a new name"):
        run_campaign(PROGRAMS, corpus=path)


def test_a_corpus_that_cannot_be_written_is_told_before_anything_is_run(tmp_path):
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "corpus")
    with pytest.raises(UsageError, match=f"^corpus {folder!r} cannot be created: give another folder"):
        run_campaign(PROGRAMS, corpus=tmp_path / "file" / "corpus")
