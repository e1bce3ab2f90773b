"""Draws a run as text: a row for each rank, a character for each call, calls that match each other in one column."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from string import ascii_uppercase
from typing import NamedTuple

from rich.text import Text

from ddpsim.reports.document import Call, End, Run
from ddpsim.reports.layout.lanes import Lane, Lanes, lanes_of
from ddpsim.reports.printable import escape_control_characters
from ddpsim.simulator.wording import rank_list, values_by_key

SEND, RECEIVE, OTHER = ">", "<", "*"
MISSING, ODD, WAITS, LATE = "?", "!", "=", "-"

Kind = tuple[str, str]
"""The operation and the group of a call."""

_IN_MESH = re.compile(r" \([^()]*\)")
"""Matches the coordinates in a group's name: "(dp 1)" in "tp (dp 1)"."""
_SEPARATE_RANKS = 16
"""Up to this many ranks, each has its own row; if there are more, ranks with equal rows share a row."""
_MOST_ROWS = 40
_LONGEST_LABEL = 24
_LEAST_TEXT = 12
"""The columns that a narrow terminal keeps for text on how a rank ended."""
_WORDS: dict[End, str] = {"waiting": "waits", "unknown": ""}
"""Words for how a rank ended, by the value of `End`, where the text uses another word."""
_STYLES = {MISSING: "bold red", ODD: "bold red", WAITS: "yellow", LATE: "dim"}


@dataclass(frozen=True, slots=True)
class _LaneRow:
    """The row of a rank, of several ranks or of a thread, as a line of text."""

    cells: str
    text: str
    lane: Lane
    ranks: tuple[int, ...]

    @property
    def label(self) -> str:
        """The names of the row's ranks, or of its thread."""
        name, thread = rank_list(self.ranks), self.lane.who.thread
        return f'{name} "{escape_control_characters(thread)}"' if thread else name

    @property
    def shows_cause(self) -> bool:
        """True if the row shows the cause of the failure; such rows are left out last."""
        return self.lane.is_culprit or bool({MISSING, ODD, *"123456789"} & set(self.cells))


class MarkedEvent(NamedTuple):
    """An event that the drawing points at, and the text for it."""

    event: int
    text: str


def draw_lanes_as_text(
    run: Run, width: int, *, is_brief: bool = False, marked: MarkedEvent | None = None
) -> Text | None:
    """Return the drawing and its legend in `width` columns; None without calls. If `is_brief`, waits have no names."""
    run = _name_groups_by_dimension(run)
    lanes = lanes_of(run)
    if not lanes.columns:
        return None
    letters = letters_of_collectives(run.calls)
    rows = _make_rows(run, lanes, letters, is_brief=is_brief)
    shown = _choose_rows(rows)
    columns = len(rows[0].cells)
    first, room = _visible_columns(shown, columns, width)
    label_width = _label_width(shown, width)
    cut = f", the last {room} of {columns} columns" if first else ""
    head = Text(f"lanes  matched calls are in one column{cut}", "bold")
    lines = [head, *(_row_text(row, first, room, label_width) for row in shown)]
    if marked is not None:
        lines.append(_pointer_line(run, lanes, marked, first, label_width))
    if len(shown) < len(rows):
        lines.append(Text(f"  {len(rows) - len(shown)} more lanes are in result.json", "dim"))
    seen = "".join(row.cells[first : first + room] for row in shown)
    lines += _wrap_entries([*legend_of(run.calls, letters, seen), *_legend_of_equal_ranks(lanes, seen)], width)
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _name_groups_by_dimension(run: Run) -> Run:
    """Return group names without coordinates in the device mesh, so that calls of such groups share a letter."""
    if not any(rank.coordinates for rank in run.ranks):
        return run
    return replace(run, calls=tuple(replace(call, group=_IN_MESH.sub("", call.group)) for call in run.calls))


def _digit_of_equal_ranks(side: int) -> str:
    return str(side % 9 + 1)


def _legend_of_equal_ranks(lanes: Lanes, seen: str) -> list[str]:
    """Return a legend for digits: each digit is a set of ranks with equal arguments, where any set may be wrong."""
    words = {_digit_of_equal_ranks(item.side): item.odd for item in lanes.items if item.side >= 0}
    return [f"{sign} {words[sign]}" for sign in sorted(words) if sign in seen]


def _make_rows(run: Run, lanes: Lanes, letters: dict[Kind, str], *, is_brief: bool) -> list[_LaneRow]:
    cells = _lane_characters(run, lanes, letters)
    ends = [_WORDS.get(lane.end, lane.end) for lane in lanes.lanes] if is_brief else _lane_ends(run, lanes)
    rows = [_LaneRow(row, end, lane, lane.ranks) for lane, row, end in zip(lanes.lanes, cells, ends, strict=True)]
    return rows if run.world_size <= _SEPARATE_RANKS else _merge_equal_rows(rows)


def _lane_characters(run: Run, lanes: Lanes, letters: dict[Kind, str]) -> list[str]:
    width = lanes.columns + any(bar.end is None for bar in lanes.bars)  # room for a wait after the last call
    rows = [[" "] * width for _ in lanes.lanes]
    for bar in lanes.bars:
        end = width if bar.end is None else ceil(bar.end)
        for column in range(max(ceil(bar.start), 0), end):
            rows[bar.lane][column] = WAITS if bar.end is None else LATE
    for item in lanes.items:
        call = run.calls[item.call]
        letter = letters[operation_and_group_of(call)]
        odd = ODD if item.side < 0 else _digit_of_equal_ranks(item.side)
        rows[item.lane][item.column] = odd if item.odd else letter.lower() if call.is_shadow else letter
    for missing in lanes.missing:
        rows[missing.lane][missing.column] = MISSING
    return ["".join(row) for row in rows]


