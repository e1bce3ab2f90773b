"""Finding a scenario by name, and making one of a function in a file."""

import re
import socket
import subprocess
import sys

import pytest

from ddpsim import Code, UsageError, Verdict
from ddpsim.scenarios import load, registry, replay_scenario, run_scenario
from ddpsim.scenarios.files.loader import Registry
from ddpsim.scenarios.files.python_file import execute_file, load_scenarios

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
def _leave_the_import_system_alone(monkeypatch, tmp_path):
    # Without the folder of a program that another test has loaded.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if type(entry) is str])
    yield
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write(write):
    """Write a program."""
    return lambda text, name="program.py": write(text, name)


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
    assert load("send-send") is registry["send-send"]
    kinds = "a name in `ddpsim list`, FILE.toml, FILE.py:FUNCTION, or a program: FILE.py or -m MODULE"
    expected = f"scenario is {name!r}, expected {kinds}: {advice}"
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        load(name)


def test_function_in_a_file(write):
    path = write(PROGRAM)
    scenario = load(f"{path}:train")
    result = run_scenario(scenario, world_size=3)
    assert scenario.summary == "Sum the ranks."
    assert result.verdict is Verdict.PASS
    assert result.returns == (3, 3, 3)
    assert result.replay.endswith(f"program.py:train {result.schedule} --world-size 3")


SCRIPT = """
import argparse
import sys
import torch
import torch.distributed as dist

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=1)
    options = parser.parse_args()
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() < options.most:
        dist.barrier()
    return sys.argv
"""


def test_a_function_that_takes_no_rank_is_called_on_every_rank(write, monkeypatch):
    path = write(SCRIPT)
    monkeypatch.setattr(sys, "argv", ["ddpsim", "run", "program.py:main"])
    assert run_scenario(f"{path}:main", world_size=1).returns == ([str(path)],)
    assert sys.argv == ["ddpsim", "run", "program.py:main"]

    result = run_scenario(f"{path}:main", world_size=3)

    (finding,) = result.findings
    assert (finding.code, finding.ranks) == (Code.DEADLOCK_MISSING_RANK, (0,))
    assert [str(site) for site in finding.sites][:1] == ["program.py:13"]
    assert "frozen" not in str(result)  # only lines of the user's
    again = replay_scenario(f"{path}:main", result.schedule, world_size=3)
    assert again.trace.digest() == result.trace.digest()


CALLABLES = """
import functools
import sys
from torch.distributed.elastic.multiprocessing.errors import record

class Main:
    def __call__(self):
        return 1

def add(one, other):
    return one + other

@record
def main():
    return sys.argv

an_object = Main()
bound = functools.partial(add, 1, 2)
unbound = functools.partial(add)

def only_by_name(*, steps=3):
    return steps
"""


def test_what_is_called_without_a_rank_need_not_be_a_function(write):
    path = write(CALLABLES)
    assert run_scenario(f"{path}:only_by_name", world_size=2).returns == (3, 3)
    assert run_scenario(f"{path}:an_object", world_size=2).returns == (1, 1)
    assert run_scenario(f"{path}:bound", world_size=2).returns == (3, 3)
    assert run_scenario(f"{path}:main", world_size=1).returns == ([str(path)],)  # not that of the decorator
    with pytest.raises(UsageError, match=r"but partial\(one, other\) cannot be called with a rank alone: give "):
        load(f"{path}:unbound")


def test_what_a_function_without_a_rank_raises_has_the_users_frames(write):
    path = write("def train():\n    raise ValueError(3)")
    (finding,) = run_scenario(f"{path}:train", world_size=2).findings
    assert [line.strip() for line in str(finding).splitlines() if " File " in line] == [
        f'File "{path}", line 2, in train'
    ]


TUTORIAL = """
import os
import torch
import torch.distributed as dist

def setup(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)

def demo(rank, world_size):
    setup(rank, world_size)
    total = add_up(rank, world_size)
    dist.destroy_process_group()
    return total

def add_up(rank, world_size):
    total = torch.tensor(rank + world_size)
    dist.all_reduce(total)
    return total.item()
"""


def test_functions_of_rank_and_world_size_as_in_torchs_tutorials(write):
    path = write(TUTORIAL)
    for function, has_group in (("demo", False), ("add_up", True)):
        assert load(f"{path}:{function}").default_group is has_group
        result = run_scenario(f"{path}:{function}", world_size=3)
        assert result.returns == (12, 12, 12)
        assert replay_scenario(f"{path}:{function}", result.schedule, world_size=3).returns == (12, 12, 12)


