"""`breakpoint()` in a rank, at a pseudo-terminal: what is typed, and what is printed; as threads and as processes."""

import bdb
import inspect
import linecache
import os
import pdb
import re
import sys
import threading
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from ddpsim import UsageError, Verdict, explore, simulate
from tests.debugging.typist import CTRL_C, CTRL_D, typed
from tests.kit.leftovers import no_thread_is_left
from tests.kit.limit_clocks import limits_go_by

CI = pytest.mark.tier("ci")
NIGHTLY = pytest.mark.tier("nightly")
ISOLATIONS = ("thread", pytest.param("process", marks=CI))


def adds_up(rank):
    """Rank 2 stops before the call."""
    total = torch.tensor(rank)
    if rank == 2:
        breakpoint()
    dist.all_reduce(total)
    return total.item()


def stops_everywhere(rank):
    """Each rank stops twice."""
    step = 0
    breakpoint()
    dist.barrier()
    step = 1
    breakpoint()
    return step


def session(program, *lines, world_size=4, isolation="thread", before_each=None, **options):
    with typed(*lines, before_each=before_each) as typist:
        result = simulate(program, world_size, isolation=isolation, **options)
    return result, typist.transcript


def line_of(function, text):
    source, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(source) if text in line)


FILE = os.path.relpath(__file__)
CALL = line_of(adds_up, "all_reduce")
HERE = f"test_breakpoints.py:{CALL}"
STOP = CALL - (sys.version_info >= (3, 13))
"""Where pdb stops for `breakpoint()`: at the line after it, and from Python 3.13 on at its own."""
LINE = linecache.getline(__file__, STOP).rstrip()
AT_STOP = LINE.strip()
WAITS = f'waits in all_reduce #0  SUM int64[]  group "default"  {HERE}  arrived 0, 1 · missing 2, 3'


SESSIONS = {
    "place": (["c"], [f"test_breakpoints.py({STOP})adds_up()\n-> {AT_STOP}\n(rank 2) c"]),
    "value": (["p total", "c"], ["(rank 2) p total\ntensor(2)\n"]),
    "rank": (["p dist.get_rank(), dist.get_world_size()", "c"], ["(2, 4)"]),
    "change": (["!total += 10", "p total", "c"], ["tensor(12)"]),
    "next": ([*["n"] * (CALL - STOP), "n", "p total", "c"], ["-> return total.item()\n(rank 2) p total\ntensor(6)"]),
    "where": (["w", "c"], [f"(rank 2) w\n> {FILE}({STOP})adds_up()\n-> {AT_STOP}\n(rank 2)"]),
    "list": (["l", "c"], [f"{STOP}  ->\t{LINE}"]),
    "ranks": (
        ["ranks", "c"],
        [f"rank 0  {WAITS}", f"rank 1  {WAITS}", "rank 2  paused here", HERE, "rank 3  can run"],
    ),
    "slots": (
        ["slots", "c"],
        [f'all_reduce #0  SUM int64[]  group "default"   arrived 0, 1 · missing 2, 3\n    ranks 0, 1  {HERE}\n'],
    ),
    "calls": (["calls", "c"], [f'  rank 1  all_reduce #0  SUM int64[]  group "default"  {HERE}  waits\n']),
    "calls of one": (["calls 2", "c"], ["(rank 2) calls 2\n  no call yet\n"]),
    "why": (
        ["why", "c"],
        ["nothing is wrong so far", "ranks 2, 3 can run", "rank 0 waits for ranks 2, 3: all_reduce #0"],
    ),
    "stacks": (
        ["w all", "c"],
        ["\nranks 0", f'  File "{os.path.relpath(__file__)}", line {CALL}, in adds_up\n', "\nrank 3  has not begun\n"],
    ),
    "ranks elsewhere": (
        ["rank 3", "rank 0", "ranks", "c"],
        [f"rank 0  {WAITS}", "rank 2  running", HERE, "rank 3  can run"],
    ),
    "another": (["rank 0", "p rank, total, dist.get_rank()", "c"], ["(rank 0) p rank", "(0, tensor(0), 0)"]),
    "and back": (["rank 0", "rank 2", "p rank", "c"], ["(rank 0) rank 2\n> ", "(rank 2) p rank\n2\n"]),
    "from one to one": (["rank 0", "rank 1", "p rank * 7", "rank 2", "c"], ["(rank 1) p rank * 7\n7\n"]),
    "next elsewhere": (["rank 0", "n", "p rank", "c"], ["-> return total.item()\n(rank 0) p rank\n0\n"]),
    "itself": (["rank 2", "c"], [f"(rank 2) rank 2\n> {FILE}({STOP})adds_up()"]),
    "raises": (["p 1 / 0", "p total", "c"], ["*** ZeroDivisionError: division by zero\n(rank 2) p total\ntensor(2)"]),
    "communicates": (
        ["dist.barrier()", "p total", "c"],
        ["*** cannot communicate or wait in a debugger command", "tensor(2)"],
    ),
    "communicates elsewhere": (
        ["rank 0", "dist.all_reduce(total)", "p rank", "c"],
        ["*** cannot communicate or wait in a debugger command", "(rank 0) p rank\n0\n"],
    ),
    "no such rank": (["rank 9", "c"], ["*** there is no rank 9, expected 0 to 3\n(rank 2)"]),
    "not a rank": (["rank two", "c"], ["*** rank is 'two', expected a number, as in `rank 0`"]),
    "not begun": (["rank 3", "c"], ["*** rank 3 has not begun yet: it has no frame to show\n(rank 2)"]),
    "no such calls": (["calls 9", "c"], ["*** rank is '9', expected 0 to 3"]),
    "too many words": (["slots 1", "c"], ["*** slots takes no argument, found '1'"]),
}


