"""The reports of ranks as findings, and the texts they are made of; no process is started."""

import pickle
import sys

import pytest
import torch

from ddpsim import Code, UsageError
from ddpsim.scenarios.jobs import rank_progress
from ddpsim.scenarios.jobs.job_rank import call_program, position_of_death, program_stack_text, traceback_below_call
from ddpsim.scenarios.jobs.job_result import findings_of_reports, result_of_reports
from ddpsim.scenarios.jobs.rank_report import ErrorReport, RankEnding, RankPosition, RankReport
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.ranks.function import BETWEEN, as_rank_function
from ddpsim.simulator.calls import Site

SITE = Site("train.py", 7, "step")
STACK = '  File "train.py", line 7, in step\n    model(batch)\n'
LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:20354"


def returned(rank):
    return RankReport(rank, RankEnding.RETURNED, 0.0)


def raised(rank, line="ValueError: bad", seconds=0.0):
    return RankReport(rank, RankEnding.RAISED, seconds, error=ErrorReport(line, f"Traceback\n{line}", SITE))


def died(rank, death="signal SIGABRT", words=()):
    return RankReport(rank, RankEnding.DIED, 0.0, death=death, last_words=words)


def hung(rank, idle=10.0, *, is_idle=True):
    calls = ("broadcast #0  in flight",)
    return RankReport(rank, RankEnding.HUNG, 0.0, position=RankPosition(idle, SITE, STACK, calls, is_idle))


def test_the_text_of_a_hang():
    (finding,) = findings_of_reports([hung(0), returned(1), hung(2, idle=0.5, is_idle=False)], command="ddpsim run x")
    assert finding.ranks == (0,)  # rank 2 was still at work
    assert finding.sites == (SITE,)
    assert str(finding).splitlines() == [
        "STUCK  stuck",
        "  rank 0 made no progress for 10.0 s",
        "  rank 0  at train.py:7 in step, for 10.0 s",
        "    last calls  broadcast #0  in flight",
        "    stack",
        '      File "train.py", line 7, in step',
        "        model(batch)",
        "  rank 1  returned",
        "  rank 2  at train.py:7 in step, for 0.5 s",
        "    last calls  broadcast #0  in flight",
        "    stack",
        '      File "train.py", line 7, in step',
        "        model(batch)",
        "  cause   a rank waits for something that no other rank does, or does late; processes cannot show which "
        "rank is wrong",
        "  try     `ddpsim run x`, which simulates it and gives the reason; if that passes, use --alike here, so that "
        "ranks start with the same random numbers; if a rank was only slow, increase --timeout",
    ]


ERROR, HANG = Code.RANK_ERROR, Code.STUCK


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([returned(0), returned(1)], []),
        ([raised(0, "KeyError: 1", 2.0), raised(1, "ValueError: 2", 1.0)], [(ERROR, (1,)), (ERROR, (0,))]),
        ([raised(0), raised(1)], [(ERROR, (0, 1))]),
        ([raised(0, LOST, 1.0), raised(1, "ValueError: bad", 2.0)], [(ERROR, (1,)), (ERROR, (0,))]),
        ([raised(0, LOST), raised(1, LOST.replace("20354", "1"))], [(ERROR, (0,)), (ERROR, (1,))]),
        (
            [hung(0), raised(1), died(2), died(3), died(4, "exit status 3")],
            [(ERROR, (4,)), (ERROR, (2, 3)), (ERROR, (1,)), (HANG, (0,))],
        ),
    ],
    ids=[
        "all returned",
        "errors by time",
        "the same error counts once",
        "lost connections follow from an error",
        "lost connections alone are errors",
        "deaths lead",
    ],
)
def test_what_is_found_and_in_which_order(reports, expected):
    found = findings_of_reports(reports, command="ddpsim run x")
    assert [(finding.code, finding.ranks) for finding in found] == expected


