"""torch.compile before and after DDP: the program is traced, what stands in for C++ is not."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpsim import simulate

pytestmark = pytest.mark.tier("ci")  # to load dynamo takes seconds

COMPILED = {
    "neither": lambda model: DistributedDataParallel(model),
    "before": lambda model: DistributedDataParallel(torch.compile(model, backend="eager")),
    "after": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
}


def train(rank, order):
    """Losses of three steps."""
    torch.manual_seed(0)
    model = COMPILED[order](nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        x = torch.arange(12.0).reshape(3, 4) * (rank + 1) + step
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def expected():
    return simulate(train, 2, args=("neither",)).returns


@pytest.mark.parametrize("order", ["before", "after"])
def test_compiled_models_train_as_others_do(order, expected):
    result = simulate(train, 2, args=(order,), isolation="process", check="replicas")
    assert result.findings == ()
    assert result.returns == (pytest.approx(expected[0]), pytest.approx(expected[1]))
