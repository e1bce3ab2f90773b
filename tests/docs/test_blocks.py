"""Every code block that readers see runs, and shows what one gets. CONTRIBUTING.md has the convention."""

import re

import hypothesis
import markdown
import pytest

from tests.docs.blocks import blocks_of, name_of, pages
from tests.docs.commands import forget_modules
from tests.docs.page_run import PageRun
from tests.outside import do_without

NOT_RUN = {
    "CONTRIBUTING.md": {
        "python3 -m venv .venv && . .venv/bin/activate\npip install -c constraints.txt -e '.[dev]'\n": (
            ".ci/run does the same, in a fresh clone"
        ),
        "ruff format . && ruff check .   # layout, also of the Python in pages; what a linter finds\n"
        "mypy                            # types, strictly\n"
        "lint-imports                    # the layers\n"
        "mkdocs build --strict           # the documentation, into site/\n"
        "pytest -q -n auto               # the tests of every change: four minutes on two cores\n"
        "pytest -q -n auto --tier ci     # those that need processes, pages, a browser or a compiler\n"
        "pytest -q --tier nightly tests/docs  # all tests of a folder; here every code block of the pages among them\n"
        ".ci/run                         # all of it but the nightly tests, as CI does\n": (
            ".ci/run is these in other forms, and this test is among them"
        ),
        "mkdocs serve\n": "it serves until it is stopped",
    },
    "README.md": {
        "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e . && "
        ".venv/bin/ddpsim run uneven-inputs-without-join\n": ".ci/run does, in a fresh clone",
        "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e '.[dev]' && "
        ".venv/bin/pytest -q -n auto\n": ".ci/run does, in a fresh clone",
    },
    "docs/agreement.md": {"$ ddpsim agree --programs 1000\n": "a minute and a half on two cores"},
    "docs/exploring.md": {
        "ddpsim fuzz --seconds 600 --jobs 4\n"
        "ddpsim fuzz --jobs 64 --backend dask --cluster tcp://HOST:8786\n": "ten minutes of four processes; a cluster",
        "ddpsim fuzz --generate --engine torch --seconds 1800 --seed 1000000\n"
        "ddpsim fuzz --generate --engine torch --seconds 1800 --seed 3000000\n": "an hour",
    },
    "docs/processes.md": {
        "ddpsim zoo --transport processes --timeout 3 --no-repaired\n": "ten minutes",
        "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \\\n"
        "    -m ddpsim.scenarios.worker uneven-inputs-without-join --timeout 30\n": "needs two machines",
    },
}
"""Of each page: the commands that are not run, and why. What is merely long is made short instead."""


def commands_in(block):
    """All of a block, or of a session what is typed."""
    return "".join(re.findall(r"^\$ .*\n", block.text, re.MULTILINE)) if block.language == "console" else block.text


@pytest.fixture
def a_readers_folder(tmp_path, monkeypatch):
    """An empty folder to work in, on a plain terminal, with none of this session's settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    profile = hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile("default")  # hypothesis has looked for CI when it was imported
    yield tmp_path
    hypothesis.settings.load_profile(profile)
    forget_modules(tmp_path)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages() if blocks_of(page)])
def test_blocks_of(page, a_readers_folder):
    # If a text has become better: paste what the command prints now.
    running = PageRun(a_readers_folder)
    problems = [f"{block.place}: {said}" for block in blocks_of(page) for said in running.problems(block)]
    assert not problems, "\n\n".join(problems)
    do_without("; ".join(running.left_out) or None)


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_what_is_not_run(page):
    found = {commands_in(block): block.notes["not run"] for block in blocks_of(page) if "not run" in block.notes}
    assert found == NOT_RUN.get(name_of(page), {})


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_no_block_is_overlooked(page):
    """As many as a reader of Markdown finds: also those that are only indented."""
    rendered = markdown.markdown(page.read_text(encoding="utf-8"), extensions=["fenced_code", "tables"])
    assert rendered.count("<pre>") == len(blocks_of(page))
