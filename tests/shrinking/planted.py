"""Four failures, each hidden in something large; what each comes to is in test_planted_failures.py."""

from dataclasses import replace

import torch
import torch.distributed as dist

from ddpsim.scenarios import run_scenario
from ddpsim.scenarios.files.value_scenarios import scenario_of_program, scenario_of_training
from ddpsim.scenarios.training.training import (
    Action,
    CommunicationHook,
    ExceptionalIterations,
    JoinOptions,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Training,
)
from ddpsim.simulator.calls import ANY_SOURCE
from tests.programs.programs import program, received, reduced, sent, waited


def order_of_arrival():
    """Of six ranks, one takes two messages of different dtypes from whoever sends: under most schedules that is well.

    The schedule is that of the first seed under which it is not.
    """
    ranks = [list(waited(*(reduced(f"c{number}", 3) for number in range(3)))) for _ in range(6)]
    ranks[4][2:2] = waited(received("m1", ANY_SOURCE), received("m3", ANY_SOURCE, dtype="float64"))
    ranks[1][2:2] = waited(sent("m1", 4))
    ranks[3][2:2] = waited(sent("m3", 4, dtype="float64"))
    found = scenario_of_program(program(*ranks), name="order of arrival")
    runs = (run_scenario(found, policy="random", seed=seed) for seed in range(100))
    failure = next(run for run in runs if not found.expected.is_met_by(run))
    return replace(found, choices=failure.schedule.choices)


def uneven_without_join():
    """Of eight ranks, one has nine batches and the others ten; a transformer, and much said that does not matter."""
    training = Training(
        (NetworkChoice("transformer", {"depth": 1}),),
        (10, 10, 10, 10, 10, 9, 10, 10),
        rows=(4, 3, 4, 5, 4, 4, 4, 4),
        engine_options={"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True},
        optimizer=OptimizerChoice(OptimizerName.ADAM, 0.01),
        exceptions=(ExceptionalIterations(None, (2,), Action.ACCUMULATE),),
        seed=7,
        dtype=torch.float64,
    )
    return scenario_of_training(training, 8, name="uneven without join")


def uneven_with_join():
    """Five ranks under join, two networks and a hook; well on an engine without a fault."""
    training = Training(
        (NetworkChoice("mlp", {"hidden": (8, 8)}), NetworkChoice("batch_norm")),
        (2, 4, 3, 1, 2),
        rows=(3, 4, 5, 3, 4),
        engine_options={"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0005},
        join=JoinOptions(divide_by_initial_world_size=False),
        optimizer=OptimizerChoice(momentum=0.9),
        communication_hook=CommunicationHook.ALLREDUCE,
        reduces_loss=True,
        exceptions=(
            ExceptionalIterations(None, (1,), Action.ACCUMULATE),
            ExceptionalIterations(None, (2,), Action.SKIP),
        ),
        seed=3,
    )
    return scenario_of_training(training, 5, name="uneven with join")


def torn_read(rank, count=12):
    """Four ranks use a store; one reads a key twice while another sets it to 1, 2 and 3.

    It fails if the first read comes just behind the 1 and the second one behind the 3: that needs two switches.
    """
    store = dist.distributed_c10d._get_default_store()

    def others():
        for _ in range(count):
            store.add(f"of rank {rank}", 1)

    others()
    if rank == 0:
        for stage in "123":
            store.set("stage", stage)
            others()
    if rank == 1:
        seen = []
        for _ in range(2):
            seen.append(store.get("stage") if store.check(["stage"]) else b"")
            others()
        assert seen != [b"1", b"3"], "torn"
    others()