IN_PROCESSES = ("value", "ranks", "stacks", "another", "next elsewhere", "communicates elsewhere")
"""Those that go through the coordinator in ways of their own; the others at night."""

CASES = [
    *(pytest.param(name, "thread", id=f"{name}-thread") for name in SESSIONS),
    *(
        pytest.param(name, "process", id=f"{name}-process", marks=CI if name in IN_PROCESSES else NIGHTLY)
        for name in SESSIONS
    ),
]


@pytest.mark.parametrize(("name", "isolation"), CASES)
def test_session(name, isolation):
    lines, shown = SESSIONS[name]
    result, transcript = session(adds_up, *lines, isolation=isolation)
    for text in shown:
        assert text in transcript
    assert (result.verdict, len(re.findall(r"\(rank \d\) c\n", transcript))) == (Verdict.PASS, 1)
    assert result.returns == ((16,) * 4 if name == "change" else (6,) * 4)


def waits_for_a_thread(rank):
    """Rank 0 waits for a thread that waits for rank 1."""
    if rank == 1:
        time.sleep(2)
        breakpoint()
        dist.barrier()
    else:
        thread = threading.Thread(target=dist.barrier)
        thread.start()
        time.sleep(1)
        thread.join()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_rank_that_waits_for_its_thread_is_looked_into(isolation):
    lines = ["w all", "rank 0", "p thread.name, rank", "c"]
    result, transcript = session(waits_for_a_thread, *lines, world_size=2, isolation=isolation)
    assert f"line {line_of(waits_for_a_thread, 'join()')}, in waits_for_a_thread\n" in transcript
    assert ("('Thread-1 (barrier)', 0)" in transcript, result.verdict) == (True, Verdict.PASS)


