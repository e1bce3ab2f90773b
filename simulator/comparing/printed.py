"""What a training and its reference print: a metric may be another one although all tensors are the same."""

import io
import re
from typing import TextIO

_NUMBER = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?")
"""A number with a point: others count, or name ranks."""
_NEAR = 1e-3
"""The relative difference that is taken for rounding, as lines seldom show more than four digits."""


class Kept(io.StringIO):
    """A stream that keeps what is written to another one."""

    def __init__(self, shown: TextIO) -> None:
        super().__init__()
        self._shown = shown

    def write(self, text: str) -> int:
        """Write to both."""
        self._shown.write(text)
        return super().write(text)

    def flush(self) -> None:
        """Show what was written."""
        self._shown.flush()


def describe_other_line(printed: str, reference: str, twin: str) -> str:
    """Return a note on the first line with another number than the reference's; "" if there is none.

    Lines are held against those of the same form, if there are as many. What the twin of the reference prints
    otherwise, such as a time, tells nothing.
    """
    own, *others = map(_by_form, (printed, reference, twin))
    for form, lines in own.items():
        pairs = [each.get(form, []) for each in others]
        if "#" not in form or not len(lines) == len(pairs[0]) == len(pairs[1]):
            continue
        for line, other, again in zip(lines, *pairs, strict=True):
            if _differ(line, other) and not _differ(other, again):
                said = f'printed "{line.strip()}", where the reference printed "{other.strip()}"'
                return f"{said}; a rank may print its own part"
    return ""


def _by_form(text: str) -> dict[str, list[str]]:
    """Return the lines of a text by their form: the line with a sign for each number with a point."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        found.setdefault(_NUMBER.sub("#", line), []).append(line)
    return found


def _differ(line: str, other: str) -> bool:
    pairs = zip(map(float, _NUMBER.findall(line)), map(float, _NUMBER.findall(other)), strict=True)
    return any(abs(one - two) > _NEAR * max(abs(one), abs(two)) for one, two in pairs)
