"""Names that people mistype."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """A question with the name that is most like `name`, or ""."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {found[0]!r}?" if found else ""
