"""Ends a training program at each of its operations, lets it resume, and judges what comes of it.

The program runs undisturbed, twice, to see that it repeats itself. Then it runs once for each point: a rank is killed,
or a file is only half written, or another `Strike` hits; then all ranks start again, as by torchrun, on what the first
attempt has left on the disk. Each run begins with a copy of the working folder. A killed rank leaves files and nothing
else, so of the points of a rank between which no file changes, only the first is tried; of exceptions and SIGTERM,
those at other lines, too.
"""

import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from ddpsim.simulator.api import make_plan
from ddpsim.simulator.budget import Budget
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.exploration.explorer import report_progress
from ddpsim.simulator.faults import How, Strike
from ddpsim.simulator.hosts import FRESH_STORE
from ddpsim.simulator.one_run import run_once
from ddpsim.simulator.policies.named import RoundRobin
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Verdict
from ddpsim.simulator.wording import count_with_noun, rank_list

_LARGEST_FOLDER = 1 << 29
_NOT_COPIED = (".git", "__pycache__")
_RUN_SECONDS = 60.0
_LOSS = re.compile(r"loss[^\d+-]*([+-]?\d[\d.]*(?:e[+-]?\d+)?)", re.IGNORECASE)


class CrashCode(str, Enum):
    """What goes wrong after a crash."""

    HANG = "crash.hang"
    FAILS = "crash.fails"
    HALF_CHECKPOINT = "crash.half_checkpoint"
    OTHER_CHECKPOINTS = "crash.other_checkpoints"
    LOST_CHECKPOINT = "crash.lost_checkpoint"
    OTHER_SAMPLES = "crash.other_samples"
    OTHER_RESULT = "crash.other_result"


class Entry(NamedTuple):
    """A line of a rank's diary, see `rank_processes/operation_watch.py`."""

    kind: str
    what: list[str]
    steps: int
    """The number of steps of the run so far, which orders the entries of all ranks."""
    optimizer_steps: int
    site: str

    @property
    def is_operation(self) -> bool:
        """True for what a strike may come before."""
        return self.kind not in ("step", "batch", "loss", "read", "strike")


Diaries = Sequence[Sequence[Entry]]
"""The diary of each rank in one attempt."""


class Point(NamedTuple):
    """A place where the program is disturbed, and how."""

    strikes: tuple[Strike, ...]
    text: str


class BadPoint(NamedTuple):
    """A point after which something is wrong."""

    point: Point
    code: CrashCode
    text: str
    result: Result
    """The run of both attempts."""


class CrashSweep(NamedTuple):
    """What came of disturbing a program."""

    possible: int
    """The number of all points."""
    differing: int
    """The number of those that are not known to be equal to another one."""
    tried: int
    bad: tuple[BadPoint, ...] = ()
    """In the order of the program."""
    notes: tuple[str, ...] = ()
    undecided: int = 0
    """The number of points whose run neither passed nor failed, which are not among the tried ones."""
    unstable: str = ""
    """How two undisturbed runs differ; then no point is tried. "" if they do not."""
    seconds: float = 0.0


class Attempts(NamedTuple):
    """What a disturbed run has left: its result, and the diaries of its two attempts."""

    result: Result
    first: Diaries
    second: Diaries
    is_copied: bool = False
    """True if the second attempt is that of another run, whose first had left the same files."""


