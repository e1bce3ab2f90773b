"""What is wrong after a crash, by the diaries of the ranks."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest

from ddpsim.simulator.crashing.values import Attempts, CrashCode, Diaries, Entry
from ddpsim.simulator.result import Result
from ddpsim.simulator.verdict import Verdict
from ddpsim.simulator.wording import rank_list

_LOSS = re.compile(r"loss[^\d+-]*([+-]?\d[\d.]*(?:e[+-]?\d+)?)", re.IGNORECASE)


def first_difference(one: Diaries, other: Diaries) -> str:
    """Return how two undisturbed runs differ; "" if they do not."""
    for rank, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        for kind, name in (("batch", "batches"), ("step", "parameters after an optimizer step"), ("loss", "losses")):
            if _all_of(mine, kind) != _all_of(theirs, kind):
                return f"two undisturbed runs differ in the {name} of rank {rank}"
        # By their lines: names of files may have the time of day or a random part in them.
        places = [[f"{each.kind} at {each.site}" for each in own if each.is_operation] for own in (mine, theirs)]
        for number, (here, there) in enumerate(zip_longest(*places, fillvalue="none")):
            if here != there:
                return f"two undisturbed runs differ in operation {number} of rank {rank}: {here}, and {there}"
    return ""


def _all_of(diary: Sequence[Entry], kind: str) -> list[str]:
    """Return what a rank noted of a kind; of a printed loss its number, without others of the line, such as times."""
    found = [each.what[0] for each in diary if each.kind == kind]
    return [number[1] if (number := _LOSS.search(text)) else text for text in found] if kind == "loss" else found


def judge(attempts: Attempts, whole: Diaries, complete: Attempts | None = None) -> Iterator[tuple[CrashCode, str]]:
    """Yield what is wrong after a crash, without what only follows from that. `complete` is the run in which the file
    that this one leaves half written is complete: what is wrong there, too, has another cause."""
    result, first, second, _ = attempts
    torn, reader = torn_read(attempts)
    if reader is not None and (harm := _harm(attempts, whole)):
        if complete is not None and (other := _harm(complete, whole)) and other[0] is harm[0]:
            reader = None
        else:
            text = f"rank {reader} reads {os.path.basename(torn)}, which was only half written; {harm[1]}"
            yield CrashCode.HALF_CHECKPOINT, text
    if torn and _was_newest(first, torn):
        text = (
            f"{os.path.basename(torn)} was complete, and is lost: it is written in place, and no other file is as new"
        )
        yield CrashCode.LOST_CHECKPOINT, text
    if reader is not None:
        return
    generations = _generations(attempts)
    others = [*_other_checkpoints(generations)] if result.attempts else []
    if failure := _failure(result):
        yield (CrashCode.OTHER_CHECKPOINTS, f"{others[0][1]}; {failure[1]}") if others else failure
    elif not result.attempts:
        for _, text in _other_results(first, whole, is_first=True):
            yield CrashCode.OTHER_RESULT, f"no rank fails in the attempt that was struck; {text}"
    else:
        others += _other_samples(second, whole)
        results = [] if others else [*_other_results(second, whole)]
        yield from others or (results and [*_samples_again(second, whole, generations)]) or results


def _harm(attempts: Attempts, whole: Diaries) -> tuple[CrashCode, str] | None:
    judged = (each for judge in (_other_samples, _other_results) for each in judge(attempts.second, whole))
    return _failure(attempts.result) or next(judged, None)


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
            text = f"after resuming, rank {rank} trains on batches that are not the last of the undisturbed run"
            yield CrashCode.OTHER_SAMPLES, text
            return


def _samples_again(
    second: Diaries, whole: Diaries, generations: Mapping[str, Mapping[int, int]]
) -> Iterator[tuple[CrashCode, str]]:
    """Yield a rank with batches that makes more steps than are left after the step of the files it resumes from."""
    for rank, (own, expected) in enumerate(zip(second, whole, strict=True)):
        made = {of_ranks[rank] for of_ranks in generations.values() if rank in of_ranks}
        count, left = len(_all_of(own, "step")), len(_all_of(expected, "step")) - min(made, default=0)
        if len(made) == 1 and count > left and _trained_on(own):
            text = f"after resuming from step {min(made)}, rank {rank} trains for {count} steps, and {left} were left"
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
    has_steps = any(_all_of(each, "step") for each in whole)
    if text := _other_end(last, whole, "step" if has_steps else "loss", is_first=is_first):
        yield CrashCode.OTHER_RESULT, f"at the end, {text}"


def _other_end(last: Diaries, whole: Diaries, kind: str, *, is_first: bool = False) -> str:
    # A rank that resumes from the end has no more to do; one that did not restart has to do all.
    what = "the digest of the parameters" if kind == "step" else "the last printed loss"
    for rank, (own, expected) in enumerate(zip(last, whole, strict=True)):
        mine, theirs = (_all_of(each, kind) for each in (own, expected))
        if theirs and (mine or is_first) and mine[-1:] != theirs[-1:]:
            return f"{what} of rank {rank} is {mine[-1] if mine else 'missing'}, and undisturbed {theirs[-1]}"
    return ""


def other_loss(attempts: Attempts, whole: Diaries) -> str:
    """Return the last loss that is printed after resuming, if that is another one; "" if not."""
    return _other_end(attempts.second, whole, "loss")


def _torn_file(first: Diaries) -> str:
    """Return the file that the strike has left half written; "" if there is none."""
    for diary in first:
        for number, each in enumerate(diary):
            if each.kind == "strike" and each.what[0]:
                is_replaced = any(later.is_operation and each.what[0] in later.what for later in diary[number + 1 :])
                return "" if is_replaced else each.what[0]
    return ""


_USES = ("read", "write", "remove")


def torn_read(attempts: Attempts) -> tuple[str, int | None]:
    """Return the file that the strike has left half written, "" for none, and the first rank that reads it then, before
    any rank writes it."""
    torn = _torn_file(attempts.first)
    uses = sorted(
        (each.steps, each.kind == "read", rank)
        for rank, diary in enumerate(attempts.second)
        for each in diary
        if torn and each.kind in _USES and torn in each.what
    )
    return torn, uses[0][2] if uses and uses[0][1] else None


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
    # one that is opened twice without a step between is not complete yet, as after tempfile.mkstemp
    writes = sorted(
        {each.optimizer_steps for diary in first for each in diary if each.kind == "write" and each.what[0] == torn}
    )
    others = [made for file, made in _written_files(first).items() if file != torn]
    return len(writes) > 1 and all(made < writes[-2] for made in others)


def has_resumed(attempts: Attempts) -> bool | None:
    """Return whether a rank reads, before its first step, a file that the first attempt has written; None if there was
    no file, or if it fails."""
    if _generations(attempts):
        return True
    return False if _written_files(attempts.first) and _failure(attempts.result) is None else None


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


def _file_there_before(whole: Diaries, folder: str) -> str:
    """Return a file below the folder that was there before the run: a rank reads it, and none has written it by then.
    Where ranks write files, it is one of those. "" if there is none."""
    uses = sorted(
        ((each.steps, rank, number), each.kind, each.what[0])
        for rank, diary in enumerate(whole)
        for number, each in enumerate(diary)
        if each.kind in _USES
    )
    first = {file: kind for _, kind, file in reversed(uses)}
    written = {file for _, kind, file in uses if kind == "write"}
    found = (file for file, kind in first.items() if kind == "read" and file.startswith(folder + os.sep))
    return next((os.path.relpath(file, folder) for file in found if file in written or not written), "")


def notes_of(whole: Diaries, folder: str, resumed: Collection[bool | None]) -> tuple[str, ...]:
    """Return what was not judged, and why. `resumed`: the `has_resumed` of what was tried."""
    notes = []
    written = {each.what[0] for diary in whole for each in diary if each.kind == "write"}
    if not written:
        notes.append("no rank writes a file, so there is no checkpoint: only hangs and failures were judged")
    elif False in resumed and True not in resumed:
        notes.append("no rank read a file of the first attempt, so the program does not resume: it began from zero")
    if earlier := _file_there_before(whole, folder):
        notes.append(f"{earlier} was there before, and the program reads it: remove it if an earlier run has left it")
    if outside := sorted(each for each in written if not each.startswith(folder + os.sep)):
        notes.append(f"not put back between runs, as it is outside the working folder: {outside[0]}")
    ranks = [rank for rank, diary in enumerate(whole) if not _all_of(diary, "batch")]
    if ranks:
        notes.append(f"{rank_list(ranks)} used no DataLoader: the samples were not compared")
    if not any(_all_of(diary, kind) for diary in whole for kind in ("step", "loss")):
        notes.append("no rank made an optimizer step or printed a loss: the results were not compared")
    return tuple(notes)
