"""Writes a document as JSON and reads it. Its JSON Schema is published as assets/document.schema.json."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from ddpsim.reports.document import VERSION, Document, Exploration, ReportError, Run
from ddpsim.simulator.events import EventKind

Decoded = TypeVar("Decoded")

LARGEST_BYTES = 1 << 28
"""The largest file that is read, in bytes; a larger file has millions of events, too many for a reader."""


def to_json(document: Document) -> bytes:
    """Write the document as UTF-8 JSON."""
    return encode_json(document)


def encode_json(value: object) -> bytes:
    """Encode the value as UTF-8 JSON; a lone surrogate, as in a file name that is not UTF-8, becomes "?"."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        return plain.encode(errors="replace")


def from_json(data: bytes, *, name: str = "the file") -> Document:
    """Return the document from JSON that `to_json` wrote. Raises ReportError, with `name`, for other data."""
    version = _decode_json(data, _Versioned, name).version
    if version != VERSION:
        raise ReportError(
            f"{name} has version {version}, this ddpsim reads {VERSION}: write it again with this ddpsim, or read it "
            "with the one that wrote it"
        )
    document = _decode_json(data, Document, name)
    if problem := first_invalid_reference(document):
        raise _not_a_report(name, problem)
    return document


def read_document(path: Path) -> Document:
    """Return the document in a JSON file. Raises ReportError if the file cannot be read or has no document."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would block
        raise ReportError(f"{path} is not a regular file, expected a result.json that --report wrote: give that file")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ReportError(
            f"{path} cannot be read ({error.strerror}), expected a result.json that --report wrote: check the path"
        ) from None
    if len(data) > LARGEST_BYTES:
        raise ReportError(
            f"{path} has more than {LARGEST_BYTES >> 20} MiB, the limit of a report: report a shorter run"
        )
    return from_json(data, name=str(path))


class _Versioned(msgspec.Struct):
    version: int


def _decode_json(data: bytes, of: type[Decoded], name: str) -> Decoded:
    try:
        return msgspec.json.decode(data, type=of)
    except msgspec.ValidationError as error:
        raise _not_a_report(name, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(
            f"{name} is not valid JSON ({error}), expected a result.json that --report wrote: write it again"
        ) from None
    except RecursionError:
        raise _not_a_report(name, "it is nested too deeply") from None


def _not_a_report(name: str, why: str) -> ReportError:
    return ReportError(
        f"{name} is not a ddpsim report ({why}), expected a result.json that --report wrote: check the path"
    )


def first_invalid_reference(document: Document) -> str:
    """Return the first index without a row, such as "runs[0].events[3] names call 7 of 5"; "" if there is none."""
    if not document.runs and document.exploration is None:
        return "it has no run"
    for index, run in enumerate(document.runs):
        for problem in _invalid_in_run(run):
            return f"runs[{index}].{problem}"
    if document.exploration is not None:
        return next(_invalid_in_exploration(document.exploration, document.runs), "")
    return ""


def _invalid_in_run(run: Run) -> Iterator[str]:
    if run.world_size < 1:
        yield f"world_size is {run.world_size}, expected at least 1"
    if tuple(rank.rank for rank in run.ranks) != tuple(range(len(run.ranks))) or len(run.ranks) != run.world_size:
        yield f"ranks are {len(run.ranks)}, expected one for each of {run.world_size} in order"
    sites, calls, events, slots = len(run.sites), len(run.calls), len(run.events), len(run.slots)
    ranks = run.world_size
    for index, call in enumerate(run.calls):
        yield from _invalid_indices(f"calls[{index}]", "site", [call.site, call.caller], sites)
    for index, event in enumerate(run.events):
        yield from _invalid_indices(f"events[{index}]", "call", [event.call], calls)
        yield from _invalid_indices(f"events[{index}]", "rank", [event.rank], ranks)
    reported = {slot for finding in run.findings if finding.is_mismatch for slot in finding.slots}
    for index, slot in enumerate(run.slots):
        if slot.state == "mismatched" and index not in reported:
            yield f"slots[{index}] is mismatched, but no finding is about it"
        yield from _invalid_indices(f"slots[{index}]", "event", [*slot.issues, slot.match], events)
        yield from _invalid_indices(f"slots[{index}]", "rank", slot.missing, ranks)
        yield from (
            f"slots[{index}] names event {each}, which issues no call"
            for each in slot.issues
            if run.events[each].kind is not EventKind.ISSUE or run.events[each].call is None
        )
    for index, waiting in enumerate(run.waiting):
        where = f"waiting[{index}]"
        yield from _invalid_indices(where, "rank", [waiting.who.rank, *(who.rank for who in waiting.waits_for)], ranks)
        yield from _invalid_indices(where, "site", [waiting.site], sites)
        yield from _invalid_indices(where, "slot", waiting.slots, slots)
    for index, finding in enumerate(run.findings):
        yield from _invalid_indices(f"findings[{index}]", "rank", [*finding.ranks, *finding.cycle], ranks)
        yield from _invalid_indices(f"findings[{index}]", "site", finding.sites, sites)
        yield from _invalid_indices(f"findings[{index}]", "slot", finding.slots, slots)
    for rank in run.ranks:
        yield from _invalid_indices(f"ranks[{rank.rank}]", "site", [rank.site], sites)


def _invalid_in_exploration(exploration: Exploration, runs: tuple[Run, ...]) -> Iterator[str]:
    yield from _invalid_indices("exploration", "run", [exploration.failing, exploration.passing], len(runs))
    difference = exploration.difference
    if difference is None:
        return
    for run, event in ((exploration.failing, difference.failing), (exploration.passing, difference.passing)):
        if run is None:
            yield "exploration.difference compares runs that do not exist"
            return
        yield from _invalid_indices("exploration.difference", "event", [event], len(runs[run].events))


def _invalid_indices(where: str, what: str, indices: Iterable[int | None], count: int) -> Iterator[str]:
    for index in indices:
        if index is not None and not 0 <= index < count:
            yield f"{where} names {what} {index} of {count}"
