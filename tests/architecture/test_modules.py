"""What holds for every module: it has a docstring, and it is in no import cycle."""

import ast
from pathlib import Path

import grimp
import networkx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("simulator", "ddp", "reports", "scenarios")
MODULES = sorted(path.relative_to(ROOT) for top in (*PACKAGES, "tests") for path in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_has_a_docstring(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    # A folder of tests may need an empty __init__.py to be a package.
    assert ast.get_docstring(tree) or (path.parts[0] == "tests" and not tree.body)


def test_no_import_cycle():
    # import-linter compares siblings; this also sees a package whose __init__ and module import each other.
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = networkx.DiGraph(
        (importer, imported)
        for importer in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(importer))
    )
    cycles = [sorted(knot) for knot in networkx.strongly_connected_components(imports) if len(knot) > 1]
    assert cycles == []
