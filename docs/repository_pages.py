"""A hook of mkdocs: pages of the repository's top level are pages of the site, too, and links work in both.

Whoever reads the repository on a code host follows links between files, as `docs/engine.md` from the README or
`../CONTRIBUTING.md` from a page here. In the site these files have other paths, so each link is led to where its file
is there. A link to a file that is no page stays as it is, and mkdocs refuses it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "GOVERNANCE.md": "governance.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
"""What stands at the top of the repository, and what it is called in the site."""

LINK = re.compile(r"(\]\()([\w./-]+)((?:#[\w-]+)?\))")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are not under docs/."""
    root = Path(config.config_file_path).parent
    for source, page_path in PAGES.items():
        files.append(File.generated(config, page_path, content=(root / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lead the links of a page to where their files are in the site."""
    page_path = page.file.src_uri
    source = next((name for name, of_site in PAGES.items() if of_site == page_path), f"docs/{page_path}")
    return LINK.sub(lambda link: link[1] + led(link[2], source, page_path) + link[3], markdown)


def led(target: str, source: str, page_path: str) -> str:
    """Where a link of the file `source` to `target` leads in the site, from the page at `page_path`."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path not in PAGES and not path.startswith("docs/"):
        return target
    return posixpath.relpath(PAGES.get(path, path.removeprefix("docs/")), posixpath.dirname(page_path) or ".")
