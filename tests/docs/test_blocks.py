"""Every code block that readers see runs, and shows what one gets. CONTRIBUTING.md has the convention."""

import hypothesis
import markdown
import pytest

from tests.docs.blocks import blocks_of, name_of, pages
from tests.docs.commands import forget_modules
from tests.docs.page_run import PageRun
from tests.outside import do_without

NOT_RUN = {
    "CONTRIBUTING.md": [
        ".ci/run does the same, in a fresh clone",
        ".ci/run is these in other forms, and this test is among them",
        "it serves until it is stopped",
        "minutes for each folder",
    ],
    "README.md": [".ci/run does, in a fresh clone", ".ci/run does, in a fresh clone"],
    "docs/agreement.md": ["it needs a checkout", "it needs a checkout", "minutes on two cores"],
    "docs/conformance.md": ["minutes on two cores; it needs a checkout"],
    "docs/console.md": ["it serves until it is stopped"],
    "docs/exploring.md": ["ten minutes of four processes; a cluster", "an hour"],
    "docs/howto/compare.md": ["the second test fails"],
    "docs/howto/crashes.md": ["it is the same sweep once more", "the test fails"],
    "docs/howto/debugging.md": ["a client has to attach"],
    "docs/howto/serve.md": ["it serves until it is stopped"],
    "docs/programs.md": ["minutes on two cores; it needs a checkout"],
    "docs/processes.md": ["ten minutes", "needs two machines"],
    "docs/scoreboard.md": ["it takes half an hour"],
    "docs/versions.md": ["it installs torch for each pair, and runs all tests"],
}
"""Of each page: why blocks are not run. What is merely long is made short instead."""


@pytest.fixture
def a_readers_folder(tmp_path, monkeypatch):
    """An empty folder to work in, on a plain terminal, with none of this session's settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    profile = hypothesis.settings.get_current_profile_name()
    # What a page shows, a quarter of hypothesis' examples show.
    hypothesis.settings.register_profile("reader", hypothesis.settings.get_profile(profile), max_examples=25)
    hypothesis.settings.load_profile("reader")
    yield tmp_path
    hypothesis.settings.load_profile(profile)
    forget_modules(tmp_path)


BY_NIGHT = {"docs/console.md", "docs/howto/deadlock.md", "docs/howto/production_hangs.md"}
"""Pages whose blocks take longest: real jobs that hang until a time-out, and each command once; all have tests, too."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=pytest.mark.tier("nightly" if name_of(page) in BY_NIGHT else "ci"))
        for page in pages()
        if blocks_of(page)
    ],
)
def test_blocks_of(page, a_readers_folder):
    # If a text has become better: paste what the command prints now.
    running = PageRun(a_readers_folder)
    problems = [f"{block.place}: {said}" for block in blocks_of(page) for said in running.problems(block)]
    assert not problems, "\n\n".join(problems)
    do_without("; ".join(running.left_out) or None)
    if running.without_frameworks:
        pytest.skip("; ".join(sorted(running.without_frameworks)))


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_what_is_not_run(page):
    found = [block.notes["not run"] for block in blocks_of(page) if "not run" in block.notes]
    assert found == NOT_RUN.get(name_of(page), [])


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in pages()])
def test_no_block_is_overlooked(page):
    """As many as a reader of Markdown finds: also those that are only indented."""
    rendered = markdown.markdown(page.read_text(encoding="utf-8"), extensions=["fenced_code", "tables"])
    assert rendered.count("<pre>") == len(blocks_of(page))
