"""Whether a program may start its ranks itself: what it calls, and what the files beside it call that it imports.

Such a program runs as its own launcher first, which costs a second run of its beginning if it turns out to start none.
So it is not enough that it speaks of multiprocessing, or starts a process that helps (`helpers.py`).
"""

from __future__ import annotations

import ast
import os
import re
import tokenize
from collections.abc import Iterator

from ddpsim.simulator.launching.helper_processes import Project
from ddpsim.simulator.launching.script import Script

_PROCESS = "Process"
_STARTS = frozenset({
    *("spawn", "start_processes", _PROCESS),
    *("elastic_launch", "launch_agent"),
    *("notebook_launcher", "debug_launcher"),
})  # fmt: skip
"""The functions that do, by whatever name of a module they are called."""

_STRATEGIES = ("ddp_spawn", "ddp_fork", "ddp_notebook")
"""Words that let a Trainer start processes."""

_IS_WORTH_READING = re.compile(rf"\b({'|'.join([*_STARTS, *_STRATEGIES])}|distributed\W+(run|import\s+run))\w*")


def may_launch(program: Script) -> bool:
    """True if it, or a file of its own that it imports, calls what starts processes."""
    trees: dict[str, ast.AST] = {}
    processes: list[ast.Call] = []
    for file, text, tree in _files_of(program):
        trees[file] = tree
        if _IS_WORTH_READING.search(text):
            nodes = list(ast.walk(tree))
            if any(map(_starts_ranks, nodes)) or any(map(_names_strategy, nodes)):
                return True
            processes += [node for node in nodes if isinstance(node, ast.Call) and _function(node) == _PROCESS]
    return bool(processes) and any(map(Project(trees).may_be_rank, processes))


def launches_by_strategy(program: Script) -> bool:
    """True if it leaves that to a Trainer, which starts no process where it finds the environment of torchrun."""
    return any(
        any(map(_names_strategy, ast.walk(tree)))
        for _, text, tree in _files_of(program)
        if _IS_WORTH_READING.search(text)
    )


def _files_of(program: Script) -> Iterator[tuple[str, str, ast.AST]]:
    """Its file and those of its own that it imports, each with its text and tree."""
    first = program.file()
    if first is None:
        return
    root = os.getcwd() if program.is_module else os.path.dirname(os.path.abspath(first))
    seen, todo = {first}, [first]
    while todo:
        file = todo.pop()
        try:
            with tokenize.open(file) as opened:
                text = opened.read()
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError):  # it may never be imported
            continue
        yield file, text, tree
        found = {each for name in _imported(tree, file, root) for each in _files(name)} - seen
        seen |= found
        todo += sorted(found)


def _function(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _starts_ranks(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _function(node) in _STARTS - {_PROCESS}
    if isinstance(node, ast.ImportFrom):  # of one that is called by another name
        is_run = node.module == "torch.distributed" and any(each.name == "run" for each in node.names)
        is_of_run = node.module == "torch.distributed.run"
        return is_run or is_of_run or any(each.name in _STARTS and each.asname for each in node.names)
    if isinstance(node, ast.Import):
        return any(each.name == "torch.distributed.run" for each in node.names)
    return False


def _names_strategy(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(_STRATEGIES)


def _imported(tree: ast.AST, file: str, root: str) -> Iterator[str]:
    """Where what is imported would lie if it is the project's own, without a suffix."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield os.path.join(root, *each.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            folder = file if node.level else root
            for _ in range(node.level):
                folder = os.path.dirname(folder)
            base = os.path.join(folder, *(node.module or "").split("."))
            yield base
            for each in node.names:
                yield os.path.join(base, each.name)


def _files(name: str) -> Iterator[str]:
    for file in (f"{name}.py", os.path.join(name, "__init__.py")):
        if os.path.isfile(file):
            yield file
