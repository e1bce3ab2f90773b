"""Documents made from results and explorations: who waits for whom, how ranks ended, where explorations part."""

import dataclasses
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ddpsim import Budget, explore, simulate
from ddpsim.reports.document import Document
from ddpsim.reports.forms.chrome_trace import spans_of
from ddpsim.reports.forms.html import to_html
from ddpsim.reports.forms.json_form import from_json, to_json
from ddpsim.reports.forms.text import to_text
from ddpsim.reports.layout.lanes import lanes_of
from ddpsim.reports.making import result_document as making_result
from ddpsim.reports.making.exploration_document import difference_of, document_of_exploration
from ddpsim.reports.making.result_document import document_of
from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.running.exploring import explore_scenario
from ddpsim.simulator.choices import RankOrThread
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.verdict import Verdict
from tests.jobs.test_cli import result_with
from tests.jobs.test_job_findings import hung
from tests.kit.rows import rows
from tests.reports.examples import CYCLE, MISSING, document, run_of


def meets(rank):
    dist.all_reduce(torch.ones(3))
    dist.barrier()


def leaves(rank):
    if rank == 0:
        dist.barrier()


def threads_wait(rank):
    """Rank 1 waits for its thread, which waits for rank 0, which waits for the store."""
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["never"])
    thread = threading.Thread(target=dist.barrier, name="talks")
    thread.start()
    thread.join()


def told(run):
    """Who waits in the end: for what, for whom, and whom the slots lack that they wait in."""
    lacks = {each.who: tuple(run.slots[index].missing for index in each.slots) for each in run.waiting}
    return {each.who: (each.what.partition(" '")[0], each.waits_for, *lacks[each.who]) for each in run.waiting}


def test_waits_for_threads_and_the_store():
    run = run_of(threads_wait, 2)
    assert told(run) == {
        RankOrThread(0): ("store key", ()),
        RankOrThread(1): ('the end of thread "talks"', (RankOrThread(1, "talks"),)),
        RankOrThread(1, "talks"): ('barrier #0  group "default"', (), (0,)),
    }
    assert run.waiting[0].what.endswith("never'")


def locks(rank):
    """The thread holds the lock and waits for rank 1, which is gone; the program waits for the lock."""
    if rank:
        return
    lock = threading.Lock()

    def holds():
        with lock:
            dist.barrier()

    thread = threading.Thread(target=holds, name="holder")
    thread.start()
    dist.distributed_c10d._get_default_store().set("a", "b")
    while not lock.locked():
        time.sleep(1)
    with lock:
        pass


def test_who_waits_for_a_lock_waits_for_its_holder():
    assert told(run_of(locks, 2)) == {
        RankOrThread(0): ("a lock", (RankOrThread(0, "holder"),)),
        RankOrThread(0, "holder"): ('barrier #0  group "default"', (), (1,)),
    }


def ends(rank):
    if rank == 0:
        return
    if rank == 1:
        raise ValueError("first line\nsecond line")
    dist.barrier()


def patient(rank):
    """Rank 0 waits in vain for a key, for so long and no longer."""
    if rank == 0:
        with suppress(dist.DistStoreError):
            dist.distributed_c10d._get_default_store().wait(["never"], timedelta(seconds=1))


def for_ever(rank):
    while True:
        dist.barrier()


@rows(
    ("run", "states"),
    [
        (lambda: run_of(threads_wait, 2), "waiting waiting"),
        (lambda: run_of(ends, 3), "returned raised waiting"),
        (lambda: run_of(patient, 2), "returned returned"),
        (lambda: run_of(for_ever, 2, budget=Budget(steps=50)), "stopped stopped"),
        (lambda: document(MISSING).runs[0], "waiting returned waiting waiting"),
        (lambda: document("rank0-eval-through-wrapper-with-buffers").runs[0], "stopped waiting waiting waiting"),
    ],
    ids=["threads", "each", "timed out", "budget", "missing", "mismatch of others"],
)
def test_how_each_rank_ended_and_only_who_waits_waits_for_good(run, states):
    run = run()
    assert [(each.rank, each.end) for each in run.ranks] == list(enumerate(states.split()))
    waiting = [RankOrThread(rank) for rank, state in enumerate(states.split()) if state == "waiting"]
    assert [each.who for each in run.waiting if not each.who.thread] == waiting
    lanes = lanes_of(run)
    for_good = sorted(lanes.lanes[bar.lane].who for bar in lanes.bars if bar.end is None)
    assert for_good == sorted(each.who for each in run.waiting)
    assert ("waits forever" in to_text(Document("t", (run,))).decode()) == bool(waiting)


