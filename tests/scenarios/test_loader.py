"""Finding a scenario by name, and making one of a function in a file."""

import re
import subprocess
import sys

import pytest

from scenarios import load, registry, run_scenario
from scenarios.files import scenarios_in
from scenarios.registered import Registry
from simulator import UsageError, Verdict

PROGRAM = '''
import torch
import torch.distributed as dist

def train(rank):
    """Sum the ranks."""
    total = torch.tensor(rank)
    dist.all_reduce(total)
    return total.item()

if __name__ == "__main__":
    raise RuntimeError("not a script here")
'''


@pytest.fixture(autouse=True)
def _leave_the_import_system_alone(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.fixture
def write(tmp_path):
    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_load_finds_by_name():
    assert load("send-send") is registry["send-send"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("send-sent", "did you mean 'send-send'?"),
        ("uneven-input", "did you mean 'uneven-inputs'?"),
        ("Rank-Crash", "did you mean 'rank-crash'?"),
        ("xyz", "see `ddpsim list`"),
        ("", "see `ddpsim list`"),
    ],
)
def test_unknown_name(name, advice):
    expected = f"scenario is {name!r}, expected a name in `ddpsim list`, FILE.toml or FILE.py:FUNCTION: {advice}"
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        load(name)


def test_name_that_is_no_text():
    with pytest.raises(UsageError, match=r"^scenario is None, expected a name: see `ddpsim list`$"):
        load(None)


def test_function_in_a_file(write):
    path = write(PROGRAM)
    scenario = load(f"{path}:train")
    result = run_scenario(scenario, world_size=3)
    assert scenario.summary == "Sum the ranks."
    assert result.verdict is Verdict.PASS
    assert result.returns == (3, 3, 3)
    assert result.replay.endswith(f"program.py:train {result.schedule} --world-size 3")


def test_file_beside_the_program_can_be_imported(write):
    write("BATCHES = 3", "settings_of_the_program.py")
    path = write("def train(rank):\n    from settings_of_the_program import BATCHES\n    return BATCHES")
    assert run_scenario(f"{path}:train", world_size=1).returns == (3,)


@pytest.mark.parametrize(
    ("text", "function", "message"),
    [
        (PROGRAM, "trian", r"has no function 'trian': did you mean 'train'\?$"),
        (PROGRAM, "x", "has no function 'x': its functions are train$"),
        (PROGRAM, "dist", "has no function 'dist': its functions are train$"),
        ("A = 1", "train", "has no function 'train': its functions are none$"),
        ("import nowhere_at_all", "train", "raised ModuleNotFoundError: No module named 'nowhere_at_all' while it was"),
        ("raise SystemExit(3)", "train", "raised SystemExit: 3 while it was imported, expected it to define functions"),
        ("def train(:", "train", "raised SyntaxError: "),
    ],
)
def test_file_without_the_function(write, text, function, message):
    path = write(text)
    with pytest.raises(UsageError, match=message) as caught:
        load(f"{path}:{function}")
    assert "\n" not in str(caught.value)


def test_file_that_is_not_there():
    with pytest.raises(UsageError, match=r"^scenario is 'no/such.py:f', but there is no file 'no/such.py': correct"):
        load("no/such.py:f")


def test_file_without_a_function_name():
    with pytest.raises(
        UsageError, match=r"^scenario is 'hang.py', expected FILE.py:FUNCTION: say which function takes"
    ):
        load("hang.py")


@pytest.fixture
def folder(tmp_path):
    """A folder of scenario files, of which one raises and one is no TOML."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "fine_one.toml").write_text('summary = "fine"')
    (tmp_path / "own" / "bad_one.toml").write_text("summary = ")
    (tmp_path / "own" / "_not_one.toml").write_text("summary = ")
    (tmp_path / "own" / "notes.txt").write_text("nothing")
    return Registry(tmp_path, ("own",))


def test_a_registry_lists_what_can_be_loaded_and_says_what_cannot(folder):
    assert list(folder) == ["fine-one"]
    assert len(folder) == 1
    assert folder["fine-one"].summary == "fine"
    [problem] = folder.broken
    assert re.search(r"bad_one.toml:1 is no TOML", problem)
    for name in ("bad-one", "nothing", "fine-one-repaired"):
        assert name not in folder


def test_a_scenario_is_found_without_loading_the_others():
    code = (
        "import sys\nfrom scenarios import load\n"
        "assert load('send-send-repaired').repairs == 'send-send'\n"
        "print([name for name in sys.modules if name.startswith('scenarios.zoo.')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "['scenarios.zoo.send_send']"


def test_a_module_shows_its_own_scenarios_only(write):
    path = write("from scenarios.zoo.send_send import repaired, send_send\n\ndef other(rank):\n    pass\n")
    assert scenarios_in(path) == ()
