"""Which line of the user's program stands behind a call."""

import dataclasses
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from scenarios import interpreter
from scenarios.pytest_plugin import running
from simulator import simulate
from simulator.runtime.call_sites import is_users

SOURCE = """
import torch.distributed as dist


def program(rank):
    if rank:
        dist.barrier()
"""


def site_of(program):
    (finding,) = simulate(program, 2).findings
    return finding.sites[-1]


def loaded(path):
    path.parent.mkdir()
    path.write_text(SOURCE)
    names = {}
    exec(compile(SOURCE, str(path), "exec"), names)
    return names["program"]


def test_equal_text_in_two_files_is_told_apart(tmp_path):
    first, second = loaded(tmp_path / "a" / "train.py"), loaded(tmp_path / "b" / "train.py")
    assert site_of(first).path == str(tmp_path / "a" / "train.py")
    assert site_of(second).path == str(tmp_path / "b" / "train.py")
    assert site_of(first).line == 7


def test_a_library_of_the_users_own_counts_as_the_users():
    def helper():
        dist.barrier()

    assert site_of(lambda rank: rank and helper()).function == "helper"


def test_code_without_a_file_has_lines():
    script = SOURCE + "\nfrom simulator import simulate\nprint(simulate(program, 2).findings[0].sites[-1])\n"
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "<stdin>:7\n"


@pytest.mark.parametrize("name", [torch.__file__, "<frozen runpy>", "<eval_with_key>.0", "<attrs generated init m.C>"])
def test_code_that_a_library_made_is_not_the_user_s(name):
    assert not is_users(compile("pass", name, "exec"))
    assert is_users(compile("pass", "<python-input-3>", "exec"))


def test_what_dataclasses_makes_is_nobody_s_line():
    @dataclasses.dataclass
    class Own:
        x: int = 0

    assert Own.__init__.__code__.co_filename == "<string>"
    assert not is_users(Own.__init__.__code__)
    assert is_users(compile("pass", "<string>", "exec"))


def test_of_the_scenarios_only_the_pytest_plugin_is_none_of_the_users():
    def from_file(module):
        return compile("def program(rank): pass", module.__file__, "exec")

    assert not is_users(from_file(running))
    assert is_users(from_file(interpreter))
