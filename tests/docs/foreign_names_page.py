"""The table of docs/replaced.md, made from simulator/foreign_names/table.txt. To bring the page up to date:

python -m tests.docs.foreign_names_page
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpsim.simulator.foreign_names.names import ForeignNames, load_table
from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "replaced.md"
MARKER = "<!-- the table of foreign names -->\n"


def brought_up_to_date(page: str) -> str:
    """The page with its table made anew."""
    return page.partition(MARKER)[0] + MARKER + "".join(_tables())


def _tables() -> Iterator[str]:
    headings = dict.fromkeys((row.why, row.where) for row in load_table())
    yield "\n| what it is for | where | | owner and names | relied on | versions |\n|---|---|---|---|---|---|\n"
    for why, where in headings:
        for row in load_table():
            if (row.why, row.where) == (why, where):
                yield f"| {why} | {where} | {row.use.value} | {_names(row)} | {_relied_on(row)} | {_versions(row)} |\n"


def _names(row: ForeignNames) -> str:
    return f"`{row.owner}`: {', '.join(f'`{name}`' for name in row.names)}"


def _relied_on(row: ForeignNames) -> str:
    return ", ".join(" or ".join(f"`{each}`" for each in name.split("|")) for name in row.signature)


def _versions(row: ForeignNames) -> str:
    since, until = row.since and f"from {row.since}", row.until and f"to {row.until}"
    return " ".join(filter(None, (since, until)))


if __name__ == "__main__":
    PAGE.write_text(brought_up_to_date(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
