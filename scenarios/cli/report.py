"""`ddpsim report`: convert a saved report to another form. It needs neither torch nor the program that was run."""

import re
import shutil
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.reporting import show_report_path
from ddpsim.scenarios.cli.status import ExitStatus


def report(
    path: Annotated[Path, typer.Argument(metavar="RESULT.json", help="A result.json file written by --report.")],
    html: Annotated[bool, typer.Option("--html", help="Write one HTML file, by default next to RESULT.json.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Print it as text; the default.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Write the graph of waiting ranks, for Graphviz.")] = False,
    junit: Annotated[bool, typer.Option("--junit", help="Write JUnit XML, for CI systems.")] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write into this file instead.")
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Show it in a browser; implies --html.")] = False,
    links: Annotated[
        str,
        typer.Option(
            "--source-links",
            metavar="URL",
            help="In HTML, link lines of the program to this address, with {path} and {line}, or to an editor: vscode.",
        ),
    ] = "",
) -> int:
    """Show a saved report as text, or convert it to another form."""
    from ddpsim.reports.document import ReportError
    from ddpsim.reports.forms.json_form import read_document

    page = "--html" if html else "--open" if opens else ""
    asked = [form for form in ("--text" * text, page, "--dot" * dot, "--junit" * junit) if form]
    if len(asked) > 1:
        raise ReportError(f"found {asked[0]} and {asked[1]}, expected one form: leave one out")
    document = read_document(path)
    form = asked[0] if asked else "--text"
    address = _address_of_lines(links) if links else ""
    if address and not page:
        raise ReportError(f"found --source-links with {form}, expected --html or --open: only HTML has links")
    if form == "--text" and out is None:
        from ddpsim.reports.forms.text import WIDTH, text_of

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        output.print_styled(text_of(document, width))
        return ExitStatus.AS_EXPECTED
    from ddpsim.reports.forms.html import to_html
    from ddpsim.reports.report_folder import FORMS, write_file

    ending, name = _FILES[form]
    file = path.with_suffix(ending) if out is None else out
    write_file(file, to_html(document, address) if page else FORMS[name](document))
    if form != "--text":
        show_report_path(file, opens=opens)
    return ExitStatus.AS_EXPECTED


def _address_of_lines(text: str) -> str:
    """Return the address of a line of the program, with {path} and {line}. Raises ReportError for another text."""
    from ddpsim.reports.document import ReportError

    if text == "vscode":
        return f"vscode://file{quote(Path.cwd().as_posix())}/{{path}}:{{line}}"
    if not re.match(r"(?!javascript:)[a-z][a-z0-9+.-]*://", text) or "{path}" not in text:
        example = "https://example.org/me/project/blob/main/{path}#L{line}"
        raise ReportError(
            f"found --source-links {text}, expected vscode or an address with {{path}}, such as {example}"
        )
    return text


_FILES = {
    "--text": (".txt", "report.txt"),
    "--html": (".html", "report.html"),
    "--open": (".html", "report.html"),
    "--dot": (".dot", "waits.dot"),
    "--junit": (".xml", "junit.xml"),
}
"""By option: the suffix of the file to write, and the name of the report's form in `FORMS`."""
