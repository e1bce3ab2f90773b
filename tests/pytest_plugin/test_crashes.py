"""The marker `crashes` in a session of pytest."""

import pytest

TRAINING = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.load("last.pt") if os.path.exists("last.pt") else torch.zeros(1)
for _ in range(int(weight), 3):
    dist.all_reduce(gradient := torch.ones(1))
    weight += gradient / 2
    if dist.get_rank() == 0:
        torch.save(weight, "last.tmp")
        torch.save(weight, "last.pt") if "in_place" in sys.argv else os.replace("last.tmp", "last.pt")
    dist.barrier()
print("loss", weight.item())
"""

TESTS = """
from ddpsim import How, Strike

@pytest.mark.crashes(2, "train.py", points=[[Strike(0, 5)]], seconds=300)
def test_atomic():
    print("after the sweep")

@pytest.mark.crashes(2, "train.py in_place", points=[[Strike(0, 3, How.FULL)]], seconds=300)
def test_in_place():
    print("never")

@pytest.mark.crashes(2, "train.py", points=[[Strike(0, 99)]], seconds=300)
def test_another_program():
    pass
"""


@pytest.mark.tier("ci")
def test_a_program_that_resumes_and_one_that_reads_half_a_file(run_apart, pytester):
    pytester.makepyfile(train=TRAINING)
    result = run_apart(TESTS, "-rP")
    result.assert_outcomes(passed=1, failed=2)
    said = result.stdout.str()
    assert "after the sweep" in said
    assert "never" not in said
    result.stdout.fnmatch_lines(["train.py in_place  world size 2  * points, * tried*", "BAD  crash.half_checkpoint"])
    result.stdout.fnmatch_lines(["*is no point of this program, expected one that a sweep has named: correct it"])
    assert "sweep.py" not in said  # no line of ours
