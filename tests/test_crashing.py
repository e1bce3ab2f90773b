"""`ddpsim crash`: which points are tried, and how what comes of them is judged. Diaries are written by hand."""

import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddpsim import Code, Finding, Result, Schedule, UsageError
from ddpsim.scenarios.cli.commands import main
from ddpsim.scenarios.pytest_plugin.programs import crash_of_marker
from ddpsim.scenarios.running.run_as import fault_text, parse_fault
from ddpsim.simulator.crashing import runs, sweep
from ddpsim.simulator.crashing.judging import first_difference, has_resumed, judge, notes_of, other_loss
from ddpsim.simulator.crashing.points import points_of
from ddpsim.simulator.crashing.sweep import crash
from ddpsim.simulator.crashing.values import Attempts, CrashCode, CrashSweep, Entry
from ddpsim.simulator.errors import InjectedCrashError
from ddpsim.simulator.faults import How, Strike
from ddpsim.simulator.process_group import user_stores
from ddpsim.simulator.rank_processes.operation_watch import OperationWatch
from ddpsim.simulator.trace import Trace
from tests.kit.rows import rows

UNRESTARTED = Result(1, (), (0,), {}, Schedule(), trace=Trace(()))
PASSES = replace(UNRESTARTED, attempts=(UNRESTARTED,))


def diary(*lines):
    """A rank's diary: "KIND WHAT..." each, one step of the run after the other; a step counts as an optimizer step."""
    made, entries = 0, []
    for number, line in enumerate(lines):
        kind, *what = line.split(" ")
        made += kind == "step"
        entries.append(Entry(kind, what, number, made, "train.py:1"))
    return entries


WHOLE = [diary("batch a", "call", "step p1", "write /f/ckpt", "batch b", "call", "step p2", "loss loss:0.5")]
SAVED = diary("batch a", "call", "step p1", "write /f/ckpt")
RESUMED = diary("read /f/ckpt", "batch b", "call", "step p2", "loss loss:0.5")


def judged(first, *second, whole=WHOLE, result=PASSES):
    return [code for code, _ in judge(Attempts(result, first, second), whole)]


def test_a_resumed_run_with_the_same_end_is_good():
    assert judged([SAVED], RESUMED) == []


@rows(
    ("lines", "note"),
    [
        (("read /f/ckpt", "step p1", "write /f/ckpt"), "ckpt"),
        (("read /f/ckpt", "step p1"), "ckpt"),
        (("write /f/ckpt", "read /f/ckpt"), ""),
        (("read /f/data", "step p1", "write /f/ckpt"), ""),
        (("read /elsewhere/ckpt", "step p1"), ""),
    ],
)
def test_a_checkpoint_that_was_there_before_is_named(lines, note):
    told = f"{note} was there before, and the program reads it: remove it if an earlier run has left it"
    assert [each for each in notes_of([diary(*lines)], "/f", ()) if "there before" in each] == [told] * bool(note)


def test_a_checkpoint_that_is_read_back_at_once_was_not_there_before():
    """Files do not advance the steps of a run, so both entries have the same."""
    whole = [[Entry(kind, ["/f/ckpt"], 3, 0, "train.py:1") for kind in ("write", "read")]]
    assert not any("there before" in each for each in notes_of(whole, "/f", ()))


@rows(
    ("second", "code"),
    [
        (diary("read /f/ckpt", "batch a", "call", "step p2", "loss loss:0.5"), CrashCode.OTHER_SAMPLES),
        (diary("read /f/ckpt", "batch b", "call", "step q2", "loss loss:0.5"), CrashCode.OTHER_RESULT),
    ],
)
def test_another_end_is_told(second, code):
    assert judged([SAVED], second) == [code]


def test_a_printed_loss_is_judged_only_without_parameters():
    mean = diary("read /f/ckpt", "batch b", "call", "step p2", "loss loss:0.7")
    assert judged([SAVED], mean) == []  # as a mean over the attempt is
    told = other_loss(Attempts(PASSES, [SAVED], [mean]), WHOLE)
    assert told == "the last printed loss of rank 0 is 0.7, and undisturbed 0.5"
    assert other_loss(Attempts(PASSES, [SAVED], [RESUMED]), WHOLE) == ""
    by_hand = [diary("call", "write /f/ckpt", "call", "loss loss:0.5")]
    assert judged([diary("call", "write /f/ckpt")], diary("loss loss:0.7"), whole=by_hand) == [CrashCode.OTHER_RESULT]


