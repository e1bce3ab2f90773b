"""What a list shows without importing the scenarios, against what the registry loads."""

import pytest

from ddpsim.scenarios import load, registry
from ddpsim.scenarios.files.catalogue import read_catalogue


def shown(listed):
    sizes = (2, 3, 4, 7)
    expected, under_ddp = listed.expected, listed.expected_under_ddp or listed.expected
    return (
        listed.name,
        listed.summary,
        listed.world_size,
        listed.tags,
        listed.repairs,
        [(own.code, own.verdict, *map(own.text, sizes)) for own in (expected, under_ddp)],
    )


def test_it_is_what_the_registry_loads():
    own = read_catalogue()
    assert own.broken == ()
    assert list(map(shown, own.entries.values())) == [shown(scenario) for scenario in registry.values()]


@pytest.mark.parametrize(
    ("name", "said", "summary"),
    [("own", "", "The file's."), ("other", "", "The function's."), ("own", "about='Said.'", "Said.")],
)
def test_a_file_named_after_its_function_says_what_the_scenario_is_about(tmp_path, name, said, summary):
    path = tmp_path / "own" / "own.py"
    path.parent.mkdir()
    path.write_text(
        '"""The file\'s."""\nfrom ddpsim.scenarios import scenario\n\n\n'
        f'@scenario({said})\ndef {name}():\n    """The function\'s."""\n'
    )
    assert load(f"{path}:{name}").summary == summary
    [entry] = read_catalogue(tmp_path, ("own",)).entries.values()
    assert entry.summary == summary


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("torn.py", "def torn(rank:", "was never closed"),
        ("unknown.py", "@scenario(expected=elsewhere)\ndef unknown(rank): pass", "name 'elsewhere' is not defined"),
        ("twin.py", "@repairs(bug)\ndef twin(rank): pass", "'bug'"),
        ("torn.toml", "summary = ", "Invalid value"),
        ("silent.toml", "world_size = 2", "'summary'"),
        ("code.toml", "summary = 'x'\nexpect.finding = 'no'", "'no' is not a valid Code"),
    ],
)
def test_a_file_that_cannot_be_read_takes_no_other_with_it(tmp_path, name, text, why):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / name).write_text(text)
    (tmp_path / "own" / "fine.toml").write_text("summary = 'fine'")
    own = read_catalogue(tmp_path, ("own",))
    assert list(own.entries) == ["fine"]
    [problem] = own.broken
    assert problem.startswith(f"{tmp_path / 'own' / name} cannot be listed (")
    assert why in problem