def test_what_ranks_raised_and_wait_for():
    run = run_of(ends, 3)
    assert [each.text for each in run.ranks] == ["", "ValueError: first line", 'barrier #0  group "default"']
    site = run.sites[run.ranks[2].site]
    assert (site.file, site.line) == ("tests/reports/test_making.py", ends.__code__.co_firstlineno + 5)


def test_a_wait_that_timed_out_is_over_and_one_that_the_budget_cut_short_is_not():
    run = run_of(patient, 2)
    assert [(span.has_ended, run.events[span.end].time) for span in spans_of(run) if span.call is None] == [(True, 1.0)]
    kinds = Counter(event.kind for event in run_of(for_ever, 2, budget=Budget(steps=50)).events if event.rank == 1)
    assert kinds[EventKind.WAIT] == kinds[EventKind.DONE] + 1


def test_a_rank_whose_error_has_no_text_of_its_own():
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    def mute(rank):
        raise MuteError

    assert run_of(mute, 1).ranks[0].text == "MuteError: <its message cannot be printed>"


def test_without_a_trace_nobody_knows_how_ranks_ended():
    bare = dataclasses.replace(simulate(lambda rank: None, 2), trace=())
    assert [each.end for each in document_of(bare).runs[0].ranks] == ["unknown", "unknown"]


def test_a_site_has_its_source():
    run = run_of(meets, 2)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    site = run.sites[run.calls[0].site]
    line = meets.__code__.co_firstlineno + 1
    assert (site.function, site.line, site.short) == ("meets", line, f"test_making.py:{line}")
    assert (site.first, list(site.source)) == (line - 3, lines[line - 4 : line + 3])
    assert site.source[3] == "    dist.all_reduce(torch.ones(3))"


def written(path, comment=""):
    """A program in a file of its own."""
    text = f"import torch.distributed as dist\ndef main(rank):\n    dist.barrier(){comment}\n"
    path.write_text(text)
    names = {}
    exec(compile(text, str(path), "exec"), names)
    return names["main"]


def test_a_call_in_a_library_has_the_line_that_called_it(tmp_path):
    synchronise = written(tmp_path / "library.py")

    def uses(rank):
        synchronise(rank)
        dist.barrier()

    run = run_of(uses, 2)
    inside, outside = run.calls
    assert run.sites[inside.site].short == "library.py:3"
    assert run.sites[inside.caller].short == f"test_making.py:{uses.__code__.co_firstlineno + 1}"
    assert outside.caller is None


def test_a_file_in_no_folder_of_ours_is_told_without_its_folders_and_as_it_is_now(tmp_path):
    for comment in ("  # old", f"  # {'x' * 300}"):
        (site,) = run_of(written(tmp_path / "elsewhere.py", comment), 2).sites
        assert (site.file, site.line, site.first, len(site.source)) == ("elsewhere.py", 3, 1, 3)
        assert site.source[2] == f"    dist.barrier(){comment}"[:200]


def test_a_file_that_is_gone_has_no_source(tmp_path):
    program = written(tmp_path / "gone.py")
    (tmp_path / "gone.py").unlink()
    (site,) = run_of(program, 2).sites
    assert (site.file, site.line, site.first, site.source) == ("gone.py", 3, 0, ())


def test_a_finding_has_its_cycle_its_slots_and_its_places():
    found = document(CYCLE).runs[0].findings[0]
    assert (found.code, found.verdict) == ("deadlock.cycle", Verdict.FAIL)
    assert found.ranks == found.cycle == found.slots == (0, 1, 2, 3)
    run = document(CYCLE).runs[0]
    assert {run.sites[site].short for site in found.sites} == {run.sites[each.site].short for each in run.waiting}