def test_a_half_written_checkpoint_that_is_read():
    torn = [diary("batch a", "call", "step p1", "write /f/ckpt", "call", "strike /f/ckpt")]
    assert judged(torn, RESUMED) == []  # the program rejects it
    other = diary("read /f/ckpt", "batch b", "call", "step q2", "loss loss:0.5")
    assert judged(torn, other) == [CrashCode.HALF_CHECKPOINT]
    anew = diary("batch a", "call", "step p1", "write /f/ckpt", "read /f/ckpt", "batch b", "call", "step p2")
    assert judged(torn, anew) == []  # written anew before it is read


def test_a_half_written_file_is_not_blamed_for_what_comes_of_a_complete_one():
    torn = Attempts(PASSES, [diary("step p1", "write /f/rng", "strike /f/rng")], [diary("read /f/rng", "step q2")])
    whole = [diary("step p1", "write /f/rng", "step p2")]
    complete = Attempts(PASSES, [diary("step p1", "write /f/rng", "strike ")], [diary("read /f/rng", "step r2")])
    harmless = complete._replace(second=[diary("read /f/rng", "step p2")])
    assert [code for code, _ in judge(torn, whole, complete)] == [CrashCode.OTHER_RESULT]
    assert [code for code, _ in judge(torn, whole, harmless)] == [CrashCode.HALF_CHECKPOINT]


def test_a_program_does_not_resume_only_if_it_left_the_files_that_were_there():
    files = [diary("step p1", "write /f/ckpt", "strike ")]
    assert has_resumed(Attempts(PASSES, files, [diary("read /f/ckpt")])) is True
    assert has_resumed(Attempts(PASSES, files, [diary("step p1")])) is False
    assert has_resumed(Attempts(PASSES, [diary("step p1", "strike ")], [diary("step p1")])) is None
    failed = replace(PASSES, findings=(Finding(Code.RANK_ERROR, (), "x"),))
    assert has_resumed(Attempts(failed, files, [diary("call")])) is None


def test_an_exception_that_no_rank_fails_by_is_held_against_the_undisturbed_run():
    skips = [diary("strike ", "batch b", "call", "step q2", "loss loss:0.5")]
    assert judged(skips, [], result=UNRESTARTED) == [CrashCode.OTHER_RESULT]
    assert judged([diary("strike ")], [], result=UNRESTARTED) == [CrashCode.OTHER_RESULT]
    assert judged([[*WHOLE[0][:4], *diary("strike /f/ckpt"), *WHOLE[0][4:]]], [], result=UNRESTARTED) == []
    again = [*WHOLE[0][:4], *diary("strike /f/ckpt"), *WHOLE[0][4:], *diary("step p2", "write /f/ckpt")]
    assert judged([again], [], result=UNRESTARTED) == []  # the file is written anew


def test_a_complete_checkpoint_that_is_written_over():
    steps = ("step p1", "write /f/ckpt", "step p2", "write /f/ckpt", "strike /f/ckpt")
    assert judged([diary(*steps)], diary("step p2")) == [CrashCode.LOST_CHECKPOINT]
    two = ("step p1", "write /f/a", "step p2", "write /f/b", "step p3", "write /f/a", "strike /f/a")
    assert judged([diary(*two)], diary("step p2")) == []  # the other one is newer
    twice = ("step p1", "write /f/tmp1", "write /f/tmp1", "strike /f/tmp1")  # tempfile.mkstemp, then open
    assert judged([diary(*twice)], diary("step p2")) == []
    moved = ("step p1", "write /f/tmp", "rename /f/tmp /f/ckpt", "step p2", "write /f/tmp", "strike /f/tmp")
    assert judged([diary(*moved)], diary("step p2")) == []


def test_ranks_that_resume_from_other_steps():
    first = [diary("step p1", "write /f/1", "step p2", "write /f/2"), []]
    second = (diary("read /f/1"), diary("read /f/2"))
    assert judged(first, *second, whole=[[], []]) == [CrashCode.OTHER_CHECKPOINTS]
    assert judged(first, second[1], second[1], whole=[[], []]) == []