def crash(
    program: Any,
    world_size: int,
    *,
    seconds: float = 60.0,
    on_progress: Callable[[tuple[int, int]], object] | None = None,
    **options: Any,
) -> CrashSweep:
    """Disturb a program, a command as for `simulate_program`, at each of its operations, and judge what comes of it.

    `seconds` is a budget: when it runs out, the points left are not tried. Options are those of `simulate`.

    Raises UsageError as `simulate` does, for faults, max_restarts and a program that fails undisturbed.
    """
    began = time.monotonic()
    with _Scene(program, world_size, options) as scene:
        whole = scene.run(())
        if whole.result.verdict is not Verdict.PASS:
            code = whole.result.findings[0].code
            raise UsageError(f"the undisturbed run finds {code}, expected a pass: see `ddpsim run`")
        if unstable := _first_difference(whole.first, scene.run(()).first):
            return CrashSweep(0, 0, 0, unstable=unstable, seconds=time.monotonic() - began)
        possible, points = points_of(whole.first)
        found: dict[Point, list[BadPoint]] = {}
        tried, has_resumed = 0, False
        undecided: dict[str, list[str]] = {}
        rejected: list[str] = []
        order = (How.TEAR, How.FULL, How.KILL, How.TERM, How.RAISE)
        for point in sorted(points, key=lambda each: order.index(each.strikes[0].how)):
            if time.monotonic() - began > seconds:
                break
            attempts = scene.run(point.strikes, may_skip=not options.get("private_disk"))
            is_known = attempts.result.verdict is not Verdict.UNKNOWN
            if is_known and attempts.is_copied and any(judge(attempts, whole.first)):
                attempts = scene.run(point.strikes)  # so that the result is its own
            if attempts.result.verdict is Verdict.UNKNOWN:  # which says nothing
                worst = next(each for each in attempts.result.findings if each.code.verdict is Verdict.UNKNOWN)
                undecided.setdefault(worst.code, []).append(worst.summary)
                continue
            tried += 1
            has_resumed |= bool(_generations(attempts))
            found[point] = [BadPoint(point, *each, attempts.result) for each in judge(attempts, whole.first)]
            torn, reader = _torn_read(attempts)
            if reader is not None and all(bad.code is not CrashCode.HALF_CHECKPOINT for bad in found[point]):
                rejected.append(os.path.basename(torn))
            on_progress = report_progress(on_progress, (tried, len(points)))
    notes = [f"{count_with_noun(len(each), 'point')} not decided: {each[0]}" for each in undecided.values()]
    notes += [
        f"{name} was read half written after {count_with_noun(rejected.count(name), 'point')}; the end was the same"
        for name in dict.fromkeys(rejected)
    ]
    notes += _notes(whole.first, scene.folder, has_resumed=has_resumed)
    bad = tuple(each for point in points for each in found.get(point, ()))
    return CrashSweep(
        possible,
        len(points),
        tried,
        bad,
        tuple(notes),
        sum(map(len, undecided.values())),
        seconds=time.monotonic() - began,
    )