def test_calls_of_ddp_say_bucket_parameters_and_shadow():
    run = document("uneven-inputs").runs[0]
    buckets = [call for call in run.calls if call.bucket is not None]
    assert {(call.phase, call.purpose, call.bucket) for call in buckets} == {("bucket", "bucket 0", 0)}
    assert {tuple(sorted(call.parameters)) for call in buckets} == {("bias", "weight")}
    assert all(call.origin.startswith("DDP #0 bucket 0 ") for call in buckets)
    assert {call.purpose for call in run.calls} == {"check", "state", "join", "bucket 0", "rebuild"}
    issued = [(event.rank, run.calls[event.call]) for event in run.events if event.kind is EventKind.ISSUE]
    shadows = Counter(rank for rank, call in issued if call.is_shadow)
    # As the text of the join says, and one more of each by which all hear that nobody is left.
    assert run.joins[:2] == (
        "ranks 0, 3 joined at step 3, shadowed 6 calls each (4 join control, 2 buckets)",
        "rank 1 joined at step 4, shadowed 3 calls (2 join control, 1 bucket)",
    )
    assert shadows == {0: 6 + 1, 1: 3 + 1, 2: 1, 3: 6 + 1}
    assert not any(call.is_shadow for call in document(MISSING).runs[0].calls)


def test_what_the_caller_says_and_what_the_result_knows_with_the_events_of_its_trace():
    result = run_scenario(CYCLE)
    made = document_of(result, name="n", how="h", is_expected=False, conclusion="c", seconds=1.5)
    run = made.runs[0]
    assert (made.title, run.name, run.how) == ("n", "n", "h")
    assert (run.is_expected, run.conclusion, run.seconds) == (False, "c", 1.5)
    assert (run.text, run.schedule, run.replay) == (str(result), str(result.schedule), result.replay)
    assert run.digest == result.trace.digest()
    assert (made.verdict, run.verdict, run.world_size) == (Verdict.FAIL, Verdict.FAIL, 4)
    assert len(run.events) == len(result.trace)
    assert made.environment["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert document_of(result).title == result.program
    result = simulate(lambda rank: time.sleep(1.5), 2)
    run = document_of(result).runs[0]
    assert plain(run.events) == plain(result.trace)
    assert run.virtual_seconds == 1.5


def plain(events):
    """Events without their calls, which a document has in a table."""
    return [event._replace(call=None) for event in events]


def test_an_exploration_has_both_runs_and_where_they_part():
    explored = explore_scenario("results-taken-in-order-of-arrival", keep_going=True)
    made = document_of_exploration(explored, name="n", how="h", is_expected=True, conclusion="c")
    found = made.exploration
    assert (found.failing, found.passing) == (0, 1)
    assert (found.executions, found.is_complete) == (explored.executions, explored.complete)
    assert [(each.text, each.count) for each in found.outcomes] == explored.outcomes.most_common()
    assert [run.verdict for run in made.runs] == [Verdict.FAIL, Verdict.PASS]
    failing, passing = made.runs
    at = found.difference.failing
    assert found.difference.passing == at  # the same events until there
    assert plain(failing.events[:at]) == plain(passing.events[:at])
    assert plain(failing.events[at : at + 1]) != plain(passing.events[at : at + 1])
    (site,) = {failing.sites[failing.calls[run.events[at].call].site].short for run in made.runs}
    taken = [
        f'rank 0 completes recv #1  float32[]  from any source  group "default"  {site}  from rank {rank}'
        for rank in (3, 2)
    ]
    assert found.difference.sides == (("failing", taken[0]), ("passing", taken[1]))
    assert found.difference.text == f"failing: {taken[0]}; passing: {taken[1]}"


@pytest.mark.parametrize(
    ("program", "found"), [(meets, (None, 0, None, Verdict.PASS, True)), (leaves, (0, None, None, Verdict.FAIL, True))]
)
def test_an_exploration_whose_runs_come_to_the_same_has_one_run_and_no_difference(program, found):
    made = document_of_exploration(explore(program, 2))
    told = made.exploration
    assert (told.failing, told.passing, told.difference, told.verdict, told.is_complete) == found
    assert (len(made.runs), made.verdict) == (1, told.verdict)


def test_the_difference_of_traces():
    one, other = simulate(meets, 2).trace, simulate(meets, 3).trace
    assert difference_of(one, one) is None
    found = difference_of(one, other)
    lines = [[event.line() for event in trace] for trace in (one, other)]
    at = next(index for index, pair in enumerate(zip(*lines, strict=False)) if len(set(pair)) == 2)
    assert (found.failing, found.passing) == (at, at)


def test_the_difference_where_one_run_ended():
    longer = simulate(meets, 1).trace
    cut = dataclasses.replace(longer, events=longer.events[:3])
    found, reverse = difference_of(cut, longer), difference_of(longer, cut)
    assert (found.failing, found.passing) == (None, 3) == (reverse.passing, reverse.failing)
    assert found.text.startswith("failing: its end; passing: rank 0 completes barrier #1")


# --- the lines that a finding has for the top of a page ---------------------------------------------------------------

FALSE = "call me later\n  cycle   1 -> 2\n  cause   the moon\n  try     sacrificing a goat"


def raises_advice(rank):
    if rank:
        raise RuntimeError(FALSE)


def raises_advice_in_a_thread(rank):
    def work():
        raise RuntimeError(FALSE)

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()


def in_a_thread_with_advice_for_a_name(rank):
    thread = threading.Thread(target=lambda: rank or dist.barrier(), name=f"thread{FALSE[13:]}")
    thread.start()
    thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "program", [raises_advice, raises_advice_in_a_thread, in_a_thread_with_advice_for_a_name], ids=lambda p: p.__name__
)
def test_a_program_does_not_speak_as_diagnosis(program):
    (finding,) = run_of(program, 3).findings
    assert "sacrificing a goat" in finding.text  # it is told, where it belongs
    assert [line.label for line in finding.lines] == ["cause", "try"]
    last = [" ".join(line.split()) for line in finding.text.splitlines()[-2:]]
    assert [f"{line.label} {line.text}" for line in finding.lines] == last
    assert "moon" not in str(finding.lines)