def _lane_ends(run: Run, lanes: Lanes) -> list[str]:
    """Return, for each row, how its rank ended and how its call differs from the other ranks' calls."""
    waits = {each.who: f"waits {'in' if each.slots else 'for'} {each.what}" for each in run.waiting}
    odd = {item.lane: f"differs: {item.odd}" for item in lanes.items if item.odd}
    ends = []
    for index, lane in enumerate(lanes.lanes):
        ended = "" if lane.end == "unknown" else " ".join(filter(None, [lane.end, lane.text]))
        parts = [waits.get(lane.who, ended), odd.get(index, "")]
        ends.append(escape_control_characters("; ".join(filter(None, parts))))
    return ends


def _merge_equal_rows(rows: Sequence[_LaneRow]) -> list[_LaneRow]:
    alike = values_by_key(((row.lane.who.thread, row.cells, row.text), row) for row in rows)
    return [replace(same[0], ranks=tuple(rank for row in same for rank in row.ranks)) for same in alike.values()]


def _choose_rows(rows: Sequence[_LaneRow]) -> list[_LaneRow]:
    """Return the rows to show, at most `_MOST_ROWS`, in their order; rows that show the cause are preferred."""
    by_worth = sorted(range(len(rows)), key=lambda index: (not rows[index].shows_cause, index))
    return [rows[index] for index in sorted(by_worth[:_MOST_ROWS])]


def _visible_columns(rows: Sequence[_LaneRow], columns: int, width: int) -> tuple[int, int]:
    """Return the first visible column and the number of visible columns: the last ones, since failures are there."""
    text = max(len(row.text) for row in rows)
    left = width - _label_width(rows, width) - 4
    room = max(left - max(min(text, left // 2), _LEAST_TEXT), 1)
    return max(columns - room, 0), min(columns, room)


def _label_width(rows: Sequence[_LaneRow], width: int) -> int:
    return min(max(Text(row.label).cell_len for row in rows), _LONGEST_LABEL, width // 2)


def _row_text(row: _LaneRow, first: int, room: int, label_width: int) -> Text:
    label = Text(row.label, "bold red" if row.lane.is_culprit else "")
    label.truncate(label_width, overflow="ellipsis", pad=True)
    cells = Text(row.cells[first : first + room])
    for sign, style in _STYLES.items():
        cells.highlight_words([sign], style)
    line = Text.assemble(label, "  ", cells, "  ", row.text)
    line.rstrip()
    return line


def _pointer_line(run: Run, lanes: Lanes, marked: MarkedEvent, first: int, label_width: int) -> Text:
    """Return a line of text below the rows that points at an event's column and names its rank."""
    who = run.events[marked.event].who
    before = [item.column for item in lanes.items if item.event <= marked.event and lanes.lanes[item.lane].who == who]
    column = (before[-1] if before else 0) - first
    place = "<" if column < 0 else " " * column + "^"
    return Text(f"{'':<{label_width}}  {place} {escape_control_characters(str(who))}: {marked.text}", "bold")


def _wrap_entries(entries: Sequence[str], width: int) -> list[Text]:
    lines: list[str] = []
    for entry in map(escape_control_characters, entries):
        if lines and len(lines[-1]) + 3 + len(entry) <= width:
            lines[-1] += f"   {entry}"
        else:
            lines.append(f"  {entry}")
    return [Text(line, "dim") for line in lines]


def operation_and_group_of(call: Call) -> Kind:
    """Return the kind of a call (operation and group): all calls of a kind have one letter."""
    return call.operation, call.group


def letters_of_collectives(calls: Iterable[Call]) -> dict[Kind, str]:
    """Return a capital letter for each kind of collective, from its name if possible; sends and receives are arrows."""
    found: dict[Kind, str] = {}
    taken = set[str]()
    for call in calls:
        kind = operation_and_group_of(call)
        if kind in found:
            continue
        if call.is_point_to_point:
            found[kind] = SEND if call.operation == "send" else RECEIVE
            continue
        found[kind] = next((letter for letter in _candidate_letters(call.operation) if letter not in taken), OTHER)
        taken.add(found[kind])
    return found


def _candidate_letters(operation: str) -> Iterator[str]:
    """Yield letters for an operation: the initials of the name's words, its other letters, then the alphabet."""
    name = operation.upper()
    initials = [word[0] for word in name.split("_") if word]
    yield from (letter for letter in (*initials, *name, *ascii_uppercase) if letter in ascii_uppercase)


def legend_of(calls: Iterable[Call], letters: dict[Kind, str], shown: Iterable[str]) -> list[str]:
    """Return the meaning of each character that is shown, in the order of `calls`."""
    seen, kinds = set(shown), {operation_and_group_of(call): None for call in calls}
    groups = {group for _, group in kinds}
    names = values_by_key(
        (letters[operation, group], f'{operation} "{group}"' if len(groups) > 1 else operation)
        for operation, group in kinds
    )
    entries = []
    for letter, named in names.items():
        if letter in seen or letter.lower() in seen:
            entries.append(f"{letter} {'others' if letter == OTHER else ', '.join(named)}")
    if any(letter.islower() for letter in seen):
        entries.append("small: made by join() on a joined rank")
    words = {LATE: "waits for others", WAITS: "waits forever", MISSING: "never came", ODD: "differs"}
    return entries + [f"{sign} {text}" for sign, text in words.items() if sign in seen]