class _Scene:
    """Runs the program again and again, each time in a copy of the working folder at the same path."""

    def __init__(self, program: Any, world_size: int, options: Mapping[str, Any]) -> None:
        for name in ("faults", "max_restarts"):
            if options.get(name):
                raise UsageError(f"{name} is {options[name]!r}, but a sweep of crashes sets its own: leave it out")
        self._program, self._world_size = program, world_size
        self._options = {**options, "max_restarts": 1, "one_at_a_time": True}
        self._home, self._made = os.getcwd(), ExitStack()
        size = 0
        for folder, inner, files in os.walk(self._home):
            inner[:] = set(inner) - set(_NOT_COPIED)
            size += sum(os.lstat(os.path.join(folder, each)).st_size for each in files)
        if size > _LARGEST_FOLDER:
            raise UsageError(
                f"the working folder has {size >> 20} MiB, of which each run gets a copy, expected "
                f"{_LARGEST_FOLDER >> 20} at most: run it in a folder that has only what the program needs"
            )
        self._resumed: dict[str, tuple[Result, Diaries]] = {}
        """By the digest of the files that a first attempt left: the result of resuming from them, and the diaries."""

    def __enter__(self) -> "_Scene":
        self._root = self._made.enter_context(tempfile.TemporaryDirectory(prefix="ddpsim-crash-"))
        self.folder = str(Path(os.path.realpath(self._root), "work"))
        # With a store that lasts, gloo may meet the addresses of the first attempt.
        self._made.enter_context(patch.dict(os.environ, {FRESH_STORE: "1"}))
        return self

    def __exit__(self, *error: object) -> None:
        self._made.close()

    def run(self, strikes: Sequence[Strike], *, may_skip: bool = False) -> Attempts:
        """Run the program, with its output hidden, and read the diaries of its ranks. `may_skip`: it does not resume
        from files from which it has resumed before."""
        diary = Path(self._root, "diary")
        for folder in (self.folder, diary):
            shutil.rmtree(folder, ignore_errors=True)
        diary.mkdir()
        try:
            shutil.copytree(self._home, self.folder, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        except OSError as error:  # shutil.Error has a list of (from, to, why)
            why = "{0}: {2}".format(*error.args[0][0]) if isinstance(error, shutil.Error) else error
            raise UsageError(
                f"the working folder cannot be copied, {why}: run it in a folder that has only what the program needs"
            ) from None
        hidden, left = io.StringIO(), ""

        def goes_on() -> bool:
            nonlocal left
            left = _digest_of_files(self.folder)
            return not may_skip or left not in self._resumed

        with _inside(self.folder), redirect_stdout(hidden), redirect_stderr(hidden):
            options = {**self._options, "faults": tuple(strikes)}
            runnable, plan = make_plan(self._program, self._world_size, options, None)
            plan, budget = replace(plan, diary=str(diary)), Budget(seconds=_RUN_SECONDS)
            result = run_once(runnable, self._world_size, plan, policy=RoundRobin(), budget=budget, goes_on=goes_on)
        first, second = [
            [_read_diary(diary / f"{attempt}.{rank}") for rank in range(self._world_size)] for attempt in (0, 1)
        ]
        if left and not result.attempts:
            return Attempts(self._resumed[left][0], first, self._resumed[left][1], is_copied=True)
        if left:
            self._resumed[left] = result, second
        return Attempts(result, first, second)


def _digest_of_files(folder: str) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(folder).rglob("*")):
        if "__pycache__" not in path.parts:
            hashed.update(f"{path}\0".encode())
            hashed.update(path.read_bytes() if path.is_file() else b"")
    return hashed.hexdigest()


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _read_diary(path: Path) -> list[Entry]:
    return [Entry(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _first_difference(one: Diaries, other: Diaries) -> str:
    """Return how two undisturbed runs differ; "" if they do not."""
    for rank, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        for kind, name in (("batch", "batches"), ("step", "parameters after an optimizer step"), ("loss", "losses")):
            if _all_of(mine, kind) != _all_of(theirs, kind):
                return f"two undisturbed runs differ in the {name} of rank {rank}"
        if [each[:2] for each in mine if each.is_operation] != [each[:2] for each in theirs if each.is_operation]:
            return f"two undisturbed runs differ in the calls or files of rank {rank}"
    return ""


def _all_of(diary: Sequence[Entry], kind: str) -> list[str]:
    return [each.what[0] for each in diary if each.kind == kind]


# --- points -----------------------------------------------------------------------------------------------------------


def points_of(diaries: Diaries) -> tuple[int, list[Point]]:
    """Return the number of all points, and those that differ, in the order of the program."""
    operations = [[each for each in diary if each.is_operation] for diary in diaries]
    places = sorted(
        (each.steps, rank, number) for rank, own in enumerate(operations) for number, each in enumerate(own)
    )
    calls = [[number for number, each in enumerate(own) if each.kind == "call"] for own in operations]
    possible, files = 0, 0
    points: dict[object, Point] = {}
    for _, rank, number in places:
        here = operations[rank][number]
        before = operations[rank][number - 1] if number else None
        where = f"before its operation {number} ({_operation_text(here)})"
        one = {How.KILL: f"rank {rank} is killed {where}", How.RAISE: f"an exception is raised on rank {rank} {where}"}
        if before is not None and before.kind == "write":
            name = os.path.basename(before.what[0])
            one[How.TEAR] = f"rank {rank} is killed while it writes {name} ({before.site})"
        if here.kind == "write":
            one[How.FULL] = f"the disk is full as rank {rank} {_operation_text(here).replace('write', 'writes', 1)}"
        for how, text in one.items():
            of_lines = how is not How.KILL and (here.site, number if how is not How.RAISE else 0)
            points.setdefault((how, rank, files, of_lines), Point((Strike(rank, number, how),), text))
        possible += len(one)
        if rank == 0 and number in calls[0] and all(calls[0].index(number) < len(each) for each in calls):
            nth = calls[0].index(number)
            strikes = tuple(Strike(each, own[nth], How.TERM) for each, own in enumerate(calls))
            text = f"all ranks get SIGTERM before their call {nth} ({here.site})"
            points.setdefault((How.TERM, files, here.site), Point(strikes, text))
            possible += 1
        files += here.kind != "call"
    return possible, list(points.values())


def _operation_text(operation: Entry) -> str:
    names = " to ".join(map(os.path.basename, operation.what))
    return f"{operation.kind}{' ' * bool(names)}{names} at {operation.site}"


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(attempts: Attempts, whole: Diaries) -> Iterator[tuple[CrashCode, str]]:
    """Yield what is wrong after a crash, without what only follows from that."""
    result, first, second, _ = attempts
    torn, reader = _torn_read(attempts)
    if reader is not None and (harm := _failure(result) or _first_harm(second, whole)):
        text = f"rank {reader} reads {os.path.basename(torn)}, which was only half written; {harm[1]}"
        yield CrashCode.HALF_CHECKPOINT, text
    if torn and _was_newest(first, torn):
        text = (
            f"{os.path.basename(torn)} was complete, and is lost: it is written in place, and no other file is as new"
        )
        yield CrashCode.LOST_CHECKPOINT, text
    if reader is not None:
        return
    if failure := _failure(result):
        yield failure
    elif not result.attempts:
        for _, text in _other_results(first, whole, is_first=True):
            yield CrashCode.OTHER_RESULT, f"no rank fails in the attempt that was struck; {text}"
    else:
        others = [*_other_checkpoints(_generations(attempts)), *_other_samples(second, whole)]
        yield from others or _other_results(second, whole)


def _first_harm(second: Diaries, whole: Diaries) -> tuple[CrashCode, str] | None:
    return next((each for judged in (_other_samples, _other_results) for each in judged(second, whole)), None)


def _failure(result: Result) -> tuple[CrashCode, str] | None:
    if result.verdict is Verdict.PASS:
        return None
    when = "after resuming" if result.attempts else "in the attempt that was struck, which no rank's failure ends"
    worst = next(each for each in result.findings if each.code.verdict is result.verdict)
    is_hang = not result.errors and worst.code.value.startswith(("deadlock.", "stuck"))
    return (CrashCode.HANG if is_hang else CrashCode.FAILS), f"{when}: {worst.code}, {worst.summary}"


def _other_checkpoints(generations: Mapping[str, Mapping[int, int]]) -> Iterator[tuple[CrashCode, str]]:
    for kind, of_ranks in generations.items():
        if len(set(of_ranks.values())) > 1:
            texts = [f"rank {rank} from one of step {made}" for rank, made in of_ranks.items()]
            yield CrashCode.OTHER_CHECKPOINTS, f"ranks resume from files {kind} of other steps: {', '.join(texts)}"


def _other_samples(second: Diaries, whole: Diaries) -> Iterator[tuple[CrashCode, str]]:
    for rank, (own, expected) in enumerate(zip(second, whole, strict=True)):
        mine, theirs = _trained_on(own), _trained_on(expected)
        if mine and mine != theirs[-len(mine) :]:
            count = count_with_noun(len(mine), "batch", "batches")
            text = f"after resuming, rank {rank} trains on {count}, which are not the last of the undisturbed run"
            yield CrashCode.OTHER_SAMPLES, text
            return


def _trained_on(diary: Sequence[Entry]) -> list[str]:
    """Return the last batch before each optimizer step: an evaluation reads others."""
    found, last = [], ""
    for each in diary:
        if each.kind == "step" and last:
            found.append(last)
        last = each.what[0] if each.kind == "batch" else "" if each.kind == "step" else last
    return found


def _other_results(last: Diaries, whole: Diaries, *, is_first: bool = False) -> Iterator[tuple[CrashCode, str]]:
    # A rank that resumes from the end has no more to do; one that did not restart has to do all.
    for rank, (own, expected) in enumerate(zip(last, whole, strict=True)):
        for kind, what in (("loss", "the last printed loss"), ("step", "the digest of the parameters")):
            mine, theirs = ([*map(_value, _all_of(each, kind))] for each in (own, expected))
            if theirs and (mine or is_first) and mine[-1:] != theirs[-1:]:
                end = mine[-1] if mine else "missing"
                text = f"at the end, {what} of rank {rank} is {end}, and undisturbed {theirs[-1]}"
                yield CrashCode.OTHER_RESULT, text
                return


def _value(text: str) -> str:
    """Return the number of a printed loss, without others of the line, such as times."""
    found = _LOSS.search(text)
    return found[1] if found else text


def _torn_file(first: Diaries) -> str:
    """Return the file that the strike has left half written; "" if there is none."""
    for diary in first:
        for number, each in enumerate(diary):
            if each.kind == "strike" and each.what[0]:
                is_replaced = any(later.is_operation and each.what[0] in later.what for later in diary[number + 1 :])
                return "" if is_replaced else each.what[0]
    return ""


def _torn_read(attempts: Attempts) -> tuple[str, int | None]:
    """Return the file that the strike has left half written, "" for none, and the first rank that reads it then."""
    torn = _torn_file(attempts.first)
    return torn, _first_reader(attempts.second, torn) if torn else None


def _first_reader(second: Diaries, file: str) -> int | None:
    """Return the first rank that reads a file in the second attempt before any rank writes it; None if none does."""
    uses = sorted(
        (each.steps, each.kind == "read", rank)
        for rank, diary in enumerate(second)
        for each in diary
        if each.kind in ("read", "write", "remove") and file in each.what
    )
    return uses[0][2] if uses and uses[0][1] else None


def _written_files(diaries: Diaries) -> dict[str, int]:
    """Return the files of an attempt that were written before the strike, each with the optimizer steps by then."""
    ordered = sorted(
        ((each.steps, rank, number), each) for rank, own in enumerate(diaries) for number, each in enumerate(own)
    )
    files: dict[str, int] = {}
    for _, each in ordered:
        if each.kind == "write":
            files[each.what[0]] = each.optimizer_steps
        elif each.kind == "rename" and each.what[0] in files:
            files[each.what[1]] = files.pop(each.what[0])
        elif each.kind == "remove":
            files.pop(each.what[0], None)
    return files


def _was_newest(first: Diaries, torn: str) -> bool:
    """Return whether a torn file had been complete before, and no other file was as new then."""
    writes = [
        each.optimizer_steps for diary in first for each in diary if each.kind == "write" and each.what[0] == torn
    ]
    others = [made for file, made in _written_files(first).items() if file != torn]
    return len(writes) > 1 and all(made < writes[-2] for made in others)


def _generations(attempts: Attempts) -> dict[str, dict[int, int]]:
    """Return after how many steps the files were written from which ranks resume: by their names without numbers, and
    by rank."""
    files = _written_files(attempts.first)
    found: dict[str, dict[int, int]] = {}
    for rank, diary in enumerate(attempts.second):
        until = next((number for number, each in enumerate(diary) if each.kind == "step"), len(diary))
        for file in [each.what[0] for each in diary[:until] if each.kind == "read" and each.what[0] in files]:
            own = found.setdefault(re.sub(r"\d+", "N", os.path.basename(file)), {})
            own[rank] = max(own.get(rank, 0), files[file])
    return found


def _notes(whole: Diaries, folder: str, *, has_resumed: bool) -> tuple[str, ...]:
    """Return what was not judged, and why."""
    notes = []
    written = {each.what[0] for diary in whole for each in diary if each.kind == "write"}
    if not written:
        notes.append("no rank writes a file, so there is no checkpoint: only hangs and failures were judged")
    elif not has_resumed:
        notes.append("no rank read a file of the first attempt, so the program does not resume: it began from zero")
    if outside := sorted(each for each in written if not each.startswith(folder + os.sep)):
        notes.append(f"not put back between runs, as it is outside the working folder: {outside[0]}")
    ranks = [rank for rank, diary in enumerate(whole) if not _all_of(diary, "batch")]
    if ranks:
        notes.append(f"{rank_list(ranks)} used no DataLoader: the samples were not compared")
    if not any(_all_of(diary, kind) for diary in whole for kind in ("step", "loss")):
        notes.append("no rank made an optimizer step or printed a loss: the results were not compared")
    return tuple(notes)
