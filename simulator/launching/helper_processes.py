"""Whether a process that a program starts by `Process(target=...)` can be a rank, or only helps: what that calls.

A logger, a producer of data or a monitor makes no group. Who cannot be seen through may be a rank.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping

_OF_RANKS = frozenset({
    *("dist", "distributed", "c10d", "idist", "deepspeed", "horovod"),
    *("init_process_group", "init_device_mesh", "DistributedDataParallel", "DDP", "FSDP", "fully_shard"),
    *("Accelerator", "PartialState", "Fabric", "Trainer"),
})  # fmt: skip
"""Names that a function uses which makes a group, or leads to one that does."""

_KNOWN = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"importlib", "runpy", "subprocess"}
"""Packages whose functions make no group; torch's that do are told by name."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Project:
    """The definitions and imports of the files of a program."""

    def __init__(self, trees: Mapping[str, ast.AST]) -> None:
        self._definitions: dict[str, list[_Definition]] = {}
        self._modules: dict[str, set[str]] = {}
        """By a name that an import binds somewhere, the modules that it may be from."""
        own = set()
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, _DEFINITIONS):
                    self._definitions.setdefault(node.name, []).append(node)
                for name, module in _bound(node):
                    self._modules.setdefault(name, set()).add(module)
        for file in trees:
            parts = file.removesuffix(".py").split("/")
            own |= {parts[-1], parts[-2]} if len(parts) > 1 else {parts[-1]}
        self._own = own
        """Names that modules and packages of the project go by."""

    def may_be_rank(self, call: ast.Call) -> bool:
        """False if what `Process` is given to run can be no rank, or if this is no process of multiprocessing."""
        given = [each.value for each in call.keywords if each.arg == "target"] or call.args[1:2]
        if not given:
            return any(each.arg is None for each in call.keywords)  # psutil.Process(pid) only looks at one
        todo: list[ast.AST] = [given[0]] if isinstance(given[0], ast.Lambda) else []
        if not todo:
            todo += self._definitions.get(_name(given[0]), ())
        if not todo:
            return True
        seen: set[ast.AST] = set()
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                names = set(_names(node))
                if names & _OF_RANKS or any(self._is_unknown(name) for name in names):
                    return True
                todo += [each for name in names for each in self._definitions.get(name, ())]
        return False

    def _is_unknown(self, name: str) -> bool:
        """True for what is imported from where nobody has looked."""
        if name in self._definitions:
            return False
        roots = {module.split(".")[0] for module in self._modules.get(name, ())}
        return bool(roots - _KNOWN - self._own - {""})


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _names(node: ast.AST) -> Iterator[str]:
    """All that it speaks of."""
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)):
            yield _name(each)
        for name, module in _bound(each):
            yield name
            yield from module.split(".")


def _bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name that an import binds, and the module that it comes from; "" for one beside the file."""
    if isinstance(node, ast.Import):
        for each in node.names:
            yield (each.asname or each.name.split(".")[0]), each.name
    elif isinstance(node, ast.ImportFrom):
        for each in node.names:
            yield (each.asname or each.name), "" if node.level else (node.module or "")
