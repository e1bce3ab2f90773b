"""Detects programs that may start their ranks themselves, from their source and the project files that they import.

Such a program first runs as its own launcher. If it then starts no rank, its beginning runs a second time. So importing
multiprocessing is not enough, nor is starting a process that makes no group, such as a logger or a monitor.
"""

import ast
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping

from ddpsim.simulator.launching.script import Script

_PROCESS = "Process"
_STARTS = frozenset({
    *("spawn", "start_processes", _PROCESS),
    *("elastic_launch", "launch_agent"),
    *("notebook_launcher", "debug_launcher"),
})  # fmt: skip
"""The names of functions that start ranks."""

_STRATEGIES = ("ddp_spawn", "ddp_fork", "ddp_notebook")
"""The names of a Trainer's strategies that start processes."""

_IS_WORTH_READING = re.compile(rf"\b({'|'.join([*_STARTS, *_STRATEGIES])}|distributed\W+(run|import\s+run))\w*")

_OF_RANKS = frozenset({
    *("dist", "distributed", "c10d", "idist", "deepspeed", "horovod"),
    *("init_process_group", "init_device_mesh", "DistributedDataParallel", "DDP", "FSDP", "fully_shard"),
    *("Accelerator", "PartialState", "Fabric", "Trainer"),
})  # fmt: skip
"""Names that occur in a function that makes a process group, or calls code that makes one."""

_HARMLESS_PACKAGES = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"importlib", "runpy", "subprocess"}
"""Packages whose functions make no process group, except functions with the names above."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def may_start_own_ranks(program: Script) -> bool:
    """Return whether a program, or a file of its project that it imports, may start ranks."""
    trees: dict[str, ast.AST] = {}
    processes: list[ast.Call] = []
    for file, text, tree in _project_files(program):
        trees[file] = tree
        if _IS_WORTH_READING.search(text):
            nodes = list(ast.walk(tree))
            if any(map(_starts_ranks, nodes)) or any(map(_names_strategy, nodes)):
                return True
            calls = [node for node in nodes if isinstance(node, ast.Call)]
            processes += [call for call in calls if _referenced_name(call.func) == _PROCESS]
    return bool(processes) and any(map(ProjectDefinitions(trees).may_start_rank, processes))


def uses_trainer_strategy(program: Script) -> bool:
    """Return whether a Trainer in the program may start ranks; under torchrun's environment, it starts none."""
    trees = (tree for _, text, tree in _project_files(program) if _IS_WORTH_READING.search(text))
    return any(any(map(_names_strategy, ast.walk(tree))) for tree in trees)


def _project_files(program: Script) -> Iterator[tuple[str, str, ast.AST]]:
    """Yield the program's file and the project files that it imports, each with its text and tree."""
    first = program.python_file()
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
        found = {each for name in _imported_paths(tree, file, root) for each in _existing_files(name)} - seen
        seen |= found
        todo += sorted(found)


def _starts_ranks(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _referenced_name(node.func) in _STARTS - {_PROCESS}
    if isinstance(node, ast.ImportFrom):  # imported under another name
        is_run = node.module == "torch.distributed" and any(each.name == "run" for each in node.names)
        is_of_run = node.module == "torch.distributed.run"
        return is_run or is_of_run or any(each.name in _STARTS and each.asname for each in node.names)
    if isinstance(node, ast.Import):
        return any(each.name == "torch.distributed.run" for each in node.names)
    return False


def _names_strategy(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(_STRATEGIES)


def _imported_paths(tree: ast.AST, file: str, root: str) -> Iterator[str]:
    """Yield the paths, without suffix, that the imported modules would have if they belonged to the project."""
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


def _existing_files(name: str) -> Iterator[str]:
    for file in (f"{name}.py", os.path.join(name, "__init__.py")):
        if os.path.isfile(file):
            yield file


class ProjectDefinitions:
    """The functions, classes and imports in the files of a program."""

    def __init__(self, trees: Mapping[str, ast.AST]) -> None:
        self._definitions: dict[str, list[_Definition]] = {}
        self._modules: dict[str, set[str]] = {}
        """By each name that an import binds, the modules from which the name may come."""
        self._own = {part for file in trees for part in file.removesuffix(".py").split("/")[-2:]}
        """The names of the project's modules and packages."""
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, _Definition):
                    self._definitions.setdefault(node.name, []).append(node)
                for name, module in _imported_names(node):
                    self._modules.setdefault(name, set()).add(module)

    def may_start_rank(self, call: ast.Call) -> bool:
        """Return whether a call of `Process` may start a rank: its target makes a group, or calls unknown code."""
        given = [each.value for each in call.keywords if each.arg == "target"] or call.args[1:2]
        if not given:
            return any(each.arg is None for each in call.keywords)  # psutil.Process(pid) starts none
        todo: list[ast.AST] = [given[0]] if isinstance(given[0], ast.Lambda) else []
        if not todo:
            todo += self._definitions.get(_referenced_name(given[0]), ())
        if not todo:
            return True
        seen: set[ast.AST] = set()
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                names = set(_referenced_names(node))
                if names & _OF_RANKS or any(self._is_unknown_name(name) for name in names):
                    return True
                todo += [each for name in names for each in self._definitions.get(name, ())]
        return False

    def _is_unknown_name(self, name: str) -> bool:
        """Return whether a name is imported from a package whose functions may make process groups."""
        if name in self._definitions:
            return False
        roots = {module.split(".")[0] for module in self._modules.get(name, ())}
        return bool(roots - _HARMLESS_PACKAGES - self._own - {""})


def _referenced_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _referenced_names(node: ast.AST) -> Iterator[str]:
    """Yield all names that a definition in the program uses, and the parts of the modules that it imports."""
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)):
            yield _referenced_name(each)
        for name, module in _imported_names(each):
            yield name
            yield from module.split(".")


def _imported_names(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that an import binds, and the module it comes from; "" for a relative import."""
    if isinstance(node, ast.Import):
        for each in node.names:
            yield (each.asname or each.name.split(".")[0]), each.name
    elif isinstance(node, ast.ImportFrom):
        for each in node.names:
            yield (each.asname or each.name), "" if node.level else (node.module or "")
