"""Modules of ddpsim with another text than their file's, in this interpreter and in all that it starts.

A folder with this file as `sitecustomize.py` comes first on PYTHONPATH, so it needs nothing but the standard library.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

FOLDER, TEST = "DDPSIM_TESTS_MUTANT", "DDPSIM_TESTS_CURRENT"
"""Variables of the environment: where texts.json and the file of what was reached are; which test runs."""


class Finder(MetaPathFinder):
    """Finds the modules whose text is given, by their names."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self.unused = set(texts)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        """As PathFinder, with a loader of our own."""
        if fullname not in self._texts:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = _Loader(fullname, str(spec.origin), self._texts[fullname])
            self.unused.discard(fullname)
        return spec


class _Finders(list[MetaPathFinder]):
    """The first stays first: pytest puts its own in front, which reads the files of plugins, as ddpsim is one."""

    def insert(self, index: Any, finder: MetaPathFinder) -> None:
        """As list's, but behind the first."""
        super().insert(index or 1, finder)


class _Loader(SourceFileLoader):
    """Compiles the text, and keeps nothing of it."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


def install(folder: str) -> Finder:
    """Find the modules of texts.json, and note what is reached in the file `reached`, a line for each test."""
    with open(os.path.join(folder, "texts.json"), encoding="utf-8") as file:
        finder = Finder(json.load(file))
    sys.meta_path = _Finders([finder, *sys.meta_path])
    # What a rank may have replaced when a probe is called is taken now.
    seen: set[tuple[int, str]] = set()
    test_of, open_, write, close = os.environ.get, os.open, os.write, os.close
    path = os.path.join(folder, "reached")

    def mutant_reached(number: int) -> None:
        key = (number, test_of(TEST, ""))
        if key not in seen:
            seen.add(key)
            file = open_(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            write(file, f"{number}\t{key[1]}\n".encode())
            close(file)

    builtins.mutant_reached = mutant_reached  # type: ignore[attr-defined]
    return finder


if __name__ == "sitecustomize" and FOLDER in os.environ:
    install(os.environ[FOLDER])
