"""Records that simulated runs leave: what a run found, and what its records are diagnosed as."""

import pickle
from functools import partial

import pytest

from ddpsim import Verdict, simulate
from ddpsim.scenarios import load, registry, run_scenario
from ddpsim.scenarios.files.value_scenarios import expectation_of_program, scenario_of_program
from ddpsim.scenarios.records.failing_test import source_of_test as text_of_test
from ddpsim.simulator.records.as_clog import make_clog
from ddpsim.simulator.records.as_flight_recorder import make_dump
from ddpsim.simulator.records.as_program import make_program
from ddpsim.simulator.records.job import combine_records
from ddpsim.simulator.records.rank_record import CallProgress, RecordError
from ddpsim.simulator.records.record_diagnosis import diagnose_job
from ddpsim.simulator.records.run_log import make_run_log
from tests.records.dumps import read
from tests.records.torchs_reader import told_by_torch
from tests.tiers import sweep

FORMS = {"flight recorder": (make_dump, "rank_{}"), "clog": (make_clog, "clog_rank_{}.log")}

SAMPLE = (
    "uneven-inputs-without-join",
    "op-type-differs",
    "allreduce-dtype-differs",
    "cross-group-order-inversion",
    "reduce-op-differs",
    "both-send-first",
    "exception-on-one-rank",
)

CARRIED = {
    "flight recorder": {"operation", "shape", "dtype", "cycle", "missing_rank", "dead_rank"},
    "clog": {"operation", "shape", "dtype", "cycle", "missing_rank", "dead_rank", "reduction", "root", "splits"},
}
"""Findings, by the end of their codes, of which the form has all that they take."""

NOT_CARRIED = {
    "allreduce-layout-differs": "a clog has numbers of elements, no shapes",
    "batch-replayed-in-order": "which messages were started together no record says",
    "send-issued-before-receive": "in which order messages of a rank are started no record says",
    "message-tags-differ": "tags are in no record",
    "restart-count-as-store-prefix": "waits for keys of the store are in no record",
    "group-first-used-after-exit": "which ranks were connected no record says",
    "first-call-left-behind": "which ranks were connected no record says",
    "pipeline-stage-with-other-schedule": "which schedule a stage has no record says; its messages blame rank 1 alone",
    "two-wrapped-models-in-their-own-groups": "what a call is for no record says, so the odd rank is not told",
}


def records(result, form):
    write, name = FORMS[form]
    noted = make_run_log(result.trace, result.world_size)
    return [read(write(noted, rank), name.format(rank)) for rank in range(result.world_size)]


def leading(result):
    """The findings that a record may show: calls that met, and ranks that waited."""
    kinds = ("mismatch.", "deadlock.")
    return [each for each in result.findings if each.code.startswith(kinds) and each.code.verdict is Verdict.FAIL]


@pytest.mark.parametrize("name", sweep(sorted(registry), lambda name: name in SAMPLE))
def test_the_records_of_a_run_blame_whom_the_run_blames(name):
    result = run_scenario(load(name))
    wanted = {each.ranks for each in leading(result) if each.code.partition(".")[2] in CARRIED["clog"]}
    for form, carried in CARRIED.items():
        known = [each for each in leading(result) if each.code.partition(".")[2] in carried]
        if known and name not in NOT_CARRIED:
            found = diagnose_job(combine_records(records(result, form), result.world_size))
            assert wanted & {each.ranks for each in found.findings}, (form, found.findings)
        elif not result.findings and any(make_run_log(result.trace, result.world_size).ranks):
            assert diagnose_job(combine_records(records(result, form), result.world_size)).findings == ()


OTHER_CALLS = {
    "cross-group-order-inversion": "a record numbers a group's calls from its first collective, a run from its making",
    "group-order-inversion": "the same",
    "groups-in-a-ring": "the same",
    "new-group-not-called-by-everyone": "making a group is in no record, so the other side of the cycle is not",
    "join-left-by-exception": "a record has no calls of the join that only tell whether ranks have ended",
    "expert-backward-skipped-without-tokens": "a flight recorder calls all_to_all_single all_to_all",
}
"""Scenarios whose run and records name another call, and why."""