def test_lost_connections_follow_from_a_death():
    (finding,) = findings_of_reports([died(0, words=("what()",)), raised(1, LOST), raised(2, LOST)], command="")
    assert finding.ranks == (0,)
    assert "  ranks 1, 2 lost the connection then, and raised" in str(finding).splitlines()
    assert "    what()" in str(finding).splitlines()


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            {
                "profiling_name": "gloo:all_reduce",
                "collective_seq_id": 1,
                "process_group": ("0", "default_pg"),
                "input_sizes": [[3, 2]],
                "input_dtypes": ["Float"],
                "retired": True,
            },
            'all_reduce #0  float32[3, 2]  group "default"',
        ),
        (
            {
                "profiling_name": "gloo:gather",
                "collective_seq_id": 4,
                "process_group": ("1", "undefined"),
                "input_sizes": [[1], [1], [], [2]],
                "input_dtypes": ["Long", "Half", "Bool", "ComplexFloat"],
                "retired": False,
            },
            'gather #3  int64[1], float16[1], bool[], ...  group "1"  in flight',
        ),
    ],
)
def test_recorded_call(entry, text):
    assert rank_progress._entry_text(entry) == text


def test_torch_without_a_recorder(monkeypatch):
    assert rank_progress.has_recorder()
    monkeypatch.setattr(rank_progress, "_READER", "_dump_of_another_version")
    assert not rank_progress.has_recorder()
    assert rank_progress.read_recorder() == rank_progress.LastCalls()


def test_torch_with_a_recorder_for_each_backend(monkeypatch):
    def read(backend=""):
        call = {"profiling_name": "gloo:barrier", "collective_seq_id": 2, "retired": False}
        return pickle.dumps({"entries": [call] if backend == "gloo" else []})

    monkeypatch.setattr(torch._C._distributed_c10d, "_read_of_a_newer_version", read, raising=False)
    monkeypatch.setattr(rank_progress, "_READER", "_read_of_a_newer_version")
    assert rank_progress.read_recorder() == rank_progress.LastCalls(
        ('barrier #1  group ""  in flight',), in_flight=True
    )


def test_place_of_death():
    own = call_program.__code__.co_filename
    lines = [
        "Thread 0x1 (most recent call first):",
        '  File "watch.py", line 1 in run',
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "train.py", line 9 in step',
        '  File "train.py", line 3 in main',
        f'  File "{own}", line 1 in call_program',
        '  File "launcher.py", line 3 in main',
    ]
    position = position_of_death(lines)
    assert position is not None
    assert str(position.site) == "train.py:9"
    assert position.stack == '  File "train.py", line 3, in main\n  File "train.py", line 9, in step\n'
    assert position_of_death(lines[:6]) is None
    assert position_of_death([*lines[:6], f'  File "{BETWEEN}", line 1 in called', *lines[6:]]) == position


def test_a_stack_begins_in_the_program_whether_it_takes_the_rank_or_not(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["own.py"])  # in a run it is each rank's own

    def takes_it(rank):
        return program_stack_text(sys._getframe())

    def takes_nothing():
        return program_stack_text(sys._getframe())

    for program in (takes_it, takes_nothing):
        stack = call_program(Scenario("own", "", as_rank_function(program)), 0)
        assert [line.split()[-1] for line in stack.splitlines()[::2]] == [program.__name__], stack


def test_a_stack_has_no_frames_of_torchs_own():
    stacks = []

    def backward_with_a_hook(rank):
        leaf = torch.ones(1, requires_grad=True)
        leaf.register_hook(lambda gradient: stacks.append(program_stack_text(sys._getframe())))
        leaf.sum().backward()

    call_program(Scenario("own", "", backward_with_a_hook), 0)
    [stack] = stacks
    assert [line.split()[-1] for line in stack.splitlines()[::2]] == ["backward_with_a_hook", "<lambda>"], stack


def test_rank_that_did_not_start():
    reports = [
        RankReport(0, RankEnding.HUNG, 1.0, has_started=False, position=RankPosition(0.0, None, "was ended", ()))
    ]
    reports += [RankReport(1, RankEnding.DIED, 2.0, has_started=False, death="exit status 1", last_words=("why",))]
    with pytest.raises(UsageError, match=r"^rank 1 did not start \(exit status 1, after 'why'\), expected its process"):
        result_of_reports(None, None, reports)


def test_a_traceback_begins_in_the_program():
    def program(rank):
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad") as raised:
        call_program(Scenario("own", "", program), 0)
    below = traceback_below_call(raised.value.__traceback__)
    assert below is not None
    assert below.tb_frame.f_code is program.__code__
    assert traceback_below_call(below) is below
