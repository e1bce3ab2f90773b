"""`ddpsim report`: a saved report in another form. It needs neither torch nor what was run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.reporting import show_place
from ddpsim.scenarios.cli.status import Status

if TYPE_CHECKING:
    from ddpsim.reports.document import Document


def report(
    path: Annotated[Path, typer.Argument(metavar="RESULT.json", help="A result.json that --report wrote.")],
    html: Annotated[bool, typer.Option("--html", help="Write one HTML file, by default beside RESULT.json.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Print it as text, as without options.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write into this file instead.", show_default=False),
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Show it in a browser; means --html, too.")] = False,
) -> int:
    """Show a saved report again: as text, or as one HTML file."""
    from ddpsim.reports.errors import ReportError
    from ddpsim.reports.forms.json_form import read

    if text and (html or opens):
        raise ReportError(f"found --text beside {'--html' if html else '--open'}, expected one form: leave one out")
    document = read(path)
    if html or opens:
        _write_html(document, path.with_suffix(".html") if out is None else out, opens=opens)
    else:
        _show_text(document, out)
    return Status.AS_EXPECTED


def _write_html(document: Document, path: Path, *, opens: bool) -> None:
    from ddpsim.reports.files import write_file
    from ddpsim.reports.forms.html import to_html

    write_file(path, to_html(document))
    show_place(path, opens=opens)


def _show_text(document: Document, path: Path | None) -> None:
    from ddpsim.reports.files import write_file
    from ddpsim.reports.forms.text import WIDTH, text_of, to_text

    if path is not None:
        write_file(path, to_text(document))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    output.show_styled(text_of(document, width))
