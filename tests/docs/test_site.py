"""The site is built without a warning, has every page, and asks nothing of the network."""

import html
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from docs.repository_pages import PAGES, led
from tests.docs.blocks import ROOT

pytestmark = pytest.mark.tier("ci")

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that a browser loads something for, and where they say what. Links that one may follow are no such thing."""


class Loads(HTMLParser):
    """What a page loads."""

    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag, attrs):
        if url := dict(attrs).get(LOADED.get(tag)):
            self.urls.append(url)


def build(repository, folder):
    """Build the site as CI does; returns exit status and what was said.

    Not with --quiet: what mkdocs does not say it does not count either, and --strict passes.
    """
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, env={"NO_MKDOCS_2_WARNING": "1"})
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    status, said = build(ROOT, folder)
    assert status == 0, said
    assert {line.partition(" ")[0] for line in said.splitlines()} == {"INFO"}, said
    return folder


def test_a_link_that_leads_nowhere_is_refused(tmp_path):
    for name in ("docs", "mkdocs.yml", *PAGES):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    links = ["docs/nowhere.md", "docs/console.md#nowhere", "examples/hang.py"]
    with (tmp_path / "README.md").open("a") as readme:
        readme.writelines(f"[here]({link})" for link in links)
    status, said = build(tmp_path, tmp_path / "site")
    assert status == 1
    warnings = [line for line in said.splitlines() if line.startswith("WARNING")]
    assert [any(link.partition("/")[2] in line for line in warnings) for link in links] == [True] * 3, said


def test_every_page_is_there_and_in_the_menu(site):
    sources = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    expected = {source.replace(".md", ".html") for source in sources | set(PAGES.values())}
    home = (site / "index.html").read_text(encoding="utf-8")
    menu = set(re.findall(r'href="([\w/]+\.html)" class="md-nav__link', home)) | {"index.html"}
    assert expected == menu
    assert all((site / page).exists() for page in menu)


def test_a_search_for_simulate_finds_its_signature_and_what_it_raises(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {each["location"]: each["text"] for each in index["docs"]}["api.html#ddpsim.simulate"]
    assert "Raises UsageError" in found
    page = (site / "api.html").read_text(encoding="utf-8")
    signature = html.unescape(re.sub("<[^>]+>", "", page[page.index('id="ddpsim.simulate"') :])).partition(") ->")[0]
    assert "world_size: int" in signature
    assert 'launcher: str = "torchrun"' in signature


def test_nothing_is_loaded_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert [url for url in loads.urls if urlsplit(url).netloc] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8"))


def test_what_would_be_loaded_is_seen():
    loads = Loads()
    loads.feed('<a href="//a.example">a</a><script src="//b.example/x.js"></script><link rel=x href="c.css">')
    assert loads.urls == ["//b.example/x.js", "c.css"]


@pytest.mark.parametrize(
    ("target", "source", "place", "there"),
    [
        ("docs/engine.md", "README.md", "index.md", "engine.md"),
        ("CONTRIBUTING.md", "README.md", "index.md", "contributing.md"),
        ("../CONTRIBUTING.md", "docs/architecture.md", "architecture.md", "contributing.md"),
        ("../scenarios.md", "docs/howto/fuzzing.md", "howto/fuzzing.md", "../scenarios.md"),
        ("../../README.md", "docs/howto/fuzzing.md", "howto/fuzzing.md", "../index.md"),
        ("examples/hang.py", "README.md", "index.md", "examples/hang.py"),
    ],
)
def test_links_lead_to_where_files_are_in_the_site(target, source, place, there):
    assert led(target, source, place) == there
