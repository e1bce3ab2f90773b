"""`--report DIR` and `--open` of the commands that run something."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from junitparser import JUnitXml

from ddpsim import Schedule
from ddpsim.reports.forms.json_form import read_document
from ddpsim.reports.report_folder import WRITTEN
from ddpsim.scenarios.cli import zoo_outcome
from ddpsim.scenarios.running.runner import run_scenario
from ddpsim.simulator.choices import program_identity
from ddpsim.simulator.verdict import Verdict
from tests.jobs.test_cli import result_with
from tests.jobs.test_job_findings import hung
from tests.kit.own_programs import FINE, RACY

ROOT = Path(__file__).resolve().parents[2]
MISSING = "uneven-inputs-without-join"

OWN = RACY + FINE


def names(folder):
    """The files in a folder and below, by their paths."""
    return sorted(path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())


def rows(folder):
    """The rows of an index: link or "", name, engine, outcome, expected, found."""
    page = (Path(folder) / "index.html").read_text(encoding="utf-8")
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    found = []
    for row in body.split("<tr>")[1:]:
        link = re.search(r'href="([^"]*)"', row)
        cells = [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
        name, outcome, engine, expected, came = cells[:5]
        found.append((link[1] if link else "", name, engine, outcome, expected, came))
    return found


# --- one run ----------------------------------------------------------------------------------------------------------


def test_a_run_is_reported(ddpsim):
    status, out, err = ddpsim("run", MISSING, "--report", "deep/er")
    assert (status, err) == (0, "")
    assert out.endswith("as expected: fail, deadlock.missing_rank, rank 1\nreport  deep/er/report.html\n")
    assert names("deep/er") == ["report.html", "report.txt", "result.json", "trace.json"] == sorted(WRITTEN)
    run = read_document(Path("deep/er/result.json")).runs[0]
    assert (run.name, run.how, run.is_expected) == (MISSING, "policy round_robin", True)
    assert run.text in out
    assert run.conclusion == "as expected: fail, deadlock.missing_rank, rank 1"
    assert 0 < run.seconds < 60


def test_lanes_stand_under_what_was_found(ddpsim):
    plain, drawn = (ddpsim("run", MISSING, *words)[1].splitlines() for words in ((), ("--lanes",)))
    first = drawn.index("lanes  matched calls are in one column")
    assert drawn[1:first] == plain[1:-1]  # but for the head, which has the time
    assert drawn[first + 1 : -1] == [
        "rank 0  ABBRBBRRRR=  waits",
        "rank 1  ABBRBBRRR?   returned",
        "rank 2  ABBRBBRRRR=  waits",
        "rank 3  ABBRBBRRRR=  waits",
        "  A all_gather   B broadcast   R all_reduce   = waits forever   ? never came",
        "",
    ]
    assert drawn[-1] == plain[-1]


def test_a_report_says_engine_and_surprise(ddpsim):
    status, _, _ = ddpsim("run", "send-send", "--engine", "ddp", "--report", "r")
    assert status == 0
    assert read_document(Path("r/result.json")).runs[0].how == "engine ddp  policy round_robin"
    Path("own.py").write_text(OWN, encoding="utf-8")
    status, _, _ = ddpsim("run", "own.py:racy", "--world-size", 3, "--policy", "random", "--seed", 1, "--report", "q")
    run = read_document(Path("q/result.json")).runs[0]
    assert (status, run.is_expected, run.verdict) == (1, False, Verdict.FAIL)
    assert run.how == "policy random, seed 1"
    assert run.conclusion == "not as expected: found fail, rank_error, rank 0; expected pass"


def test_a_replay_that_diverges_is_reported_as_it_went_on(ddpsim):
    token = str(Schedule((0, 9), program_identity("send-send", 4)))
    status, out, err = ddpsim("replay", "send-send", token, "--report", "r")
    assert (status, out) == (2, "report  r/report.html\n")
    run = read_document(Path("r/result.json")).runs[0]
    assert err.startswith("ddpsim: replay diverged at step ")
    summary = err.removeprefix("ddpsim: ").splitlines()[0]
    assert run.conclusion == f"{summary}; the replay continued, and took each later choice modulo the number of options"
    assert (run.is_expected, [finding.code for finding in run.findings]) == (False, ["deadlock.cycle"])


def test_a_token_of_another_program_is_refused_and_leaves_no_report(ddpsim):
    status, out, err = ddpsim("replay", "send-send", "s1:0.0.0.9:e2f90957", "--report", "r")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert names("r") == []


def test_an_exploration_is_reported_with_both_runs_and_their_difference(ddpsim):
    status, out, _ = ddpsim("explore", "results-taken-in-order-of-arrival", "--report", "r")
    assert status == 0
    assert out.endswith("report  r/report.html\n")
    assert names("r") == sorted(WRITTEN)
    made = read_document(Path("r/result.json"))
    explored = made.exploration
    assert (explored.executions, explored.verdict, explored.is_expected) == (2, Verdict.FAIL, True)
    assert [run.verdict for run in made.runs] == [Verdict.FAIL, Verdict.PASS]
    assert all(run.how == "policy dpor" for run in made.runs)
    assert made.runs[0].events[explored.difference.failing].text == "from rank 3"
    assert made.runs[1].events[explored.difference.passing].text == "from rank 2"
    for run in made.runs:  # both are run again by a command
        command, name, token = run.replay.split()[1:]
        status, out, _ = ddpsim(command, name, token)
        assert (status, run.verdict.value.upper() in out or "DIVERGENCE" in out) == (0, True)


def test_an_exploration_that_passes_has_the_run_that_passed(ddpsim):
    Path("own.py").write_text(OWN, encoding="utf-8")
    status, _, _ = ddpsim("explore", "own.py:fine", "--world-size", 2, "--report", "r")
    made = read_document(Path("r/result.json"))
    assert (status, made.exploration.failing, made.exploration.passing) == (0, None, 0)
    assert [run.verdict for run in made.runs] == [Verdict.PASS]
    assert made.exploration.conclusion == "as expected: pass under every schedule that was run"


# --- several runs -----------------------------------------------------------------------------------------------------


def test_both_engines_have_a_folder_each_and_an_index(ddpsim):
    status, out, _ = ddpsim("run", "send-send", "--engine", "both", "--report", "r")
    assert (status, out.splitlines()[-1]) == (0, "report  r/index.html")
    folders = ["send-send-ddp", "send-send-torch"]
    assert names("r") == sorted(
        ["index.html", "junit.xml", *(f"{each}/{name}" for each in folders for name in WRITTEN)]
    )
    found = "fail, deadlock.cycle, ranks 0-3"
    assert rows("r") == [
        (f"send-send-{engine}/report.html", "send-send", engine, "as expected", found, found)
        for engine in ("torch", "ddp")
    ]
    (suite,) = JUnitXml.fromfile("r/junit.xml")
    assert [(case.classname, case.name, case.result) for case in suite] == [
        ("ddpsim.torch", "send-send", []),
        ("ddpsim.ddp", "send-send", []),
    ]


def test_the_zoo_has_an_index_with_what_surprises_first(ddpsim, monkeypatch):
    def breaks(scenario, *args, **options):
        if scenario.name == "rank-crash-repaired":
            raise RuntimeError("of ours <b>")
        return run_scenario(scenario, *args, **options)

    monkeypatch.setattr(zoo_outcome, "run_scenario", breaks)
    status, out, _ = ddpsim("zoo", "send-send", "rank-crash", "--report", "r")
    assert (status, out.splitlines()[-1]) == (1, "report  r/index.html")
    assert [row[:4] for row in rows("r")] == [
        ("", "rank-crash-repaired", "torch", "not as expected"),
        ("rank-crash-torch/report.html", "rank-crash", "torch", "as expected"),
        ("send-send-torch/report.html", "send-send", "torch", "as expected"),
        ("send-send-repaired-torch/report.html", "send-send-repaired", "torch", "as expected"),
    ]
    (suite,) = JUnitXml.fromfile("r/junit.xml")
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 1, 0, 0)
    (failure,) = next(case for case in suite if case.result).result
    assert failure.type == "RuntimeError"
    assert failure.text.endswith("RuntimeError: of ours <b>")
    page = Path("r/index.html").read_text(encoding="utf-8")
    assert "1 not as expected" in page
    assert "3 as expected" in page


def test_ctrl_c_keeps_what_was_written_with_an_index(ddpsim, monkeypatch):
    runs = []

    def interrupted(scenario, *args, **options):
        runs.append(scenario.name)
        if len(runs) == 3:
            raise KeyboardInterrupt
        return run_scenario(scenario, *args, **options)

    monkeypatch.setattr(zoo_outcome, "run_scenario", interrupted)
    status, out, _ = ddpsim("zoo", "send-send", "rank-crash", "--report", "r")
    assert (status, out.splitlines()[-1]) == (130, "report  r/index.html")
    assert [row[1] for row in rows("r")] == runs[:2]
    assert len(JUnitXml.fromfile("r/junit.xml")) == 1


def test_every_run_is_counted_once_also_over_an_older_report(ddpsim):
    for words in (["send-send", "both-send-first"], ["send-send"]):
        ddpsim("zoo", *words, "--report", "r")
        cases = [
            case.name
            for path in Path("r").glob("**/junit.xml")
            for suite in JUnitXml.fromfile(str(path))
            for case in suite
        ]
        assert sorted(cases) == sorted(row[1] for row in rows("r"))
    assert len(cases) == 2  # and the repaired twin


@pytest.fixture
def no_processes(monkeypatch):
    """None are started in advance, as the test runs none."""
    monkeypatch.setattr("ddpsim.scenarios.cli.options.keep_servers_for", lambda transport: nullcontext())


def test_what_was_not_run_is_skipped(ddpsim, monkeypatch, no_processes):
    monkeypatch.setattr(zoo_outcome, "reason_processes_cannot_run", lambda scenario: "it has <faults>")
    ddpsim("zoo", "send-send", "--no-repaired", "--transport", "processes", "--report", "r")
    assert rows("r") == [("", "send-send", "torch", "not run", "deadlock.cycle, ranks 0-3", "it has &lt;faults&gt;")]
    assert JUnitXml.fromfile("r/junit.xml").skipped == 1


def test_on_processes_found_is_what_these_can_show(ddpsim, monkeypatch, no_processes):
    monkeypatch.setattr(zoo_outcome, "run_scenario", lambda *args, **options: result_with(hung(0), hung(1)))
    ddpsim("zoo", "send-send", "--no-repaired", "--transport", "processes", "--report", "r")
    wanted = "fail, deadlock.cycle, ranks 0, 1"
    assert rows("r") == [("send-send-torch/report.html", "send-send", "torch", "as expected", wanted, "hung")]
    assert read_document(Path("r/send-send-torch/result.json")).runs[0].how == "on processes"


def test_fuzz_reports_what_it_kept_and_what_still_fails(ddpsim):
    Path("own.py").write_text(OWN, encoding="utf-8")
    words = ("fuzz", "own.py:racy", "--world-size", 3, "--executions", 40, "--engine", "torch", "--corpus", "c")
    status, out, _ = ddpsim(*words, "--report", "r")
    assert (status, out.splitlines()[-1]) == (1, "report  r/index.html")
    (kept,) = Path("c").glob("*.toml")
    ((link, name, engine, state, expected, found),) = rows("r")
    assert link == f"{kept.stem}.toml-torch/report.html"
    assert (name, engine, state) == (str(kept), "torch", "not as expected")
    assert (expected, found) == ("pass", "fail, rank_error, rank 0")
    run = read_document(Path("r") / f"{kept.stem}.toml-torch/result.json").runs[0]
    assert (run.how, run.is_expected) == ("kept by fuzz", False)
    assert f"{run.replay}\n" in out

    status, out, _ = ddpsim(*words, "--seed", 0, "--report", "again")  # the corpus is tried first, and still fails
    assert "fails" in out.splitlines()[0]
    assert [row[1] for row in rows("again")] == [str(kept)]


def test_fuzz_reports_that_it_found_nothing(ddpsim):
    Path("own.py").write_text(OWN, encoding="utf-8")
    words = ("fuzz", "own.py:fine", "--world-size", 2, "--executions", 5, "--engine", "torch", "--report", "r")
    status, out, _ = ddpsim(*words)
    assert (status, out.splitlines()[-1]) == (0, "report  r/index.html")
    assert rows("r") == []
    assert names("r") == ["index.html", "junit.xml"]


def test_fuzz_reports_its_first_look(ddpsim):
    status, out, _ = ddpsim("fuzz", "send-send", "--seconds", 30, "--report", "r")
    assert (status, out.splitlines()[-1]) == (0, "report  r/index.html")
    assert [row[0] for row in rows("r")] == ["send-send-torch/report.html", "send-send-ddp/report.html"]
    run = read_document(Path("r/send-send-ddp/result.json")).runs[0]
    assert run.conclusion == "send-send fails under every schedule tried (11), as expected: no search is needed"


# --- --open -----------------------------------------------------------------------------------------------------------


def test_open_shows_the_report(ddpsim, opened, tmp_path):
    ddpsim("run", "send-send", "--report", "a b", "--open")
    assert opened == [f"file://{tmp_path}/a%20b/report.html"]
    ddpsim("zoo", "send-send", "--report", "z", "--open")
    assert opened[1:] == [f"file://{tmp_path}/z/index.html"]


def test_open_without_report_takes_a_temporary_folder_and_says_which(ddpsim, opened, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    _, out, _ = ddpsim("run", "send-send", "--open")
    (folder,) = (tmp_path / "temporary").iterdir()
    assert out.splitlines()[-1] == f"report  {folder}/report.html"
    assert opened == [(folder / "report.html").as_uri()]
    assert names(folder) == sorted(WRITTEN)


def test_open_leaves_no_empty_folder_if_there_is_nothing_to_show(ddpsim, opened, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, _, _ = ddpsim("run", "send-send", "--timeout", "3", "--open")
    assert (status, opened) == (2, [])
    assert not list(tmp_path.glob("ddpsim-*"))


# --- bad folders ------------------------------------------------------------------------------------------------------

COMMANDS = [
    "run send-send",
    "run send-send --engine both",
    "zoo send-send",
    "explore send-send",
    "replay send-send s1:0:e2f90957",
    "fuzz send-send --seconds 5",
]
UNWRITABLE = {
    "file": "File exists",
    "file/deep": "Not a directory",
    "x" * 300: "File name too long",
    "/proc/x": "No such file or directory",
}
BAD_FOLDERS = {
    **{
        folder: f"report folder {folder} cannot be written ({why}): give another folder"
        for folder, why in UNWRITABLE.items()
    },
    "": "Invalid value for '--report': it is empty, expected a folder: give one, or . for the working folder; "
    "see `ddpsim {command} --help`",
}


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize(("folder", "told"), BAD_FOLDERS.items())
def test_a_folder_that_cannot_be_is_told_before_anything_runs(ddpsim, line, folder, told):
    Path("file").write_text("mine", encoding="utf-8")
    words = line.split()
    assert ddpsim(*words, "--report", folder) == (2, "", f"ddpsim: {told.format(command=words[0])}\n")
    assert names(".") == ["file"]
    assert Path("file").read_text(encoding="utf-8") == "mine"


def test_the_working_folder_of_a_fuzz_takes_a_report(ddpsim):
    Path(".ddpsim/corpus").mkdir(parents=True)
    status, _, err = ddpsim("run", "send-send", "--report", ".")
    assert (status, err) == (0, "")
    assert names(".") == sorted(WRITTEN)
