"""docs/agreement.md names every proof of what gloo does not check, and its table adds up."""

import re

from tests.agreement.silent import Silence
from tests.agreement.table import table
from tests.agreement.test_silent import NOTICED, PROVED, TOO_LONG
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "agreement.md").read_text(encoding="utf-8")


def test_every_proof_is_named():
    rows = [line.split("|") for line in TEXT.splitlines() if line.startswith("| ")][1:]
    for column, cases in ((2, (*PROVED, *TOO_LONG)), (3, NOTICED)):
        named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row[column])]
        assert sorted(named) == sorted(cases)


def numbers(line):
    return [0 if cell == "-" else int(cell) for cell in line[23:].split()]


def test_the_table_is_of_all_its_programs():
    head, *rows = TEXT[TEXT.index(table([]).splitlines()[0]) :].partition("\n\n")[0].splitlines()
    *rows, total = rows
    assert total.startswith("all ")
    assert head.split()[2] == "programs"
    for line in (*rows, total):
        programs, *endings, _ = numbers(line)
        assert programs == sum(endings)
    assert [sum(column) for column in zip(*map(numbers, rows), strict=True)] == numbers(total)
    count = re.search(r"--programs (\d+)\nprograms of seeds", TEXT)[1]
    assert numbers(total)[0] == int(count)
    assert f"\n{count} programs, no disagreements, " in TEXT
    assert numbers(total)[-1] == 0


def test_what_gloo_let_through_are_silences():
    shown = re.search(r"^what gloo let through.*:\n((?: +\d+  .*\n)+)", TEXT, re.MULTILINE)[1]
    counts = [line.split(maxsplit=1) for line in shown.splitlines()]
    assert {text for _, text in counts} <= {silence.value for silence in Silence}
    assert [int(count) for count, _ in counts] == sorted((int(count) for count, _ in counts), reverse=True)
