"""What docs/agreement.md shows runs, and it names every proof of what gloo does not check."""

import re
from pathlib import Path

from scenarios.agreement.table import table
from tests.agreement.test_silent import NOTICED, SILENT

TEXT = (Path(__file__).parents[2] / "docs" / "agreement.md").read_text(encoding="utf-8")


def test_the_python_example(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(example, {})
    broken, *said, found = capsys.readouterr().out.splitlines()
    assert broken.startswith("Kind.ROOT ")
    assert said[0].startswith("MISMATCH  mismatch.root")
    assert "differ in root" in found


def test_every_proof_is_named():
    rows = [line.split("|") for line in TEXT.splitlines() if line.startswith("| ")][1:]
    for column, cases in ((2, SILENT), (3, NOTICED)):
        named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row[column])]
        assert sorted(named) == sorted(cases)


def test_the_table_is_of_a_thousand():
    assert table([]).splitlines()[0] in TEXT
    assert re.search(r"^all +1000 .* -$", TEXT, re.MULTILINE)
