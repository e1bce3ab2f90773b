"""Pages name files that there are."""

import re

import pytest

from tests.docs.blocks import ROOT, name_of, pages

TOPS = sorted(each.name for each in ROOT.iterdir() if each.is_dir() and not each.name.startswith("."))
PATH = re.compile(rf"`((?:{'|'.join(TOPS)})/[\w./-]*)`")
BESIDE = re.compile(r"`(\w+\.(?:py|toml))`")


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=name_of(page)) for page in pages() if page.name != "CHANGELOG.md"]
)
def test_files_that_are_named(page):
    assert [path for path in PATH.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()] == []


def test_files_named_without_their_folder_are_in_one_that_is_named_before():
    """Of docs/architecture.md: `arguments.py` after `simulator/process_group/group.py`."""
    for paragraph in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("\n\n"):
        named = [ROOT / path for path in PATH.findall(paragraph)]
        folders = [path if path.is_dir() else path.parent for path in named]
        for name in BESIDE.findall(paragraph):
            assert any((folder / name).exists() for folder in folders), (name, paragraph)


def test_a_path_is_recognised():
    assert PATH.findall("in `simulator/calls.py`, `tests/nowhere/` and `calls.py`") == [
        "simulator/calls.py",
        "tests/nowhere/",
    ]
