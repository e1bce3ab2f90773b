"""simulator/foreign_names/table.txt lists every name of torch, Python and others that is replaced or relied on."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from ddpsim.simulator.attribution import parallelism
from ddpsim.simulator.attribution.parallelism import OPTIMIZERS, PARALLELISM
from ddpsim.simulator.attribution.phases import _TORCH
from ddpsim.simulator.foreign_names.checking import _matches_version, find_mismatches, resolve_name_path
from ddpsim.simulator.foreign_names.names import NameUse, load_table
from ddpsim.simulator.foreign_names.public import REFUSED, load_public_names
from ddpsim.simulator.process_group.through_torch import _OPERATORS

ROOT = Path(__file__).resolve().parents[2]
TABLE = "simulator/foreign_names/table.txt"

SETTING_BY_NAME = {
    "ddp/interception.py": "ddp knows no simulator: it puts the methods of a group back itself",
    "simulator/patches/late_dynamo.py": "a module that is not loaded yet passes on what is set",
    "simulator/process_group/call_hooks.py": "what hooks are told",
    "simulator/process_group/named_group.py": "methods of our own class, which torch has",
    "simulator/process_group/through_torch.py": "options of a call",
    "simulator/rank_processes/own_process.py": "streams of a process that is a rank's",
    "simulator/runtime/replaced.py": "the one that replaces and puts back",
    "scenarios/pytest_plugin/failure.py": "an error that is shown",
    "scenarios/test_suites/shared_state.py": "what ranks have changed, whatever it is, is taken back",
    "scenarios/test_suites/torch_bases.py": "an attribute of a test",
}
"""Files that call `setattr` or `delattr`, and why."""

OURS = {"_asdict", "_fields", "_make", "_replace", "_value_", "_hypothesis_internal_use_settings", "_on_cpu"}
"""Of NamedTuple and Enum, documented; of functions under `given`; set by us."""


class Module:
    """A file of the product, as syntax."""

    def __init__(self, path):
        self.path = path.relative_to(ROOT).as_posix()
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.nodes = list(ast.walk(self.tree))
        self.imported = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for each in node.names:
                    first = each.name.partition(".")[0]
                    self.imported[each.asname or first] = each.name if each.asname else first
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        for node in self.nodes:  # module: Any = torch.cuda
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and self.dotted(node.value):
                self.imported.setdefault(node.target.id, self.dotted(node.value))

    def dotted(self, node):
        """The whole name of what an expression is, if it begins with something imported."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return owner and f"{owner}.{node.attr}"
        return None

    def at(self, node):
        return f"{self.path}:{node.lineno}"


@cache
def modules():
    files = [path for part in ("ddp", "reports", "scenarios", "simulator") for path in (ROOT / part).rglob("*.py")]
    return [Module(path) for path in sorted(files) if "zoo" not in path.relative_to(ROOT).parts]


@cache
def owned():
    """All names of the table in full, and each owner."""
    return {f"{row.owner}.{name}" for row in load_table() for name in row.names} | {row.owner for row in load_table()}


def has_row(name):
    """True for a name of the table, what is inside it, and a module that has one."""
    return any(each == name or name.startswith(f"{each}.") or each.startswith(f"{name}.") for each in owned())


def is_set_by_a_row(name):
    """True for a name of the table, under whatever name its class is imported, and for what is inside it."""
    if any(each == name or name.startswith(f"{each}.") for each in owned() - {row.owner for row in load_table()}):
        return True
    owner = resolve_name_path(name.rpartition(".")[0])
    return isinstance(owner, type) and f"{owner.__module__}.{owner.__qualname__}.{name.rpartition('.')[2]}" in owned()


def is_private(name):
    return any(re.match(r"_(?!_)", part) for part in name.split("."))


def defined_here():
    """What the product itself calls so."""
    found = set(OURS)
    for module in modules():
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
                for each in ast.walk(target) if target is not None else ():
                    if isinstance(each, ast.Name):
                        found.add(each.id)
                    elif isinstance(each, ast.Attribute) and getattr(each.value, "id", "") == "self":
                        found.add(each.attr)
    return found


def words(node):
    """The string that names an attribute or entry: of `getattr(x, "name")`, `x["name"]`, `x.get("name")`."""
    if isinstance(node, ast.Subscript):
        given = node.slice
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "delattr", "setattr"):
        given = node.args[1]
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and node.args:
        given = node.args[0]
    else:
        return ""
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""


def test_each_row_fits_the_versions_at_hand():
    """If not: torch or Python has changed what a row relies on; ddpsim doctor says the same."""
    assert [f"{each.name}: {each.problem}" for each in find_mismatches(load_table())] == []


