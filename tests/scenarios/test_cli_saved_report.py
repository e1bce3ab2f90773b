"""`ddpsim report`: a saved report in another form, or one line that says why not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from junitparser import JUnitXml

from ddpsim.reports.document import VERSION

ROOT = Path(__file__).resolve().parents[2]
MISSING = "uneven-inputs-without-join"


@pytest.fixture
def saved(ddpsim):
    """The result.json of a run."""
    ddpsim("run", MISSING, "--report", "r")
    return Path("r/result.json")


def test_a_saved_report_is_shown_as_the_text_beside_it(ddpsim, saved):
    status, out, err = ddpsim("report", saved)
    assert (status, err) == (0, "")
    assert out == Path("r/report.txt").read_text(encoding="utf-8")
    assert ddpsim("report", saved, "--text") == (0, out, "")
    status, said, _ = ddpsim("report", saved, "-o", "copy.txt")
    assert (status, said) == (0, "")
    assert Path("copy.txt").read_text(encoding="utf-8") == out


def test_a_saved_report_becomes_the_page_beside_it(ddpsim, saved, opened):
    assert ddpsim("report", saved, "--html") == (0, "report  r/result.html\n", "")
    assert Path("r/result.html").read_bytes() == Path("r/report.html").read_bytes()
    assert ddpsim("report", saved, "--html", "-o", "shared.html") == (0, "report  shared.html\n", "")
    assert Path("shared.html").read_bytes() == Path("r/report.html").read_bytes()
    assert opened == []
    assert ddpsim("report", saved, "--open")[:2] == (0, "report  r/result.html\n")
    assert opened == [Path("r/result.html").resolve().as_uri()]


def test_a_saved_report_becomes_junit_xml_or_a_graph_on_request(ddpsim, saved):
    assert ddpsim("report", saved, "--junit") == (0, "report  r/result.xml\n", "")
    (suite,) = JUnitXml.fromfile("r/result.xml")
    assert [(case.name, case.result) for case in suite] == [(MISSING, [])]
    assert ddpsim("report", saved, "--dot", "-o", "waits.dot") == (0, "report  waits.dot\n", "")
    assert Path("waits.dot").read_text(encoding="utf-8").startswith("digraph waits {")


def test_lines_of_the_program_are_links_on_request(ddpsim, saved):
    """In the cards, which are HTML, and in the data from which a script makes the details of a call."""
    assert "<a href" not in Path("r/report.html").read_text(encoding="utf-8")
    example = "https://example.org/me/project/blob/main/{path}#L{line}"
    for given, address in ((example, example), ("vscode", f"vscode://file{Path.cwd()}/{{path}}:{{line}}")):
        assert ddpsim("report", saved, "--html", "--source-links", given)[0] == 0
        page = Path("r/result.html").read_text(encoding="utf-8")
        links = re.findall(r'<a href="([^"]+)"><bdi>([^<]+):(\d+)</bdi></a>', page)
        assert links
        data = re.findall(r'"file":"([^"]+)","line":(\d+),.*?"link":"([^"]+)"', page)
        assert {(file, line) for _, file, line in links} <= {(file, line) for file, line, _ in data}
        for link, file, line in (*links, *((link, file, line) for file, line, link in data)):
            assert link == address.replace("{path}", file).replace("{line}", line)
    for text in ("example.org/{path}", "https://example.org/", "javascript://x/{path}"):
        status, out, err = ddpsim("report", saved, "--html", "--source-links", text)
        expected = f"expected vscode or an address with {{path}}, such as {example}"
        assert (status, out, err) == (2, "", f"ddpsim: found --source-links {text}, {expected}\n")
    for words in ((), ("--dot",)):
        status, out, err = ddpsim("report", saved, *words, "--source-links", "vscode")
        line = f"found --source-links with {(*words, '--text')[0]}, expected --html or --open: only HTML has links"
        assert (status, out, err) == (2, "", f"ddpsim: {line}\n")


def test_forms_that_exclude_each_other_are_told(ddpsim, saved):
    for words in (("--html",), ("--open",), ("--dot",), ("--junit",)):
        assert ddpsim("report", saved, "--text", *words) == (
            2,
            "",
            f"ddpsim: found --text and {words[0]}, expected one form: leave one out\n",
        )


def test_what_is_no_report_is_told_in_one_line(ddpsim, saved):
    whole = saved.read_bytes()
    files = {
        "cut.json": (whole[:1000], r"cut.json is not valid JSON \(Input data was truncated\), expected a result"),
        "new.json": (
            whole.replace(b'"version":1}', b'"version":7}'),
            f"new.json has version 7, this ddpsim reads {VERSION}: write it again with this ddpsim, or read it",
        ),
        "own.json": (b'{"name": 1}', "own.json is not a ddpsim report .*, expected a result.json that --report"),
    }
    for name, (data, message) in files.items():
        Path(name).write_bytes(data)
        status, out, err = ddpsim("report", name)
        assert (status, out) == (2, ""), name
        assert re.match(rf"ddpsim: {message}", err), err
        assert err.count("\n") == 1
    for name, why in (("r", "Is a directory"), ("nowhere.json", "No such file or directory")):
        status, out, err = ddpsim("report", name)
        assert (status, out) == (2, "")
        assert err == (
            f"ddpsim: {name} cannot be read ({why}), expected a result.json that --report wrote: check the path\n"
        )


IMPORTS = """\
import sys
from ddpsim.scenarios.cli import main
assert main(["report", sys.argv[1], *sys.argv[2:]]) == int(sys.argv[1] == "nowhere.json") * 2
loaded = sys.modules.keys() & {"torch", "numpy", "ddpsim.simulator.api", "ddpsim.simulator.runtime", "ddpsim.ddp"}
assert not loaded, loaded
assert not [name for name in sys.modules if name.startswith("ddpsim.reports.making")]
"""


@pytest.mark.tier("ci")
@pytest.mark.parametrize("words", [(), ("--html", "-o", "p.html")])
def test_a_saved_report_is_rendered_without_torch(words, saved):
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for name in (str(saved), "nowhere.json"):
        subprocess.run([sys.executable, "-c", IMPORTS, name, *words], check=True, env=environ, capture_output=True)
