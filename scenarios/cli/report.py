"""`ddpsim report`: a saved report in another form. It needs neither torch nor what was run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.reporting import show_path
from ddpsim.scenarios.cli.status import Status

if TYPE_CHECKING:
    from ddpsim.reports.document import Document


def report(
    path: Annotated[Path, typer.Argument(metavar="RESULT.json", help="A result.json that --report wrote.")],
    html: Annotated[bool, typer.Option("--html", help="Write one HTML file, by default beside RESULT.json.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Print it as text, as without options.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Write who waits for whom, for Graphviz.")] = False,
    junit: Annotated[bool, typer.Option("--junit", help="Write JUnit XML, for CI systems.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write into this file instead.", show_default=False),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Show it in a browser; means --html, too.")] = False,
) -> int:
    """Show a saved report again, as text or in another form."""
    from ddpsim.reports.errors import ReportError
    from ddpsim.reports.forms.json_form import read

    page = "--html" if html else "--open" if opens else ""
    asked = [form for form in ("--text" * text, page, "--dot" * dot, "--junit" * junit) if form]
    if len(asked) > 1:
        raise ReportError(f"found {asked[0]} beside {asked[1]}, expected one form: leave one out")
    document = read(path)
    form = asked[0] if asked else "--text"
    if form == "--text" and out is None:
        _print(document)
        return Status.AS_EXPECTED
    from ddpsim.reports.files import FORMS, write_file

    ending, name = _FILES[form]
    file = path.with_suffix(ending) if out is None else out
    write_file(file, FORMS[name](document))
    if form != "--text":
        show_path(file, opens=opens)
    return Status.AS_EXPECTED


_FILES = {
    "--text": (".txt", "report.txt"),
    "--html": (".html", "report.html"),
    "--open": (".html", "report.html"),
    "--dot": (".dot", "waits.dot"),
    "--junit": (".xml", "junit.xml"),
}
"""By form, how its file ends, and its name in the table of forms."""


def _print(document: Document) -> None:
    from ddpsim.reports.forms.text import WIDTH, text_of

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    output.show_styled(text_of(document, width))