@pytest.mark.parametrize("name", sweep(sorted(registry), lambda name: name in SAMPLE))
def test_a_run_and_its_records_name_the_same_ranks_calls_and_lines(name):
    result = run_scenario(load(name))
    for form, carried in CARRIED.items() if name not in NOT_CARRIED else ():
        known = [each for each in leading(result) if each.code.partition(".")[2] in carried]
        if not known:
            continue
        found = diagnose_job(combine_records(records(result, form), result.world_size)).findings[0]
        assert found.ranks == known[0].ranks, form
        if name not in OTHER_CALLS:
            assert {call.title for call in found.calls} == {call.title for call in known[0].calls}, form
            if form == "flight recorder":  # a clog has no lines
                assert {call.site for call in found.calls} == {call.site for call in known[0].calls}


@pytest.mark.parametrize("name", sweep(sorted(registry), lambda name: name in SAMPLE))
def test_what_is_written_of_the_records_of_a_run_finds_alike_in_both_forms(name):
    result = run_scenario(load(name))
    for form in FORMS if leading(result) and name not in NOT_CARRIED else ():
        try:
            found = diagnose_job(combine_records(records(result, form), result.world_size))
        except RecordError:  # no rank made a call
            continue
        if found.verdict is not Verdict.FAIL:
            continue
        program = make_program(found)
        expected, names = expectation_of_program(program), {}
        text = text_of_test(program, function="test_it", summary="", command="")
        exec(compile(text, "test_it.py", "exec"), names)
        scenario = scenario_of_program(program, name="hang")
        for run in (names["test_it"], partial(scenario.program, program=program)):
            (leads, *_) = simulate(run, program.world_size).findings
            assert (leads.code, leads.ranks) == (expected.code, expected.ranks), form
            assert "interpreter" not in leads.text or form == "clog"  # which has no lines


def test_records_say_what_the_run_did():
    result = run_scenario(load("uneven-inputs-without-join"))
    for form in FORMS:
        per_rank = records(result, form)
        assert [len(each.calls) for each in per_rank] == [10, 9, 10, 10]
        assert [each.rank for each in per_rank] == [0, 1, 2, 3]
        assert {each.calls[-1].progress for each in (per_rank[0], per_rank[2])} == {CallProgress.UNFINISHED}
        assert {recorded.progress for recorded in per_rank[1].calls} == {CallProgress.COMPLETE}


def test_torchs_own_reader_reads_the_dumps(ddpsim, tmp_path):
    ddpsim("run", "uneven-inputs-without-join", "--flight-recorder", "dumps")
    told = told_by_torch(tmp_path / "dumps")
    assert "missing ranks: {1}" in told
    assert "collective: nccl:all_reduce" in told


def test_the_console_writes_both_forms(ddpsim, tmp_path):
    status, out, _ = ddpsim("run", "op-type-differs", "--flight-recorder", "a/dumps", "--clog", "logs")
    assert status == 0
    assert out.splitlines()[-2:] == ["records  a/dumps", "records  logs"]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir())[0] == "clog_rank_0.log"
    assert pickle.loads((tmp_path / "a" / "dumps" / "rank_0").read_bytes())["version"] == "2.10"
    for folder in ("a/dumps", "logs"):
        assert ddpsim("diagnose", folder)[0] == 1
    _, _, err = ddpsim("run", "op-type-differs", "--clog", "logs")
    assert err == ("ddpsim: logs already has records, such as clog_rank_0.log: give another folder\n")
    _, _, err = ddpsim("run", "op-type-differs", "--engine", "both", "--clog", "other")
    assert "--clog with 2 runs, expected one" in err
    _, _, err = ddpsim("run", "op-type-differs", "--transport", "processes", "--clog", "other")
    assert "--clog with --transport processes, expected a simulated run" in err


def test_explore_and_replay_write_them_too(ddpsim, tmp_path):
    assert ddpsim("explore", "op-type-differs", "--clog", "explored")[0] == 0
    line = ddpsim("run", "op-type-differs")[1].partition("  replay  ddpsim replay ")[2].split()
    assert ddpsim("replay", *line[:2], "--clog", "replayed")[0] == 0
    for folder in ("explored", "replayed"):
        assert "mismatch.operation" in ddpsim("diagnose", folder)[1]


def test_an_exploration_in_which_nothing_fails_says_that_it_leaves_no_records(ddpsim):
    words = ("explore", "--world-size", "2", "--flight-recorder", "dumps")
    status, out, err = ddpsim(*words, "op-type-differs-repaired")
    assert (status, "records" in out) == (0, False)
    assert "no schedule failed, so no records are written" in err
    status, out, err = ddpsim(*words, "op-type-differs")
    assert "records  dumps" in out
    assert "no schedule failed" not in err
