"""Stacks of many ranks: those that stand alike once, files from where one works, frames of packages counted."""

from dataclasses import replace

import pytest
import torch

from ddpsim import Budget, simulate
from ddpsim.simulator.debugging.answers import answer_where, make_view
from ddpsim.simulator.debugging.director import RunDirector
from ddpsim.simulator.debugging.stacks import frame_count_line, shorten_stack
from ddpsim.simulator.kernel import Kernel
from ddpsim.simulator.policies.named import RoundRobin
from ddpsim.simulator.runtime.call_sites import installed_package_of
from tests.debugging.typist import typed

TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"


def frame(path, line=3, code="step()"):
    return f'  File "{path}", line {line}, in f\n    {code}\n'


@pytest.mark.parametrize(
    ("path", "package"),
    [
        (TORCH, "torch"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy"),
        ("C:\\venv\\Lib\\site-packages\\lightning\\loop.py", "lightning"),
        ("/venv/lib/python3.11/site-packages/six.py", "six"),
        ("/job/train.py", ""),
        ("<stdin>", ""),
    ],
)
def test_which_package_a_file_is_of(path, package):
    assert installed_package_of(path) == package


def test_a_brief_stack_counts_frames_of_packages_and_names_files_from_the_folder():
    stack = frame("/job/train.py") + frame(TORCH) * 2 + frame("/job/net.py") + frame("/other/net.py") + frame(TORCH)
    assert shorten_stack(stack, "/job") == (
        frame("train.py")
        + "  ... 2 frames of torch\n"
        + frame("net.py")
        + frame("/other/net.py")
        + "  ... 1 frame of torch\n"
    )
    assert shorten_stack(frame("/jobs/train.py"), "/job") == frame("/jobs/train.py")
    assert shorten_stack("(no Python stack)", "/job") == "(no Python stack)"
    assert frame_count_line(["lightning", "torch", "lightning"]) == "  ... 3 frames of lightning, torch"


def test_ranks_that_stand_alike_are_told_once():
    run = Kernel(5, policy=RoundRobin(), budget=Budget(), faults=()).run
    view = make_view(run, 0, {}, {0: frame("/a.py"), 2: frame("/a.py"), 3: frame("/b.py")})
    assert answer_where(view) == (
        'ranks 0, 2\n  File "/a.py", line 3, in f\n    step()\nranks 1, 4  have not begun\n'
        'rank 3\n  File "/b.py", line 3, in f\n    step()'
    )
    alone = replace(view, stacks={**view.stacks, 4: frame("/b.py")})
    assert "\nrank 1  has not begun\n" in answer_where(alone)


def sums(rank):
    class Net(torch.nn.Module):
        def forward(self, x):
            breakpoint()
            return x

    return torch.nn.Sequential(Net())(torch.ones(1)).item()


def test_where_counts_the_frames_of_packages_and_shows_the_one_that_is_looked_at():
    with typed("w", "u", "w", "c") as typist:
        assert simulate(sums, 1).returns == (1.0,)
    first, _, second = typist.transcript.partition("(rank 0) u\n")
    assert " frames of torch\n> " in first
    assert "site-packages/torch" not in first
    assert "site-packages/torch/nn/modules/module.py" in second
    assert second.count(" frames of torch\n> ") == 1  # relative where the environment lies in the folder of the project


def divides(rank):
    if rank == 1:
        torch.nn.Linear(2, 1)(torch.ones(3))


def test_a_rank_that_raised_in_a_library_is_looked_at_in_its_own_line_and_the_library_is_below():
    with typed("p rank", "w", "d", "c") as typist:
        debug(divides)
    first, _, below = typist.transcript.partition("(rank 1) d\n")
    assert "-> torch.nn.Linear(2, 1)(torch.ones(3))\n(rank 1) p rank\n1\n" in first
    assert first.endswith("-> torch.nn.Linear(2, 1)(torch.ones(3))\n" + first[first.rindex("  ... ") :])
    assert first.rstrip().endswith(" frames of torch")
    assert "site-packages/torch/nn/modules/module.py" in below


def raises(rank):
    if rank == 1:
        assert rank == 0


def test_a_rank_that_raised_in_its_own_line_is_looked_at_there():
    with typed("w", "c") as typist:
        debug(raises)
    assert "-> assert rank == 0\n(rank 1) w\n" in typist.transcript
    assert "frames of" not in typist.transcript


def debug(program):
    """As `ddpsim debug --finding`."""
    return simulate(program, 2, policy=RunDirector(None))
