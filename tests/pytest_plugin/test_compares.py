"""The marker `compares`, and the marker `ranks` with the check `reference`, in a session of pytest."""

import pytest

TRAINING = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
data = torch.randn(8, 3)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(data.chunk(dist.get_world_size())[dist.get_rank()]).square().mean().backward()
for each in model.parameters():
    dist.all_reduce(each.grad)
    each.grad /= 1 if "summed" in sys.argv else dist.get_world_size()
optimizer.step()
"""

SCENARIO = """
import torch, torch.distributed as dist
from ddpsim import Crash
from ddpsim.scenarios import scenario

@scenario(faults=[Crash(rank=1, before_call=0)])
def crashes(rank):
    '''Trains on its part of the data.'''
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 3).chunk(dist.get_world_size())[rank]).square().mean().backward()
    optimizer.step()
"""

TESTS = """
import pytest, torch, torch.distributed as dist

@pytest.mark.compares(2, "train.py")
def test_same():
    print("after the comparison")

@pytest.mark.compares(2, "train.py summed")
def test_summed():
    print("never")

@pytest.mark.compares(2, "scenarios.py:crashes", steps=5)
def test_scenario_with_options():
    pass

@pytest.mark.compares(2, "scenarios.py:crashes", faults=())
def test_option_of_the_marker():
    pass

@pytest.mark.compares(2, "train.py", against=3)
def test_more_ranks():
    pass

@pytest.mark.ranks(2, check="reference", timeout=300)
@pytest.mark.parametrize("times", [1, 2])
def test_function(times):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    model(torch.randn(8, 3).chunk(dist.get_world_size())[dist.get_rank()]).square().mean().backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size() ** times
    torch.optim.SGD(model.parameters(), lr=0.1).step()
"""


@pytest.mark.tier("ci")
def test_programs_and_functions_that_are_the_same_training_and_that_are_not(run_apart, pytester):
    pytester.makepyfile(train=TRAINING, scenarios=SCENARIO)
    result = run_apart(TESTS, "-rP")
    result.assert_outcomes(passed=3, failed=4)
    said = result.stdout.str()
    assert "after the comparison" in said
    assert "never" not in said
    result.stdout.fnmatch_lines(["  first   step 0: gradient of weight is x 2", "against is 3, expected 1 to 2, *"])
    result.stdout.fnmatch_lines(["*divergence.gradients", "*against 1 rank: step 0: gradient of weight is x 1/2"])
    assert "programs.py" not in said  # no line of ours
