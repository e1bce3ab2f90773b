"""A table of small faults of the engine, each with the tests that have to notice it; see seeded_faults.txt."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Fault:
    """A small change of a function of the engine, and the tests of which at least one has to fail under it."""

    name: str
    module: str
    """In the package `ddp`."""
    function: str
    """Its qualified name."""
    old: str
    """An expression, or statements, that stand exactly once in the function."""
    new: str
    noticed_by: tuple[str, ...]
    """Files of tests/ddp, or single tests in them."""


def read_faults(text: str) -> tuple[Fault, ...]:
    """The faults of a table such as seeded_faults.txt."""
    faults = []
    for section in re.split(r"^(?=\[)", text, flags=re.MULTILINE)[1:]:
        head, *rest = section.splitlines()
        module, _, function = head.strip("[]").partition(".")
        for entry in re.split(r"\n(?=\S)", "\n".join(rest)):
            title, _, change = entry.partition("\n")
            name, *tests = title.split(" | ")
            old, new = map(textwrap.dedent, re.split(r"\s==>\s", change, maxsplit=1))
            faults.append(Fault(name, module, function, old, new, tuple(tests)))
    return tuple(faults)


def module_text(module: str) -> str:
    """The text of a module of `ddp`, as it is."""
    return _path(module).read_text(encoding="utf-8")


def faulty_text(fault: Fault) -> str:
    """The text of the module with the fault in it; raises ValueError where the module no longer fits the table."""
    tree = ast.parse(module_text(fault.module))
    function = next((node for name, node in _functions(tree, "") if name == fault.function), None)
    change = _Change(fault.old, fault.new)
    if function is not None:
        change.visit(function)
    if change.count != 1:
        raise ValueError(
            f"{fault.function} of ddp/{fault.module}.py has {change.count} times {fault.old!r}, expected 1: update the "
            f"fault {fault.name!r} in tests/ddp/seeded_faults.txt"
        )
    return ast.unparse(ast.fix_missing_locations(tree))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")


class _Change(ast.NodeTransformer):
    """Replaces an expression, or statements in a row, and counts how often it has."""

    def __init__(self, old: str, new: str) -> None:
        self.count = 0
        self._old, self._new = ast.parse(old).body, ast.parse(new).body
        self._is_of_expressions = all(
            len(body) == 1 and isinstance(body[0], ast.Expr) for body in (self._old, self._new)
        )
        self._wanted = [ast.dump(node.value if self._is_of_expressions else node) for node in self._old]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self._is_of_expressions and ast.dump(node) == self._wanted[0]:
            self.count += 1
            return self._new[0].value
        super().generic_visit(node)
        if not self._is_of_expressions:
            for name in ("body", "orelse", "finalbody"):
                if isinstance(statements := getattr(node, name, None), list):
                    self._replace(statements)
        return node

    def _replace(self, statements: list[ast.stmt]) -> None:
        size = len(self._wanted)
        for start in reversed(range(len(statements) - size + 1)):
            if list(map(ast.dump, statements[start : start + size])) == self._wanted:
                self.count += 1
                statements[start : start + size] = self._new


FAULTS = read_faults((Path(__file__).parent / "seeded_faults.txt").read_text(encoding="utf-8"))


def _path(module: str) -> Path:
    return ROOT / "ddp" / f"{module}.py"