def leaves_a_thread(rank):
    """Rank 0 is over, but for a thread that waits for rank 1."""
    if rank == 1:
        time.sleep(2)
        breakpoint()
        dist.barrier()
    else:
        threading.Thread(target=dist.barrier).start()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_of_a_rank_that_is_over_but_for_its_threads_nothing_is_left_to_look_into(isolation):
    result, transcript = session(leaves_a_thread, "w all", "rank 0", "c", world_size=2, isolation=isolation)
    assert "has not begun" not in transcript
    assert "*** rank 0's program has ended and waits for its threads: it has no frame left to show" in transcript
    assert result.verdict is Verdict.PASS


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_ranks_that_stop_take_turns(isolation):
    result, transcript = session(stops_everywhere, *["p rank, step", "c"] * 6, world_size=3, isolation=isolation)
    assert result.returns == (1, 1, 1)
    told = [line for line in transcript.splitlines() if line.startswith("(") and line.endswith((", 0)", ", 1)"))]
    assert told == ["(0, 0)", "(1, 0)", "(2, 0)", "(2, 1)", "(0, 1)", "(1, 1)"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_no_limit_runs_while_somebody_types(isolation, monkeypatch):
    def program(rank):
        if rank == 1:
            breakpoint()
        dist.barrier()

    thought = []
    limits_go_by(monkeypatch, lambda: time.monotonic() + 1000 * len(thought))
    think = partial(thought.append, "1000 s")
    slow = "!__import__('select').select([], [], [], 0.1)"
    result, _ = session(program, slow, slow, "c", world_size=2, isolation=isolation, before_each=think)
    assert result.verdict is Verdict.PASS
    assert len(thought) == 3


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize(
    "lines",
    [
        ["q"],
        [CTRL_D],
        *(pytest.param(each, marks=NIGHTLY) for each in (["rank 0", CTRL_D], ["n", "q"])),
        ["rank 0", "q"],
    ],
    ids=" ".join,
)
def test_quitting_ends_the_run(lines, isolation):
    left = []

    def program(rank):
        try:
            return adds_up(rank)
        finally:
            left.append(rank)

    before = pdb.Pdb
    with no_thread_is_left(), pytest.raises(bdb.BdbQuit), typed(*lines) as typist:
        simulate(program, 4, isolation=isolation)
    assert "Traceback" not in typist.transcript
    assert pdb.Pdb is before
    assert sorted(left) == ([] if isolation == "process" else list(range(4)) if lines == ["n", "q"] else [0, 1, 2])
    assert simulate(lambda rank: dist.barrier(), 4, isolation=isolation).verdict is Verdict.PASS


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("lines", [[CTRL_C], ["ranks", CTRL_C], ["rank 0", CTRL_C]], ids=" ".join)
def test_ctrl_c_ends_the_run(lines, isolation):
    with no_thread_is_left(), pytest.raises(KeyboardInterrupt), typed(*lines):
        simulate(adds_up, 4, isolation=isolation)
    assert simulate(lambda rank: dist.barrier(), 4, isolation=isolation).verdict is Verdict.PASS


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_nobody_is_there_to_type(isolation, monkeypatch, tmp_path):
    (tmp_path / "typed").write_text("ranks\n")
    with open(tmp_path / "typed") as typed_before, open(tmp_path / "said", "w") as said:
        monkeypatch.setattr(sys, "stdin", typed_before)
        monkeypatch.setattr(sys, "stdout", said)
        with pytest.raises(UsageError, match=r"^the debugger needs a terminal, and standard input is at its end"):
            simulate(adds_up, 4, isolation=isolation)
    assert "rank 3  can run" in (tmp_path / "said").read_text()


def test_an_exploration_stops_in_each_run_and_ends_with_q():
    def program(rank):
        if rank == 0:
            breakpoint()
            dist.recv(torch.zeros(1))
            dist.recv(torch.zeros(1))
        else:
            dist.send(torch.ones(1), dst=0)

    with pytest.raises(bdb.BdbQuit), typed("c", "q") as typist:
        explore(program, 3, keep_going=True)
    assert typist.transcript.count("(rank 0) ") == 2


def test_set_trace_in_a_thread_of_a_rank():
    def work():
        pdb.set_trace()
        return 1

    def program(rank):
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()
        dist.barrier()

    result, transcript = session(program, "c", "c", world_size=2)
    assert result.verdict is Verdict.PASS
    assert '(rank 0, thread "worker") c' in transcript


def test_post_mortem_of_what_a_rank_caught():
    def program(rank):
        try:
            raise ValueError(rank)
        except ValueError:
            pdb.post_mortem()
        dist.barrier()

    result, transcript = session(program, "p rank", "c", "c", world_size=2)
    assert result.verdict is Verdict.PASS
    assert "-> raise ValueError(rank)\n(rank 0) p rank\n0\n" in transcript


def test_a_breakpoint_on_the_way_out_does_not_stop():
    left = []

    def program(rank):
        try:
            if rank:
                dist.barrier()
        finally:
            breakpoint()
            left.append(rank)

    result, transcript = session(program, "c", world_size=3)
    assert result.verdict is Verdict.FAIL
    assert (transcript.count("(rank "), left) == (1, [0, 1, 2])


def test_outside_of_ranks_pdb_is_as_it_is():
    with typed("p 1 + 1", "c") as typist:
        breakpoint()
        time.sleep(0)
    assert "(Pdb) p 1 + 1\n2\n" in typist.transcript


def test_an_error_of_ours_in_another_rank_ends_the_run(monkeypatch):
    def breaks(debugger):
        raise ZeroDivisionError

    monkeypatch.setattr("ddpsim.simulator.debugging.rank_debugger.RankDebugger.debug_paused_rank", breaks)
    with pytest.raises(ZeroDivisionError):  # before, the run waited for rank 0 forever
        session(adds_up, "rank 0", "c")
