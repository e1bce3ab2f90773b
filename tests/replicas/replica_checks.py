"""check="replicas" as its tests share it."""

import torch

from ddpsim import simulate
from tests.kit.small_training import network


def check(program, world_size=3, **options):
    """What is found in a run without errors: the findings with their ranks, and the result."""
    result = simulate(program, world_size, check="replicas", **options)
    assert not result.errors, str(result)
    return [(finding.code.value, finding.ranks) for finding in result.findings], result


class TwoBranches(torch.nn.Module):
    """The second branch takes part in a forward only if it is asked to."""

    def __init__(self):
        super().__init__()
        self.a, self.b = network(), network(seed=1)

    def forward(self, x, both=False):
        return self.a(x) + self.b(x) if both else self.a(x)
