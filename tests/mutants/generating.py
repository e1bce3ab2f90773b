"""Small faults of product files, generated from the syntax tree, the same ones at every run.

A mutant is known by its content: the function, the text that is replaced, and the text in its place. So it is found
again after its file or function has moved, and an unrelated change elsewhere leaves the choice nearly as it was.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small fault."""

    file: str
    """Relative to the repository."""
    function: str
    """Its qualified name."""
    kind: str
    old: str
    new: str
    number: int
    """Which of several that are alike in all of the above, from 0."""

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file} {self.function}: {old} ==> {new}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A mutant, and what it replaces in the text of its file, in bytes."""

    mutant: Mutant
    start: int
    end: int
    is_statement: bool


def files_of(folder: str) -> list[str]:
    """The Python files directly in a folder of the product, relative to the repository."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.py"))


def choose(folder: str, count: int, seed: int) -> list[Mutant]:
    """Mutants of the files of a folder, chosen by the hash of their content."""

    def rank(mutant: Mutant) -> str:
        content = (seed, Path(mutant.file).name, mutant.function, mutant.old, mutant.new, mutant.number)
        return hashlib.sha256(repr(content).encode()).hexdigest()

    chosen: list[Mutant] = []
    functions: Counter[tuple[str, str]] = Counter()
    candidates = [mutant for file in files_of(folder) for mutant in mutants_of(file)]
    for mutant in sorted(candidates, key=rank):
        if len(chosen) < count and functions[mutant.file, mutant.function] < 2 and _compiles(mutant):
            chosen.append(mutant)
            functions[mutant.file, mutant.function] += 1
    return sorted(chosen, key=lambda mutant: (mutant.file, mutant.function, mutant.old, mutant.number))


def find_again(mutant: Mutant, folders: Iterable[str]) -> Mutant | None:
    """The same mutant in the tree as it is now, wherever its function has moved; None if its text is gone."""
    files = [file for folder in folders for file in files_of(folder)]
    files.sort(key=lambda file: (file != mutant.file, Path(file).name != Path(mutant.file).name))
    for file in files:
        moved = replace(mutant, file=file)
        if mutant.old in (ROOT / file).read_text(encoding="utf-8") and moved in mutants_of(file):
            return moved
    return None


def mutants_of(file: str) -> list[Mutant]:
    """All mutants of a file."""
    return [place.mutant for place in _places(file)]


def text_with(mutant: Mutant) -> str:
    """The text of the file with the fault in it; its lines keep their numbers."""
    place = next(place for place in _places(mutant.file) if place.mutant == mutant)
    text = (ROOT / mutant.file).read_bytes()
    lines = b"\n" * text[place.start : place.end].count(b"\n")
    new = mutant.new.encode() + lines if place.is_statement else b"(" + mutant.new.encode() + lines + b")"
    return (text[: place.start] + new + text[place.end :]).decode()


def text_with_probes(file: str, mutants: dict[Mutant, int]) -> str:
    """The text of a file that calls `mutant_reached(number)` where a mutant would run; else it does what it did."""
    insertions: list[tuple[int, int, int, bytes]] = []  # where, in which order at one place, text
    for place in _places(file):
        if (number := mutants.get(place.mutant)) is None:
            continue
        size = place.end - place.start
        if place.is_statement:
            insertions.append((place.start, 0, -size, b"mutant_reached(%d); " % number))
        else:
            insertions.append((place.start, 1, -size, b"(mutant_reached(%d) or (" % number))
            insertions.append((place.end, -1, size, b"))"))
    text = (ROOT / file).read_bytes()
    for start, _, _, inserted in sorted(insertions, reverse=True):
        text = text[:start] + inserted + text[start:]
    return text.decode()


def _compiles(mutant: Mutant) -> bool:
    try:
        compile(text_with(mutant), mutant.file, "exec")
    except SyntaxError:
        return False
    return True


@cache
def _places(file: str) -> list[_Place]:
    text = (ROOT / file).read_bytes()
    starts = [0]
    for line in text.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    places, alike = [], Counter[tuple[str, str, str, str]]()
    for function, node in _functions(ast.parse(text), ""):
        for kind, old, new in _changes(node):
            assert old.end_lineno is not None
            assert old.end_col_offset is not None
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            key = (function, kind, text[start:end].decode(), ast.unparse(new))
            if key[2] != key[3]:
                mutant = Mutant(file, *key, alike[key])
                places.append(_Place(mutant, start, end, isinstance(old, ast.stmt)))
                alike[key] += 1
    return places


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods; those inside of functions belong to these."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _changes(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """Kind, node, and what comes in its place, for each part of a function's body that runs."""
    waiting: list[ast.AST] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.pattern, ast.Raise)):
            continue
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):  # without decorators, defaults and annotations
            waiting += reversed(node.body)
            continue
        if isinstance(node, ast.stmt):
            yield from _statement_changes(node)
        if isinstance(node, ast.expr):
            yield from _expression_changes(node)
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.AnnAssign):
            children = iter([node.value] if node.value else [])
        elif isinstance(node, ast.Lambda):
            children = iter([node.body])
        waiting += reversed(list(children))


def _statement_changes(node: ast.stmt) -> Iterator[tuple[str, ast.stmt, ast.stmt]]:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    stores = isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    if (isinstance(node, ast.Expr) and not is_text) or isinstance(node, (ast.AugAssign, ast.Delete)) or stores:
        yield "dropped statement", node, ast.Pass()
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "returned None", node, ast.Return(ast.Constant(None))


def _expression_changes(node: ast.expr) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    changed = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and isinstance(changed, ast.Compare):
        changed.ops[-1] = _OTHER_COMPARISON[type(node.ops[-1])]()
        yield "changed comparison", node, changed
    elif isinstance(node, ast.BoolOp) and isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "changed condition", node, changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "changed condition", node, node.operand
    elif isinstance(node, ast.IfExp) and isinstance(changed, ast.IfExp):
        changed.body, changed.orelse = changed.orelse, changed.body
        yield "changed condition", node, changed
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "changed constant", node, ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "changed constant", node, ast.Constant(not node.value)
    elif isinstance(node, ast.Call) and isinstance(changed, ast.Call) and len(node.args) >= 2:
        changed.args[:2] = reversed(changed.args[:2])
        if not any(isinstance(arg, ast.Starred) for arg in node.args[:2]):
            yield "swapped arguments", node, changed


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
