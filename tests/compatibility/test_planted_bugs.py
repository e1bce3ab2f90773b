"""A mistake in an ordinary program is found, with its rank and the user's line; the program as it is is clean."""

import pytest

from ddpsim import Verdict, replay, simulate_program
from tests.compatibility.planted_bugs import BUGS
from tests.tiers import sweep

IN_CI = {"a rank stops early by its own loss"}


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda file, text: (tmp_path / file).write_text(text)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("bug", sweep(BUGS, lambda bug: bug.name in IN_CI), ids=str)
def test_a_planted_bug_is_found_and_replayed(bug, write):
    write(bug.file, bug.source)
    result = simulate_program([bug.file], bug.world_size)
    found = result.findings[0]
    assert (found.code, found.ranks) == (bug.code, bug.ranks), str(result)
    assert bug.place in found.body
    assert bug.cause in found.body
    assert "site-packages" not in found.body
    assert f'  replay  replay({[bug.file]}, {bug.world_size}, "{result.schedule}")' in str(result)
    again = replay([bug.file], bug.world_size, str(result.schedule))
    assert again.trace.digest() == result.trace.digest()
    assert str(again) == str(result)


@pytest.mark.tier("nightly")
@pytest.mark.parametrize(
    "bug", list({(bug.repaired, bug.world_size): bug for bug in BUGS}.values()), ids=lambda bug: bug.file
)
def test_the_program_without_it_is_clean(bug, write):
    write(bug.file, bug.repaired)
    result = simulate_program([bug.file], bug.world_size)
    assert result.verdict is Verdict.PASS, str(result)
    assert not result.findings
