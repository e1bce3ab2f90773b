"""The letter of each kind of call in lanes that are drawn as text, and the legend that explains the letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from string import ascii_uppercase

from ddpsim.reports.document import Call

SEND, RECEIVE, OTHER = ">", "<", "*"
MISSING, ODD, WAITS, LATE = "?", "!", "=", "-"

Kind = tuple[str, str]
"""Operation and group."""


def kind_of(call: Call) -> Kind:
    """Return the kind of a call: calls of a kind have the same letter."""
    return call.operation, call.group


def letters_for(calls: Iterable[Call]) -> dict[Kind, str]:
    """Return a capital for each kind of collective, from its name if possible; sends and receives are arrows."""
    found: dict[Kind, str] = {}
    taken = set[str]()
    for call in calls:
        kind = kind_of(call)
        if kind in found:
            continue
        if call.is_point_to_point:
            found[kind] = SEND if call.operation == "send" else RECEIVE
            continue
        found[kind] = next((letter for letter in _candidates(call.operation) if letter not in taken), OTHER)
        taken.add(found[kind])
    return found


def _candidates(operation: str) -> Iterator[str]:
    """Yield the initials of the operation's words, then its other letters, then the alphabet."""
    name = operation.upper()
    initials = [word[0] for word in name.split("_") if word]
    yield from (letter for letter in (*initials, *name, *ascii_uppercase) if letter in ascii_uppercase)


def legend_of(calls: Iterable[Call], letters: dict[Kind, str], shown: Iterable[str]) -> list[str]:
    """Return the meaning of each character that is shown, in the order of `calls`."""
    seen, kinds = set(shown), {kind_of(call): None for call in calls}
    groups = {group for _, group in kinds}
    names: dict[str, list[str]] = {}
    for operation, group in kinds:
        name = f'{operation} "{group}"' if len(groups) > 1 else operation
        names.setdefault(letters[operation, group], []).append(name)
    entries = []
    for letter, named in names.items():
        if letter in seen or letter.lower() in seen:
            entries.append(f"{letter} {'others' if letter == OTHER else ', '.join(named)}")
    if any(letter.islower() for letter in seen):
        entries.append("small: made by join() on a joined rank")
    words = {LATE: "waits for others", WAITS: "waits forever", MISSING: "never came", ODD: "differs"}
    return entries + [f"{sign} {text}" for sign, text in words.items() if sign in seen]