@pytest.mark.tier("ci")
def test_a_tutorials_function_makes_its_group_on_real_processes_too(write):
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        path = write(TUTORIAL.replace("12355", str(each.getsockname()[1])))
    assert run_scenario(f"{path}:demo", world_size=2, transport="processes").returns == (5, 5)


NOT_RUN = ", which a call does not run: give a plain"
NOT_CALLED = " cannot be called with a rank alone: give a function that takes rank, rank and world_size, or not"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A = 1", "has no function 'train': its functions are none$"),
        (
            "import nowhere_at_all",
            "No module named 'nowhere_at_all' while it was imported, expected to find it: install",
        ),
        ("from sys import nothing", r"cannot import name 'nothing' from .* expected to find it: install it for /"),
        ("raise SystemExit(3)", "raised SystemExit: 3 while it was imported, expected it to define functions"),
        ("1 / 0", r'under `if __name__ == "__main__":`, or run the whole file as a program, without `:FUNCTION`$'),
        ("def train(:", r"program.py:1 raised SyntaxError: invalid syntax while it was imported, expected Python: cor"),
        ("async def train(rank): ...", f"but train is an async function{NOT_RUN}"),
        ("def train(rank):\n    yield", f"but train is a generator{NOT_RUN}"),
        ("async def train(rank):\n    yield", f"but train is an async generator{NOT_RUN}"),
        ("def train(rank, size): ...", rf"but train\(rank, size\){NOT_CALLED}"),
        ("def train(rank, *, path): ...", rf"but train\(rank, \*, path\){NOT_CALLED}"),
    ],
)
def test_file_without_such_a_function(write, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        load(f"{write(text)}:train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "advice"),
    [("trian", r"did you mean 'train'\?"), ("x", "its functions are train"), ("dist", "its functions are train")],
)
def test_file_with_another_function(write, function, advice):
    with pytest.raises(UsageError, match=f"has no function '{function}': {advice}$"):
        load(f"{write(PROGRAM)}:{function}")


def test_a_problem_in_a_file_beside_it_names_both(write):
    write("\n\ndef f(:", "broken_beside.py")
    write("\n1 / 0", "dividing_beside.py")
    path = write("import broken_beside")
    with pytest.raises(UsageError, match=r"program.py:1 raised SyntaxError: .* \(at /.*/broken_beside.py:3\) while it"):
        load(f"{path}:train")
    path = write("\nimport dividing_beside")
    with pytest.raises(
        UsageError, match=r"program.py:2 raised ZeroDivisionError: .* \(at /.*/dividing_beside.py:2\) w"
    ):
        load(f"{path}:train")


def test_a_scenario_that_is_none_is_told_in_its_own_words(write):
    path = write("from ddpsim import UsageError\nraise UsageError('tags is 3, expected words')")
    with pytest.raises(UsageError, match=r"program.py:2: tags is 3, expected words$"):
        load(f"{path}:train")


@pytest.fixture
def two_folders(tmp_path, monkeypatch):
    """Two folders, each with a `train.py` and what it imports, when it is loaded and when it runs; and a library."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "installed.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "library")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper_beside.py").write_text(f"NAME = {name!r}")
        (tmp_path / name / "train.py").write_text(
            "import installed\nfrom helper_beside import NAME\nfrom ddpsim.scenarios import scenario\n\n"
            "@scenario(about=NAME)\ndef main(rank):\n    import helper_beside\n    return helper_beside.NAME"
        )
    return tmp_path / "one" / "train.py", tmp_path / "two" / "train.py"


def test_each_file_has_the_helper_beside_it(two_folders):
    before = list(sys.path)
    for name, path in zip(("one", "two"), two_folders, strict=True):
        scenario = load(f"{path}:main")
        assert scenario.summary == name
        assert run_scenario(scenario, world_size=2).returns == (name, name)
    assert len(sys.path) == len(before) + 1
    assert [next(iter(load_scenarios(path).values())).summary for path in two_folders] == ["one", "two"]
    assert sys.path == before
    assert "helper_beside" not in sys.modules
    assert "installed" in sys.modules


def test_what_is_beside_a_file_is_one_module_when_it_is_loaded_and_when_it_runs(write):
    write("VALUE = 1", "state_beside.py")
    path = write(
        "import state_beside\nstate_beside.VALUE = 2\ndef f(rank):\n    import state_beside as again\n"
        "    return again.VALUE"
    )
    assert run_scenario(f"{path}:f", world_size=1).returns == (2,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, r"scenario is None, expected a name: see `ddpsim list`"),
        ("no/such.py:f", r"scenario is 'no/such.py:f', but there is no file 'no/such.py': correct.*"),
        ("x" * 300 + ".toml", r"scenario is '.*', but there is no file 'x{300}.toml': correct the path"),
        ("hang.py", r"there is no file 'hang.py', expected a program: correct the path"),
        ("own.toml:f", r"scenario is 'own.toml:f', but a TOML file has one scenario: leave out ':f'"),
    ],
)
def test_names_of_no_scenario(write, monkeypatch, tmp_path, name, message):
    write('summary = "x"', "own.toml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{message}$"):
        load(name)


@pytest.fixture
def folder(tmp_path):
    """A folder of scenario files, of which one raises and one is no TOML."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "fine_one.toml").write_text('summary = "fine"')
    (tmp_path / "own" / "bad_one.toml").write_text("summary = ")
    (tmp_path / "own" / "_not_one.toml").write_text("summary = ")
    (tmp_path / "own" / "notes.txt").write_text("nothing")
    return Registry(tmp_path, ("own",))


def test_a_registry_lists_what_can_be_loaded_and_says_what_cannot(folder, monkeypatch):
    assert list(folder) == ["fine-one"]
    assert len(folder) == 1
    assert folder["fine-one"].summary == "fine"
    [problem] = folder.problems_of_files
    assert re.search(r"bad_one.toml:1 is not TOML", problem)
    for name in ("bad-one", "nothing", "fine-one-repaired"):
        assert name not in folder
    monkeypatch.setattr("ddpsim.scenarios.files.loader.registry", folder)
    with pytest.raises(UsageError, match=r"bad_one\.toml:1 is not TOML"):
        load("bad-one")


def test_a_registry_has_no_name_that_nobody_finds(folder, tmp_path):
    (tmp_path / "own" / "other_one.toml").write_text('name = "another"\nsummary = "x"')
    registry = Registry(tmp_path, ("own",))
    assert dict(registry.items()).keys() == {"fine-one"}
    assert registry.problems_of_files[1].endswith(
        "other_one.toml has a scenario named 'another', expected 'other-one': rename the scenario or the file"
    )


def test_a_registered_file_may_have_several_scenarios_and_is_found_by_each(tmp_path, monkeypatch):
    text = (
        "from ddpsim.scenarios import repairs, scenario\n\n"
        "@scenario(about='one')\ndef first_one(rank):\n    pass\n\n@repairs(first_one)\ndef mended(rank):\n    pass\n\n"
        "@scenario(\n    about='two',\n)\ndef other(rank):\n    pass\n"
    )
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "theme.py").write_text(text)
    (tmp_path / "own" / "unlike.py").write_text(
        "from ddpsim.scenarios import scenario\n\n@scenario(name='x')\ndef y(): ...\n"
    )
    monkeypatch.setattr("ddpsim.scenarios.files.loader._import_file", execute_file)
    registry = Registry(tmp_path, ("own",))
    assert list(registry) == ["first-one", "first-one-repaired", "other"]
    assert (registry["other"].about, registry["first-one-repaired"].repairs) == ("two", "first-one")
    assert "theme" not in registry
    [problem] = registry.problems_of_files
    assert problem.endswith("unlike.py has a scenario named 'x', expected 'y': rename the scenario or the file")


def test_a_registered_file_that_exits_takes_no_other_with_it(tmp_path, monkeypatch):
    def exits(name):
        raise SystemExit(3)

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "leaves.py").write_text("")
    monkeypatch.setattr("ddpsim.scenarios.files.loader.importlib.import_module", exits)
    [problem] = Registry(tmp_path, ("own",)).problems_of_files
    assert "leaves.py raised SystemExit: 3 while it was imported" in problem


@pytest.mark.tier("ci")
def test_a_scenario_is_found_without_loading_the_others():
    code = (
        "import sys\nfrom ddpsim.scenarios import load\n"
        "assert load('send-send-repaired').repairs == 'send-send'\n"
        "print([name for name in sys.modules if name.startswith('ddpsim.scenarios.zoo.')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.strip() == "['ddpsim.scenarios.zoo.message_cycles']"


def test_a_module_shows_its_own_scenarios_only(write):
    path = write(
        "from ddpsim.scenarios.zoo.message_cycles import send_send, send_send_repaired\n\ndef other(rank):\n    pass\n"
    )
    assert load_scenarios(path) == {}
