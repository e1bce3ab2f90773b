"""The files of a program's project that it imports, and whether its ranks can tell their hash seeds apart."""

import ast
import os
import re
import sys
import tokenize
from collections.abc import Iterator

from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.launching.script import Script

_USES_DYNAMO = re.compile(
    r"\b(_dynamo|_inductor|checkpoint|compile|distributed\.tensor|DTensor|export|FSDP|FullyShardedDataParallel|fully_shard"
    r"|parallelize_module|pipelining|profiler)\b"
)
"""Pattern of names in torch that load its compiler; optimizers and DDP do not load it (patches/late_dynamo.py)."""

_READS_ARGUMENTS = re.compile(r"argv|argparse|optparse|fileinput|unittest|distributed\.(run|launch)|common_utils|runpy")
"""Pattern of the modules of Python and torch that read a program's arguments."""

_TELLS = frozenset({
    *("set", "frozenset", "WeakSet", "hash", "__hash__", "algorithms_available", "algorithms_guaranteed"),
    *("stdlib_module_names", "available_timezones", "load", "loads", "pickle", "shelve", "marshal"),
    *("eval", "exec", "compile", "runpy", "importlib", "import_module", "__import__", "__builtins__", "builtins"),
    *("fx", "jit", "onnx", "rpc", "hub", "package", "ao", "quantization", "elastic"),
})  # fmt: skip
"""The names of sets, of hashes, of what reads or runs unknown values, and of parts of torch that have sets of names."""


def project_files(program: Script) -> Iterator[tuple[str, str, ast.AST]]:
    """Yield the program's file and the project files that it imports, each with its text and tree."""
    first = program.python_file()
    if first is None:
        return
    root = _root(program)
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


def _root(program: Script) -> str:
    """Return the folder in which the modules of the program's project are."""
    return os.getcwd() if program.is_module else os.path.dirname(os.path.abspath(program.command[0]))


def _imported_paths(tree: ast.AST, file: str, root: str) -> Iterator[str]:
    """Yield the paths, without suffix, that the imported modules would have if they belonged to the project."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                parts = each.name.split(".")
                yield from (os.path.join(root, *parts[:end]) for end in range(1, len(parts) + 1))
        elif isinstance(node, ast.ImportFrom):
            folder = file if node.level else root
            for _ in range(node.level):
                folder = os.path.dirname(folder)
            parts = (node.module or "").split(".")
            yield from (os.path.join(folder, *parts[:end]) for end in range(1, len(parts)))  # these run, too
            base = os.path.join(folder, *parts)
            yield base
            for each in node.names:
                yield os.path.join(base, each.name)


def _existing_files(name: str) -> Iterator[str]:
    for file in (f"{name}.py", os.path.join(name, "__init__.py")):
        if os.path.isfile(file):
            yield file


def may_need_dynamo(program: Script) -> bool:
    """Return whether the program may load torch's compiler, as far as the text and imports of its files show."""
    return _may_contain(program, _USES_DYNAMO)


def ignores_arguments(program: Script) -> bool:
    """Return whether the program cannot read its arguments, as far as the text and imports of its files show."""
    return not _may_contain(program, _READS_ARGUMENTS)


def may_tell_hash_seed(program: Script) -> bool:
    """Return whether the hash seed, which decides the order of a set of strings, may show in the program.

    It may not if its files name nothing that has sets of strings, and import nothing but the standard library, numpy,
    and what DDP and optimizers need of torch.
    """
    return may_need_dynamo(program) or any(_may_tell_hash_seed(tree) for _, _, tree in project_files(program))


def _may_contain(program: Script, pattern: re.Pattern[str]) -> bool:
    """Return whether a file matches a pattern, or imports more than torch, numpy, the standard library and files."""
    try:
        files = list(project_files(program))
    except UsageError:
        return True
    root = _root(program)
    return not files or any(
        pattern.search(text) or _imports_other_packages(tree, file, root) for file, text, tree in files
    )


def _may_tell_hash_seed(tree: ast.AST) -> bool:
    nodes = list(ast.walk(tree))
    loops = [node.iter for node in nodes if isinstance(node, (ast.For, ast.comprehension))]
    in_order = {each.func for each in loops if isinstance(each, ast.Call)}  # as of `keys()`, of which no set is made
    for node in nodes:
        names = [each.name for each in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names = [part for each in names for part in each.split(".")]
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        is_view = isinstance(node, ast.Attribute) and name in ("keys", "items") and node not in in_order
        if is_view or isinstance(node, (ast.Set, ast.SetComp)) or not _TELLS.isdisjoint([name, *names]):
            return True
    return False


def _imports_other_packages(tree: ast.AST, file: str, root: str) -> bool:
    """Return whether a file imports more than torch, numpy, the standard library and files of the project."""
    known = {*sys.stdlib_module_names, "torch", "numpy"}
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        is_known = all(name.split(".")[0] in known for name in names)
        if not is_known and not any(any(_existing_files(path)) for path in _imported_paths(node, file, root)):
            return True
    return False
