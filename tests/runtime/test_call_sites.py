"""Which line of the user's program stands behind a call."""

import dataclasses
import functools
import subprocess
import sys
import unittest

import pytest
import torch
import torch.distributed as dist

from ddpsim import EventKind, simulate
from ddpsim.scenarios.pytest_plugin import running
from ddpsim.scenarios.ranks import interpreter
from ddpsim.simulator.runtime.call_sites import _checkout_of, is_user_code, is_user_file

SOURCE = """
import torch.distributed as dist


def program(rank):
    if rank:
        dist.barrier()
"""


def site_of(program):
    (finding,) = simulate(program, 2).findings
    return finding.sites[-1]


def test_equal_text_in_two_files_is_told_apart(made, tmp_path):
    first, second = made(a__train=SOURCE)["program"], made(b__train=SOURCE)["program"]
    assert site_of(first).path == str(tmp_path / "a" / "train.py")
    assert site_of(second).path == str(tmp_path / "b" / "train.py")
    assert site_of(first).line == 7


def test_a_library_of_the_users_own_counts_as_the_users():
    def helper():
        dist.barrier()

    assert site_of(lambda rank: rank and helper()).function == "helper"


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_an_error_of_an_assertion_of_unittest_is_at_the_line_of_the_test():
    def program(rank):
        unittest.TestCase().assertEqual(rank, 0)  # noqa: PT009

    (finding,) = simulate(program, 2).findings
    line = program.__code__.co_firstlineno + 1
    assert finding.summary == f"rank 1 raised AssertionError: 1 != 0 at test_call_sites.py:{line}"


def test_a_function_that_torch_has_renamed_was_called_by_the_user():
    def program(rank):
        if rank:
            dist.all_gather_into_tensor(torch.zeros(4), torch.ones(2))

    assert site_of(program).function == "program"


@pytest.mark.tier("ci")
def test_code_without_a_file_has_lines():
    script = SOURCE + "\nfrom ddpsim import simulate\nprint(simulate(program, 2).findings[0].sites[-1])\n"
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "<stdin>:7\n"


OF_LIBRARIES = (
    "<frozen runpy>",
    "<eval_with_key>.0",
    "<attrs generated init m.C>",
    "<@beartype(m.f) at 0x7f47fa725d00>",
)


@pytest.mark.parametrize("name", [torch.__file__, *OF_LIBRARIES, "<decorator-gen-3>"])
def test_code_that_a_library_made_is_not_the_user_s(name):
    assert not is_user_code(compile("pass", name, "exec"))
    assert is_user_code(compile("pass", "<python-input-3>", "exec"))


@pytest.mark.parametrize(
    ("path", "is_generated"),
    [
        ("/cache/2d/c2dvq5d4xzrk4huzv5bpz4ro5gk6q2qcbzjsrxu6labi4u3hfolx.py", True),
        ("C:\\cache\\2d\\c2dvq5d4xzrk4huzv5bpz4ro5gk6q2qcbzjsrxu6labi4u3hfolx.py", True),
        ("/cache/4x/c2dvq5d4xzrk4huzv5bpz4ro5gk6q2qcbzjsrxu6labi4u3hfolx.py", False),
        ("/cache/2d/c2d.py", False),
    ],
)
def test_files_that_inductor_generates_are_not_the_user_s(path, is_generated):
    assert is_user_file(path) is not is_generated


def test_what_dataclasses_makes_is_nobody_s_line():
    @dataclasses.dataclass
    class Own:
        x: int = 0

    assert Own.__init__.__code__.co_filename == "<string>"
    assert not is_user_code(Own.__init__.__code__)
    assert is_user_code(compile("pass", "<string>", "exec"))


def test_of_the_scenarios_only_the_pytest_plugin_is_none_of_the_users():
    def from_file(module):
        return compile("def program(rank): pass", module.__file__, "exec")

    assert not is_user_code(from_file(running))
    assert is_user_code(from_file(interpreter))


SUM = """
import torch.distributed as dist

def sum_of(tensor):
    dist.all_reduce(tensor)
"""
TWICE = """


def twice(tensor):
    sum_of(tensor)
    sum_of(tensor)
"""


@pytest.fixture
def made(tmp_path):
    """Make functions of files of these names, each with those before it at hand."""

    def made(**files):
        names = {}
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            exec(compile(text, str(path), "exec"), names)
        return names

    return made


def issued(program):
    """The calls of a run of one rank."""
    return [event.call for event in simulate(program, 1).trace if event.kind is EventKind.ISSUE]


def test_a_call_says_who_called_its_file(made):
    train = "\nimport torch\n\ndef program(rank):\n    twice(torch.ones(1))\n"
    locations = [call.location for call in issued(made(sums=SUM, metrics=TWICE, train=train)["program"])]
    assert locations == ["sums.py:5 from metrics.py:5", "sums.py:5 from metrics.py:6"]


def test_a_call_of_a_function_in_the_same_file_says_no_more():
    def helper():
        dist.barrier()

    (call,) = issued(lambda rank: helper())
    assert (call.caller, call.location) == (None, str(call.site))


def test_installed_packages_are_called_from_outside_of_all_of_them(made):
    twice = made(**{"lib__site-packages__sums": SUM, "lib__site-packages__metrics": TWICE})["twice"]
    call, _ = issued(lambda rank: twice(torch.ones(1)))
    assert str(call.site) == "sums.py:5"
    assert call.caller.file == "test_call_sites.py"


def test_what_the_standard_library_calls_was_called_from_further_out(made):
    of_sums = functools.singledispatch(made(sums=SUM)["sum_of"])
    (call,) = issued(lambda rank: of_sums(torch.ones(1)))
    assert call.caller.file == "test_call_sites.py"


def test_what_is_found_names_both(made):
    sum_of = made(sums=SUM)["sum_of"]

    def program(rank):
        sum_of(torch.ones(1))
        if rank:
            sum_of(torch.ones(1))

    first = program.__code__.co_firstlineno
    text = str(simulate(program, 2))
    assert f"sums.py:5 from test_call_sites.py:{first + 1}\n" in text  # where rank 0 was last
    assert f"sums.py:5 from test_call_sites.py:{first + 3} " in text


def test_who_called_is_no_part_of_a_digest(made):
    def here(rank):
        sum_of(torch.ones(1))

    def there(rank):
        sum_of(torch.ones(1))

    sum_of = made(sums=SUM)["sum_of"]
    assert simulate(here, 2).trace.digest() == simulate(there, 2).trace.digest()


def test_looking_for_a_checkout_is_no_look_of_the_program(monkeypatch, tmp_path):
    looks = []
    (tmp_path / ".git").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("os.path.exists", looks.append)
        found = _checkout_of.__wrapped__(str(tmp_path))
    assert (found, looks) == (str(tmp_path), [])
