"""`ddpsim run` and `ddpsim zoo` on real processes: verdicts, rows of the table, and exit status."""

import re

import pytest

from ddpsim import Code, Result, Schedule, Verdict
from ddpsim.scenarios import Expectation, finds, run_scenario
from ddpsim.scenarios.cli import main
from ddpsim.scenarios.cli.judgement import judge_result
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.scenarios.jobs.job_result import findings_of_reports
from ddpsim.scenarios.model import CLEAN, outcome_text_on_processes
from ddpsim.simulator.trace import Trace
from tests.jobs.test_job_findings import died, hung, raised, returned


def result_with(*reports):
    findings = findings_of_reports(reports, command="ddpsim run x")
    errors = {report.rank: ValueError() for report in reports if report.error}
    return Result(len(reports), findings, (None,) * len(reports), errors, Schedule(), Trace())


DEADLOCK = finds(Code.DEADLOCK_CYCLE, ranks=(0, 1))
MISMATCH = finds(Code.MISMATCH_REDUCTION, ranks=1)
DIVERGES = finds(Code.DIVERGENCE_PARAMETERS, ranks=1)
HAZARD = finds(Code.HAZARD_UNWAITED_WORK, ranks=1)
DEPENDS = finds(Code.MISMATCH_OPERATION, ranks=1, shows=4, otherwise=CLEAN)


@pytest.mark.parametrize(
    ("expected", "reports", "status", "line"),
    [
        (CLEAN, [returned(0)], 0, "as expected: pass (expected pass without a finding)"),
        (Expectation(), [returned(0)], 0, "as expected: pass"),
        (Expectation(), [hung(0)], 1, "not as expected: hung (expected pass)"),
        (DEADLOCK, [hung(0), hung(1)], 0, "as expected: hung (expected fail, deadlock.cycle, ranks 0, 1)"),
        (MISMATCH, [died(0)], 0, "as expected: died, rank 0 (expected fail, mismatch.reduction, rank 1)"),
        *(
            (
                expected,
                [returned(0)],
                1,
                f"not as expected: pass (expected fail, {wanted}); {why}, simulate it to see it",
            )
            for expected, wanted, why in [
                (MISMATCH, "mismatch.reduction, rank 1", "gloo compares no more than the number of bytes"),
                (
                    DIVERGES,
                    "divergence.parameters, rank 1",
                    "nothing compares the replicas of real processes",
                ),
                (DEADLOCK, "deadlock.cycle, ranks 0, 1", "real processes do not show it every time"),
            ]
        ),
        (HAZARD, [returned(0)], 0, "as expected: pass (expected pass, hazard.unwaited_work, rank 1)"),
        (HAZARD, [hung(0)], 0, "as expected: hung (expected pass, hazard.unwaited_work, rank 1)"),
        (DEPENDS, [hung(0)], 0, "as expected: hung (expected fail, mismatch.operation, rank 1)"),
        (DEPENDS, [returned(0)], 0, "as expected: pass (expected fail, mismatch.operation, rank 1)"),
    ],
)
def test_conclusion(expected, reports, status, line):
    result = result_with(*reports)
    assert judge_result(expected, result, "processes").status == status
    assert judge_result(expected, result, "processes").line == line


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        ([returned(0)], "pass"),
        ([hung(0), hung(1)], "hung"),
        ([raised(0), hung(1)], "rank_error, rank 0"),
        ([died(0), raised(1, "RuntimeError: Connection closed by peer")], "died, rank 0"),
        ([died(1), died(2), raised(0)], "died, ranks 1, 2"),
    ],
)
def test_what_was_found(reports, found):
    assert outcome_text_on_processes(result_with(*reports)) == found


HANGS = ["run", "both-send-first", "--transport", "processes", "--timeout", "1", "--world-size", "2"]


def test_run(server, capsys):
    assert main(HANGS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"both-send-first  world size 2  on processes  \d+ ms", lines[0])
    assert lines[2] == "STUCK  stuck"
    assert lines[-3] == "  replay  ddpsim run both-send-first --world-size 2 --transport processes --timeout 1"
    assert lines[-1] == "as expected: hung (expected fail, deadlock.cycle, ranks 0, 1)"


def test_rows_of_the_zoo(server, capsys):
    names = ["both-send-first", "exception-on-one-rank", "reduce-op-differs"]
    words = ["zoo", *names, "--no-repaired", "--transport", "processes", "--timeout", "1"]
    assert main(words) == ExitStatus.OTHERWISE
    rows = [re.sub(r" +\d+  (?=[=!])", "  ", line) for line in capsys.readouterr().out.splitlines()[1:4]]
    assert rows == [
        "both-send-first  = deadlock.cycle, ranks 0, 1; found hung",
        "exception-on-one-rank  = rank_error, rank 1",
        "reduce-op-differs  ! mismatch.reduction, rank 1; found pass",
    ]


def test_what_processes_cannot_run_is_no_surprise(server, capsys):
    words = ["zoo", "rank-crash", "exception-on-one-rank", "--no-repaired", "--transport", "processes"]
    assert main(words) == ExitStatus.AS_EXPECTED
    _, raises, *crash, empty, closing = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"exception-on-one-rank +\d+  = rank_error, rank 1", raises)
    assert re.fullmatch(
        r"rank-crash +0  - rank_error, rank 1; +not run: has faults \(Crash\(.*\), but .*", "".join(crash)
    )
    assert empty == ""
    assert closing.startswith("1 scenario as expected, 0 surprises, 1 not run, ")


def test_hang_names_the_command_that_simulates_the_same(server, capsys):
    assert main([*HANGS, "--engine", "ddp"]) == 0
    assert "`ddpsim run both-send-first --world-size 2 --engine ddp`" in capsys.readouterr().out


def test_simulated_transports_are_judged_by_the_finding(capsys):
    assert main(["run", "send-send", "--transport", "gloo"]) == 0
    out = capsys.readouterr().out
    (command,) = re.findall(r"  replay  ddpsim (.*)", out)
    assert command.endswith(" --transport gloo")
    assert main(command.split()) == 0
    assert run_scenario("send-send", transport="gloo").verdict is Verdict.FAIL
