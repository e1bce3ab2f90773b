"""The code blocks of a page in Markdown, with what the comments before them say.

A comment in a line of its own, directly before a block, tells how the block is meant: `<!-- file: train.py -->`,
`<!-- again: train.py -->`, `<!-- needs: dot -->`, `<!-- not run: why -->`. CONTRIBUTING.md has the convention;
page_run.py follows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]

FENCE = re.compile(r"^ *(`{3,})([^`]*)$")
COMMENT = re.compile(r"^ *<!-- (.+) -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `notes` are the comments before it, by their keys, `above` the text since the block before."""

    page: str
    line: int
    language: str
    text: str
    notes: Mapping[str, str]
    above: str

    @property
    def place(self) -> str:
        """Where to look when it is wrong."""
        return f"{self.page}:{self.line}"


def pages() -> tuple[Path, ...]:
    """Every page that is for readers."""
    return (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("examples/**/*.md")))


def name_of(page: Path) -> str:
    """A page by its place in the repository."""
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def blocks_of(page: Path) -> tuple[Block, ...]:
    """The blocks of a page, in their order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    fences = tuple(_fences(lines))
    ends = (0, *(end + 1 for _, end in fences))
    return tuple(_block(name_of(page), lines, *fence, before) for before, fence in zip(ends, fences, strict=False))


def _fences(lines: list[str]) -> Iterator[tuple[int, int]]:
    """The lines on which a block opens and closes."""
    start, ticks = None, ""
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if fence and start is None:
            start, ticks = number, fence[1]
        elif fence and start is not None and line.strip() == ticks:
            yield start, number
            start = None
    assert start is None, f"the block that opens on line {start} never closes" if start is not None else ""


def _block(page: str, lines: list[str], start: int, end: int, before: int) -> Block:
    fence = FENCE.match(lines[start])
    assert fence
    text = dedent("\n".join((*lines[start + 1 : end], "")))
    above = "\n".join(line for line in lines[before:start] if not COMMENT.match(line))
    return Block(page, start + 1, fence[2].strip(), text, dict(_notes(lines, start)), above)


def _notes(lines: list[str], start: int) -> Iterator[tuple[str, str]]:
    while start > 0 and (comment := COMMENT.match(lines[start := start - 1])):
        key, _, value = comment[1].partition(":")
        yield key, value.strip()