@rows(
    ("how", "noted"),
    [
        (How.RAISE, ["write a", "rename a b", "strike "]),
        (How.TEAR, ["write a", "rename a b", "strike a"]),
        (How.FULL, ["write a", "rename a b", "write c", "strike c"]),
    ],
)
def test_an_operation_that_a_strike_prevents_is_not_in_the_diary(how, noted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "kill", lambda *_: sys.exit(9))
    host = SimpleNamespace(kernel=SimpleNamespace(run=SimpleNamespace(steps=0)))
    watch = OperationWatch(host, 0, how.value, [Strike(0, 2, how)])
    watch._begin("write", "a")
    watch._begin("rename", "a", "b")
    with pytest.raises((OSError, InjectedCrashError, SystemExit)):
        watch._begin("write", "c")
    entries = [json.loads(line) for line in Path(how.value).read_text().splitlines()]
    assert [f"{kind} {' '.join(what)}" for kind, what, *_ in entries] == noted


def test_what_a_handler_of_sigterm_saves_is_in_the_diary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = SimpleNamespace(steps=0)
    host = SimpleNamespace(kernel=SimpleNamespace(run=run), is_rank_thread=lambda: True, is_stopping=False)
    watch = OperationWatch(host, 0, "diary", [Strike(0, 1, How.TERM)])
    before = signal.signal(signal.SIGTERM, lambda *_: watch._on_event("open", ("saved", "w", os.O_WRONLY)))
    try:
        for _ in range(2):
            watch._guarded(watch._begin, "call")
    finally:
        signal.signal(signal.SIGTERM, before)
    entries = [json.loads(line)[:2] for line in Path("diary").read_text().splitlines()]
    assert entries == [["call", []], ["strike", [""]], ["write", [str(tmp_path / "saved")]], ["call", []]]


def test_the_file_of_a_store_is_not_in_the_diary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    host = SimpleNamespace(kernel=SimpleNamespace(run=SimpleNamespace(steps=0)), is_stopping=False)
    host.is_rank_thread = lambda: True
    watch = OperationWatch(host, 0, "diary", [])
    for module in (user_stores.__name__, "train"):
        exec("watch._on_event('open', (name, 'w', 1))", {"__name__": module, "watch": watch, "name": module})
    assert [json.loads(line)[1] for line in Path("diary").read_text().splitlines()] == [[str(tmp_path / "train")]]


@pytest.mark.tier("ci")
def test_what_steps_without_training_is_no_step_in_the_diary(tmp_path):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    run = SimpleNamespace(steps=0)
    watch = OperationWatch(SimpleNamespace(kernel=SimpleNamespace(run=run)), 0, str(tmp_path / "diary"), [])
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    hook = register_optimizer_step_post_hook(watch._on_step)
    try:
        get_optimizer_state_dict(model, optimizer)  # which makes the state by a step, before a checkpoint is read
        optimizer.step()
        watch._on_step(optimizer, (), {})  # as an optimizer does that holds this one
        run.steps += 1
        optimizer.step()
    finally:
        hook.remove()
    assert [json.loads(line)[3] for line in (tmp_path / "diary").read_text().splitlines()] == [1, 2]


def test_ranks_that_resume_after_a_strike_before_a_rename():
    saved = ("step p1", "write /f/tmp0", "rename /f/tmp0 /f/ckpt0", "step p2", "write /f/tmp0")
    done = diary("step p1", "write /f/ckpt1", "step p2", "write /f/ckpt1")
    second = (diary("read /f/ckpt0"), diary("read /f/ckpt1"))
    struck = diary(*saved, "strike ")
    assert judged([struck, done], *second, whole=[[], []]) == [CrashCode.OTHER_CHECKPOINTS]
    assert judged([struck, done[:3]], *second, whole=[[], []]) == []  # both are of step 1
    renamed = diary(*saved, "rename /f/tmp0 /f/ckpt0", "strike ")
    assert judged([renamed, done], *second, whole=[[], []]) == []  # both are of step 2


def test_ranks_that_fail_after_resuming_from_other_steps():
    first = [diary("step p1", "write /f/1", "step p2", "write /f/2"), []]
    failed = replace(PASSES, findings=(Finding(Code.RANK_ERROR, (), "x"),))
    codes = judged(first, diary("read /f/1"), diary("read /f/2"), whole=[[], []], result=failed)
    assert codes == [CrashCode.OTHER_CHECKPOINTS]
    assert judged(first, diary("read /f/1"), [], whole=[[], []], result=failed) == [CrashCode.FAILS]