def test_each_private_name_has_a_row():
    lacking, ours = defaultdict(list), defined_here()
    known = {part for name in owned() for part in name.split(".")}
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and (name := module.dotted(node)):
                if not name.startswith("ddpsim") and is_private(name) and not has_row(name):
                    lacking[name].append(module.at(node))
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("ddpsim"):
                names = [f"{node.module}.{each.name}" for each in node.names]
                lacking |= {name: [module.at(node)] for name in names if is_private(name) and not has_row(name)}
            else:
                name = node.attr if isinstance(node, ast.Attribute) else words(node)
                if re.fullmatch(r"_[a-zA-Z]\w*", name) and name not in known | ours:
                    lacking[name].append(module.at(node))
    assert not lacking, f"{TABLE} has no row for {dict(lacking)}"


def test_each_attribute_of_another_library_that_is_set_has_a_row():
    lacking = []
    for module in modules():
        for node in module.nodes:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in [each for top in targets for each in (getattr(top, "elts", None) or [top])]:
                name = module.dotted(target) if isinstance(target, ast.Attribute) else None
                if name and not name.startswith("ddpsim") and not is_set_by_a_row(name):
                    lacking.append(f"{name} ({module.at(node)})")
    assert not lacking, f"{TABLE} has no row for {lacking}"


def test_attributes_are_set_by_name_in_one_place():
    calls = {
        module.path
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr")
    }
    assert sorted(calls) == sorted(SETTING_BY_NAME), "simulator/runtime/replaced.py replaces attributes of others"


def test_each_function_that_is_recognised_on_the_stack_has_a_row():
    rows = {(row.owner, name) for row in load_table() if row.use is NameUse.FRAME for name in row.names}
    read = {*_TORCH, *PARALLELISM, *OPTIMIZERS}
    read |= {(parallelism._STAGE, name) for name in (*parallelism._MESSAGE_METHODS, parallelism._GREETS)}
    assert sorted({each for each in read if not each[0].startswith("ddpsim.")} - rows) == [], TABLE


def test_each_local_variable_that_is_read_from_a_frame_has_a_row():
    known = {
        each for row in load_table() if row.use is NameUse.FRAME for one in row.signature for each in one.split("|")
    }
    known |= {argument for _, argument, *_ in parallelism._MESSAGE_METHODS.values()}
    ours = {"bucket", "wrapper", "reducer"}  # of functions of ours
    read = {name: module.at(node) for module in modules() for node, name in locals_read(module)}
    assert {name: place for name, place in read.items() if name not in known | ours} == {}, TABLE
    assert {"self", "grad_bucket", "async_op", "dst", "mesh_to_use", "is_last_joiner"} <= read.keys()


def locals_read(module):
    """The variables that a file reads by `frame.f_locals`, at once or by way of a name."""
    kept = {
        node.targets[0].id
        for node in module.nodes
        if isinstance(node, ast.Assign) and getattr(node.value, "attr", "") == "f_locals"
    }
    for node in module.nodes:
        inside = node.value if isinstance(node, ast.Subscript) else getattr(getattr(node, "func", None), "value", None)
        if words(node) and (getattr(inside, "attr", "") == "f_locals" or getattr(inside, "id", "") in kept):
            yield node, words(node)


def test_each_finder_has_a_row():
    found = {row.owner for row in load_table() if row.use is NameUse.FOUND}
    of_files = {}
    for module in modules():
        is_hook = module.path.endswith("late_modules.py")  # which has no names of its own
        names = {module.dotted(node) for node in module.nodes if isinstance(node, ast.Attribute)}
        names |= {node.id for node in module.nodes if isinstance(node, ast.Name)}
        if names & {"sys.meta_path.insert", "call_with_module"} and not is_hook:
            of_files[module.path] = found & {node.value for node in module.nodes if isinstance(node, ast.Constant)}
    assert [path for path, owners in of_files.items() if not owners] == [], TABLE
    assert set().union(*of_files.values()) == found


def test_each_operator_of_torch_has_a_row():
    rows = [row for row in load_table() if row.owner == "torch.ops.c10d" and _matches_version(row)]
    assert sorted(name for row in rows for name in row.names) == sorted(_OPERATORS)


def test_each_row_is_used():
    """Else it stays when what it was for is gone."""
    used = {name for row in load_public_names() if row.where == REFUSED for name in row.names}
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= {node.value, *re.findall(r"\w+", node.value)} if len(node.value) < 100 else {node.value}
            used |= {getattr(node, "attr", None), getattr(node, "id", None), getattr(node, "name", None)}
            used |= {keyword.arg for keyword in getattr(node, "keywords", ())}
    composed = re.compile(r"_[gs]et_(\w+)|(?:max|reset_max)_(\w+)|__(std\w+)__")
    unused = [
        f"{row.owner}.{name}"
        for row in load_table()
        for name in row.names
        if name.rpartition(".")[2] not in used
        and not (row.use is NameUse.FRAME and row.owner in used)
        and not ((found := composed.fullmatch(name)) and any(each in used for each in found.groups()))
    ]
    assert unused == []
