"""Every picture of docs/images is shown on a page, made by docs/pictures.py, and described for who cannot see it.

Those that show what reports were like before cannot be made anew.
"""

import re

from tests.docs.blocks import ROOT, pages

FOLDER = ROOT / "docs" / "images"
SHOWN = [
    (text, (page.parent / path).resolve())
    for page in pages()
    for text, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
]


def test_every_picture_is_shown_and_there():
    assert {path for _, path in SHOWN} == set(FOLDER.rglob("*.png"))
    assert all(len(text) > 40 for text, _ in SHOWN)


def test_every_picture_can_be_made_anew():
    made = (ROOT / "docs" / "pictures.py").read_text(encoding="utf-8")
    assert all(f'"{path.stem}": (' in made for path in FOLDER.glob("*.png"))
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.png")) < 2_500_000
