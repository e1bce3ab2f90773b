"""What holds for every module: it is in no import cycle, and goes by one name."""

import ast
import re
from pathlib import Path

import grimp
import networkx
import pytest

from ddpsim.simulator.attribution.phases import DECLARATION

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("simulator", "ddp", "reports", "scenarios")
TOPS = (*PARTS, "src", "tests", "docs", "examples", "benchmarks")
CHANGELOG = ROOT / "CHANGELOG.md"
"""It says what the old names were."""
BARE = re.compile(rf"^[\s>.]*(?:from|import) (?:{'|'.join(PARTS)})(?:[. ]|$)")
"""An import of a part by the name of its folder, in Python or on a page."""


def test_no_import_cycle():
    # import-linter compares siblings; this also sees a package whose __init__ and module import each other.
    graph = grimp.build_graph("ddpsim", cache_dir=None)
    assert {f"ddpsim.{part}" for part in PARTS} <= graph.modules
    imports = networkx.DiGraph(
        (importer, imported)
        for importer in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(importer))
    )
    cycles = [sorted(knot) for knot in networkx.strongly_connected_components(imports) if len(knot) > 1]
    assert cycles == []


def test_nothing_imports_a_part_by_the_name_of_its_folder():
    # From a checkout's root it would be found, be a second copy of the part, and be missed where it is installed.
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in [*ROOT.glob("*.md"), *(path for top in TOPS for path in (ROOT / top).rglob("*.[pm][yd]"))]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if BARE.match(line) and path != CHANGELOG
    ]
    assert found == []


@pytest.mark.parametrize(
    "line", ["from simulator import simulate", ">>> import ddp", "    from reports.report_folder import x"]
)
def test_the_pattern_finds_what_it_looks_for(line):
    assert BARE.match(line)


def test_functions_that_make_internal_calls_exist():
    # A lost name would silently take the phase out of the origin of each call that the function makes.
    for path in (ROOT / "ddp").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == DECLARATION:
                assert ast.literal_eval(node.value).keys() <= functions, path.name
