"""Run the blocks of a page, in their order and in one folder, and say what is not as the page shows it."""

from __future__ import annotations

import doctest
import json
import re
import runpy
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ddpsim.scenarios import load
from tests.docs.blocks import ROOT, Block
from tests.docs.commands import run
from tests.outside import FRAMEWORKS, PACKAGES, missing, not_installed

TIMES = ((r"\b\d+ ms(, \d+ ms of it to load)?$", "[] ms"), (r"(, |\b(?:in|for) )\d+\.\d+ ?s$", r"\1[] s"))
"""What differs from one run to the next, at the end of a line. Virtual times do not differ."""

COMMAND = re.compile(
    r"^\s*(\$|>>>|ddpsim|pytest|python3?|pip|torchrun|mkdocs|git|ls|cd|cat|curl|dot)\s|^\s*select\s", re.M | re.I
)
LANGUAGES = ("console", "json", "pycon", "python", "sh", "sql", "text", "toml", "yaml")


class PageRun:
    """One page being run in `folder`, which is the current one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {}
        """Of the Python sessions."""
        self.shown: dict[str, str] = {}
        """The files that the page shows, as it shows them first."""
        self.left_out: list[str] = []
        """The blocks that did not run, as this machine lacks what they need, and why."""
        self.without_frameworks: set[str] = set()
        """Why other blocks did not run, for want of what CI lacks, too."""

    def problems(self, block: Block) -> list[str]:
        """What is wrong with a block, which is run; in general nothing."""
        if block.language not in LANGUAGES:
            return [f"language is {block.language!r}, expected one of {', '.join(LANGUAGES)}"]
        if "not run" in block.notes:
            return [] if block.notes["not run"] else ["is not run, expected a reason"]
        if "needs" in block.notes:
            if (needed := block.notes["needs"]) not in (*PACKAGES, *FRAMEWORKS):
                return [f"needs {needed!r}, expected one of {', '.join((*PACKAGES, *FRAMEWORKS))}"]
            if needed in FRAMEWORKS:
                if reason := not_installed(needed):
                    self.without_frameworks.add(reason)
                    return []
            elif reason := missing(needed):
                self.left_out.append(f"{block.place}: {reason}")
                return []
        for name in filter(None, map(block.notes.get, ("file", "again"))):
            if name not in block.above:
                return [f"is {name}, expected its name in the text above, which a reader sees; comments are invisible"]
        if again := block.notes.get("again"):
            self._write(again, self.shown.get(again) or (ROOT / again).read_text(encoding="utf-8"))
        return list(getattr(self, f"_{block.language}")(block))

    def _text(self, block: Block) -> Iterator[str]:
        if command := COMMAND.search(block.text):
            yield f"has a command, {command[0].strip()!r}, expected output or a drawing: commands are console or sh"

    def _yaml(self, block: Block) -> Iterator[str]:
        """A workflow of a CI service: it can only be read."""
        if not isinstance(yaml.safe_load(block.text), dict):
            yield "is no mapping"

    def _sql(self, block: Block) -> Iterator[str]:
        """Of a trace; tests/reports/browser/test_perfetto.py asks it, where the Perfetto UI can be opened."""
        if block.page != "docs/reports.md":
            yield "is SQL, expected none outside docs/reports.md: nothing asks it"

    def _pycon(self, block: Block) -> Iterator[str]:
        test = doctest.DocTestParser().get_doctest(block.text, self.names, block.place, block.page, block.line)
        said: list[str] = []
        doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=said.append, clear_globs=False)
        self.names = test.globs
        if "+SKIP" in block.text:
            yield "has +SKIP, expected examples that run"
        if not test.examples:
            yield "has no example, expected lines that begin with >>>"
        if said:
            yield "".join(said)

    def _console(self, block: Block) -> Iterator[str]:
        before, *sessions = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
        if before or not sessions:
            yield "begins with no command, expected `$ COMMAND` on its first line"
        for session in sessions:
            line, _, shown = re.sub(r"\\\n\s*", "", session).partition("\n")
            status, said = run(line)
            if not is_shown(said, shown):
                yield f"$ {line}\n--- shown\n{shown}--- said\n{said}"
            elif status not in (expected := _told_status(line) or (0, 1, 2)):
                yield f"$ {line}\n--- exit status {status}, expected {' or '.join(map(str, expected))}\n{said}"

    def _sh(self, block: Block) -> Iterator[str]:
        for line in re.findall(r"^((?:.*\\\n)*.*\S.*)$", block.text, re.MULTILINE):
            status, said = (0, "") if line.lstrip().startswith("#") else run(line)
            (expected,) = _told_status(line) or (0,)
            if status != expected:
                yield f"{line}\n--- exit status {status}, expected {expected}\n{said}"

    def _python(self, block: Block) -> Iterator[str]:
        yield from self._file(block, lambda path: runpy.run_path(str(path), run_name=path.stem))

    def _toml(self, block: Block) -> Iterator[str]:
        yield from self._file(block, lambda path: load(str(path)))

    def _json(self, block: Block) -> Iterator[str]:
        yield from self._file(block, lambda path: json.loads(path.read_bytes()))

    def _file(self, block: Block, read: Callable[[Path], object]) -> Iterator[str]:
        first = re.match(r"# (\S+\.\w+)\n", block.text)
        name = block.notes.get("file") or (first and first[1])
        if not name:
            yield "has no name, expected `<!-- file: NAME -->` before it, or `# NAME` on its first line"
            return
        path = self.folder / name
        if self._is_saved(path, name):
            if path.read_text(encoding="utf-8") != block.text.removeprefix(first[0] if first else ""):
                yield f"is not what the commands have saved:\n{path.read_text(encoding='utf-8')}"
            return
        yield from self._shown_file(block, name)
        try:
            read(path)
        except Exception:
            yield traceback.format_exc()

    def _is_saved(self, path: Path, name: str) -> bool:
        """True for a file that a command before has made, so that the page only shows it."""
        return path.exists() and name not in self.shown

    def _shown_file(self, block: Block, name: str) -> Iterator[str]:
        """Write a file; one of the repository is taken from there, and may be shown without its docstring."""
        self.shown.setdefault(name, block.text)
        if "/" in name and (ROOT / name).is_file():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
            if not (ROOT / name).read_text(encoding="utf-8").endswith(block.text):
                yield f"is not the end of the repository's {name}"
            return
        self._write(name, block.text)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _told_status(line: str) -> tuple[int, ...]:
    """The exit status that the comment of a line tells, if it does."""
    return tuple(int(each) for each in re.findall(r"#.*\bexit (?:status )?(\d+)", line))


def is_shown(said: str, shown: str) -> bool:
    """True if a command said what is shown, in which `...` stands for more."""
    return doctest.OutputChecker().check_output(_normal(shown), _normal(said), doctest.ELLIPSIS)


def _normal(text: str) -> str:
    """Without times, and without blanks at the ends of lines."""
    for pattern, blank in ((r" +$", ""), *TIMES):
        text = re.sub(pattern, blank, text, flags=re.MULTILINE)
    return text.rstrip("\n")