def test_samples_that_are_trained_on_again():
    again = diary("read /f/ckpt", "batch a", "call", "step q2", "batch b", "call", "step q3")
    assert judged([SAVED], again) == [CrashCode.OTHER_SAMPLES]
    same = diary("read /f/ckpt", "batch a", "call", "step p1", "batch b", "call", "step p2", "loss loss:0.5")
    assert judged([SAVED], same) == []  # it begins from zero, with the same end


def test_what_differs_without_harm_is_no_finding():
    metrics = [diary("write /f/log", "step p1", "write /f/ckpt", "step p2", "write /f/log"), []]
    second = (diary("read /f/log", "read /f/ckpt"), diary("read /f/ckpt"))
    assert judged(metrics, *second, whole=[[], []]) == []  # a file of one rank is no checkpoint of all
    checked = diary("read /f/ckpt", "batch v", "batch b", "call", "step p2", "loss loss:0.5,12ms")
    assert judged([SAVED], checked) == []  # a batch to evaluate, and another time


def test_points_between_which_no_file_changes_are_one():
    possible, points = points_of([diary("call", "call", "write /f/ckpt", "rename /f/ckpt /f/last", "call")])
    kills = [each.strikes[0].before_operation for each in points if each.strikes[0].how is How.KILL]
    assert kills == [0, 3, 4]  # before the writing, before the renaming, after it
    tears = [each for each in points if each.strikes[0].how is How.TEAR]
    assert [each.text for each in tears] == ["rank 0 is killed while it writes ckpt (train.py:1)"]
    assert [each.strikes[0].before_operation for each in points if each.strikes[0].how is How.FULL] == [2]
    assert possible == 5 + 5 + 1 + 1 + 3


def test_points_of_slow_ranks_and_lost_hosts():
    equal = [entry._replace(steps=0) for entry in diary("call", "write /f/a", "call")]
    _, points = points_of([equal, diary("call"), diary("call"), diary("call")], nodes=2)
    lost = [each for each in points if each.how is How.HOST]
    assert [[(strike.rank, strike.before_operation) for strike in each.strikes] for each in lost] == [
        [(0, 0), (1, 0)],
        [(0, 2), (1, 0)],
        [(2, 0), (3, 0)],
    ]
    assert lost[1].text == "node0 is lost, with rank 0 before its operation 2 (call at train.py:1)"
    slow = [each.strikes[0] for each in points if each.how is How.SLOW]
    assert [(each.rank, each.before_operation) for each in slow] == [(0, 0), (0, 2)]
    assert points_of([equal], 1, [[Strike(0, 1, How.FULL)]])[1][0].how is How.FULL
    with pytest.raises(UsageError, match="is no point of this program"):
        points_of([equal], 1, [[Strike(0, 0, How.FULL)]])


def test_a_strike_on_the_console():
    strike = Strike(1, 7, How.TEAR)
    assert fault_text(strike) == "strike:rank=1,before_operation=7,how=tear"
    assert parse_fault(fault_text(strike)) == strike
    with pytest.raises(UsageError, match="how=kill, tear, term, raise, slow, host or full"):
        parse_fault("strike:rank=1,before_operation=7,how=melt")


@rows("options", [{"max_restarts": 2}, {"faults": (Strike(0, 1),)}])
def test_what_a_sweep_sets_itself_is_refused(options):
    with pytest.raises(UsageError, match=f"{next(iter(options))} is .*, but a sweep of crashes sets its own"):
        crash(["train.py"], 2, **options)


def test_the_working_folder_is_copied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "LARGEST_FOLDER", 10)
    Path(".git").mkdir()
    Path(".git", "pack").write_text("of 11 bytes")
    os.mkfifo("pipe")
    with pytest.raises(UsageError, match=r"cannot be copied, .*pipe: .*is a named pipe: run it in"):
        crash(["train.py"], 2)
    Path("data").write_text("of 11 bytes")
    with pytest.raises(UsageError, match="of which each run gets a copy"):
        crash(["train.py"], 2)


TRAINING = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(len(sys.argv) > 2 and os.getpid())
data = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
begin = 0
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    model.module.load_state_dict(state["model"])
    begin = state["epoch"]
