"""Results are received from any rank and taken for those of ranks 1, 2, 3 in turn: the faster rank gets the place.

A receive without a source takes what comes first. Real gloo hands over whichever message that is.
"""

import torch
import torch.distributed as dist

from ddpsim.scenarios.model import CLEAN, Code, finds, repairs, scenario
from ddpsim.scenarios.training.snapshot import Snapshot


def alone(world_size: int) -> Snapshot:
    """The result of each rank, at its place."""
    return Snapshot({"results": torch.arange(float(world_size))}, {}, {})


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=0, shows=8, otherwise=CLEAN),
    reports=["open-mpi/ompi#283"],
    tags=["point-to-point", "oracle"],
    min_world_size=3,
    reference=alone,
)
def results_taken_in_order_of_arrival(rank: int) -> Snapshot:
    """Collect a number from each rank on rank 0."""
    results = torch.zeros(dist.get_world_size())
    if rank > 0:
        dist.send(torch.tensor(float(rank)), dst=0)
        return alone(len(results))  # the others know what they sent
    for place in range(1, len(results)):
        dist.recv(results[place])  # found here
    return Snapshot({"results": results}, {}, {})


@repairs(results_taken_in_order_of_arrival)
def repaired(rank: int) -> Snapshot:
    """`recv` returns the rank whose result it took."""
    results = torch.zeros(dist.get_world_size())
    if rank > 0:
        dist.send(torch.tensor(float(rank)), dst=0)
        return alone(len(results))
    for _ in range(1, len(results)):
        result = torch.zeros(())
        results[dist.recv(result)] = result
    return Snapshot({"results": results}, {}, {})