def test_the_lines_of_a_finding():
    cycle, missing = document(CYCLE).runs[0].findings[0], document(MISSING).runs[0].findings[0]
    assert [line.label for line in cycle.lines] == ["cycle", "cause", "try"]
    assert cycle.lines[0].text == "0 -> 1 -> 2 -> 3 -> 0"
    assert [line.label for line in missing.lines] == ["call", "counts", "cause", "try"]
    assert missing.lines[0].text.startswith("all_reduce #9 is DDP #0 bucket 0 ")
    stuck = document_of(result_with(hung(0), hung(1))).runs[0].findings[0]
    assert [line.label for line in stuck.lines] == ["cause", "try"]


def goes_on(rank):
    for _ in range(10):
        dist.barrier()
    if rank == 1:
        dist.barrier()


def test_of_a_run_that_is_too_long_the_last_events_are_there(monkeypatch):
    whole = document_of(simulate(goes_on, 2))
    (run,) = whole.runs
    assert run.events_left_out == 0
    assert b"left out" not in to_text(whole)
    assert b"left out" not in to_html(whole)
    monkeypatch.setattr(making_result, "MOST_EVENTS", 20)
    short = document_of(simulate(goes_on, 2))
    (cut,) = short.runs
    assert cut.events_left_out == len(run.events) - 20
    assert plain(cut.events) == plain(run.events[-20:])
    assert (cut.ranks, cut.digest, cut.findings[0].text) == (run.ranks, run.digest, run.findings[0].text)
    (waits,) = cut.waiting
    assert [(cut.slots[slot].sequence, cut.slots[slot].missing) for slot in waits.slots] == [(10, (0,))]
    said = f"first {cut.events_left_out} events are left out"
    assert said in to_text(short).decode()
    assert said in to_html(short).decode()
    assert from_json(to_json(short)) == short


def test_where_runs_part_may_be_left_out(monkeypatch):
    one, other = simulate(meets, 2).trace, simulate(leaves, 2).trace
    assert difference_of(one, other).failing is not None
    monkeypatch.setattr(making_result, "MOST_EVENTS", 1)
    assert difference_of(one, other).failing is None