for epoch in range(begin, 2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        name = "last.pt" if "in_place" in sys.argv else "last.tmp"
        torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, name)
        if name != "last.pt":
            os.replace(name, "last.pt")
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.tier("ci")
def test_a_checkpoint_that_is_written_in_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINING)
    assert main(["crash", "--world-size", "2", "--seconds", "300", "train.py"]) == 0
    assert "GOOD  after each of them" in capsys.readouterr().out
    assert sorted(each.name for each in tmp_path.iterdir()) == ["train.py"]
    assert main(["crash", "--world-size", "2", "--seconds", "300", "train.py", "in_place"]) == 1
    said = capsys.readouterr().out
    assert "BAD  crash.half_checkpoint" in said
    words = re.search(r"replay  TORCH\S+ ddpsim (replay .*)", said)[1].split()
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    assert main(words) == 1
    assert "attempt 2, the last" in capsys.readouterr().out
    os.remove("last.pt")
    swept = crash(["train.py", "in_place"], 2, seconds=300)
    assert {bad.code for bad in swept.bad} == {CrashCode.HALF_CHECKPOINT, CrashCode.LOST_CHECKPOINT}
    assert swept.tried == swept.differing < swept.possible
    assert re.search(r"the disk is full as rank 0 writes last.pt at train.py:\d+", swept.bad[0].point.text)


@pytest.mark.tier("ci")
def test_a_program_whose_run_takes_longer_than_a_minute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "_RUN_SECONDS", 0.01)
    Path("train.py").write_text("open('ckpt', 'w').close()\n")
    assert crash(["train.py"], 1, seconds=60).tried


def ends_at_once(*_):
    os._exit(9)


@pytest.mark.tier("ci")
def test_points_of_a_process_that_was_killed_are_tried_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "_try_elsewhere", ends_at_once)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    Path("train.py").write_text("for number in range(4):\n    open(f'ckpt{number}', 'w').close()\n")
    swept = crash(["train.py"], 1, seconds=300)
    assert swept.tried == swept.differing >= sweep._FEWEST_POINTS


@pytest.mark.tier("ci")
def test_a_program_that_does_not_repeat_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINING)
    assert main(["crash", "--world-size", "2", "train.py", "in_place", "unseeded"]) == 3
    assert "two undisturbed runs differ in the batches of rank 0" in capsys.readouterr().out


@pytest.mark.tier("ci")
def test_a_program_that_fills_a_cache_outside_of_its_folder(tmp_path, monkeypatch, capsys):
    """As datasets of Hugging Face do, by the path of their data: each process of the sweep has a folder of its own."""
    folder, cache = tmp_path / "program", tmp_path / "cache"
    folder.mkdir(), cache.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CACHE", str(cache))
    kept = """
name = os.path.join(os.environ["CACHE"], os.path.basename(os.path.dirname(os.getcwd())))
if dist.get_rank() == 0 and not os.path.exists(name):
    open(name, "w").close()
dist.barrier()
"""
    Path("train.py").write_text(TRAINING.replace("begin = 0\n", f"begin = 0{kept}"))
    assert main(["crash", "--world-size", "2", "--seconds", "300", "train.py"]) == 0
    assert "GOOD  after each of them" in capsys.readouterr().out


def test_undisturbed_runs_may_differ_in_the_names_of_files():
    one, other = (
        diary("write /tmp/tmpa1", "rename /tmp/tmpa1 /f/c"),
        diary("write /tmp/tmpb2", "rename /tmp/tmpb2 /f/c"),
    )
    assert first_difference([one], [other]) == ""
    assert first_difference([WHOLE[0], one], [WHOLE[0], one[:1]]) == (
        "two undisturbed runs differ in operation 1 of rank 1: rename at train.py:1, and none"
    )


def test_undisturbed_runs_may_differ_in_the_times_beside_a_loss():
    one, other, apart = ([diary(f"loss {line}")] for line in ("loss:0.5(9s)", "loss:0.5(8s)", "loss:0.6(9s)"))
    assert first_difference(one, other) == ""
    assert first_difference(one, apart) == "two undisturbed runs differ in the losses of rank 0"


def test_the_marker_fails_by_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    sweeps = iter([CrashSweep(9, 3, 3), CrashSweep(9, 3, 2, untried={How.SLOW: 1})])
    monkeypatch.setattr("ddpsim.crash", lambda *arguments, **options: next(sweeps))
    assert crash_of_marker(2, "train.py fast", nnodes=2) == ""
    assert re.match(r"train.py fast  world size 2 .* before 1 of slow\)", crash_of_marker(2, "train.py fast"))


@rows("text", ["", "crash:rank=0,before_call=1"])
def test_a_file_of_points_that_has_none(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("points").write_text(text)
    assert main(["crash", "--world-size", "2", "--points", "points", "train.py"]) == 2
    assert "expected lines of strikes" in capsys.readouterr().err
