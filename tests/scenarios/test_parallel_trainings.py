"""Declared trainings over a mesh: against the oracle, in files, drawn, shrunk; with what is wrong on one rank."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from msgspec import structs

from ddpsim import Code, UsageError, Verdict
from ddpsim.scenarios import run_scenario, shrink_scenario
from ddpsim.scenarios.files.saving import scenario_as_toml
from ddpsim.scenarios.files.toml_file import read_toml
from ddpsim.scenarios.files.value_scenarios import scenario_of_training, training_of_scenario
from ddpsim.scenarios.fuzzing.shrinking.training_passes import (
    PASSES,
    DeclaredTraining,
    remove_ranks_of_training,
    shrink_mesh_dimension,
)
from ddpsim.scenarios.fuzzing.strategies import parallel_trainings
from ddpsim.scenarios.training import parallel_trainer
from ddpsim.scenarios.training.models import make_meta_network
from ddpsim.scenarios.training.parallel_limits import find_problems
from ddpsim.scenarios.training.reference import find_first_differences, reference_by_oracle
from ddpsim.scenarios.training.snapshot import Snapshot
from ddpsim.scenarios.training.training import (
    Action,
    ExceptionalIterations,
    IterationRule,
    ModelWrapper,
    NetworkChoice,
    OptimizerChoice,
    ParallelLayout,
    PipelineSchedule,
    Training,
)

MLP = NetworkChoice("mlp", {"features": 4, "hidden": (4, 4, 4)})
SHARDED = Training((MLP,), IterationRule(2), wrapper=ModelWrapper.FSDP2)
HYBRID = ParallelLayout(dp_replicate=2, dp_shard=2)
TRANSFORMER = replace(SHARDED, networks=(NetworkChoice("transformer", {"depth": 2, "tied": False}),))


def run(training, world_size, **options):
    return run_scenario(scenario_of_training(training, world_size, name="declared"), **options)


def check(training, world_size, **options):
    scenario = scenario_of_training(training, world_size, name="declared")
    assert scenario.reference is not None
    result = run_scenario(scenario, **options)
    assert (result.verdict, result.findings) == (Verdict.PASS, ()), str(result)
    return result


@pytest.mark.parametrize(
    ("training", "world_size"),
    [
        (replace(SHARDED, clip_norm=0.01, accumulation=2, iterations=IterationRule(4)), 3),
        (replace(SHARDED, mixed_precision=torch.bfloat16, recomputes=True), 2),
        (replace(SHARDED, parallel=ParallelLayout(pp=2), clip_norm=0.01), 2),
        (Training((MLP,), IterationRule(2), clip_norm=0.01), 2),
        (Training((MLP,), IterationRule(3), recomputes=True, accumulation=2), 2),
    ],
)
def test_parts_together_are_what_plain_training_gives(training, world_size):
    check(training, world_size)


@pytest.mark.tier("ci")
@pytest.mark.parametrize(
    ("training", "world_size"),
    [
        (replace(SHARDED, parallel=ParallelLayout(tp=2), clip_norm=0.01), 2),
        (
            replace(
                SHARDED, parallel=ParallelLayout(pp=2, schedule=PipelineSchedule.INTERLEAVED_1F1B, micro_batches=2)
            ),
            2,
        ),
        (replace(SHARDED, parallel=ParallelLayout(dp=2, tp=2)), 4),
        (replace(SHARDED, parallel=HYBRID, clip_norm=0.01, accumulation=2, iterations=IterationRule(4)), 4),
        (replace(SHARDED, parallel=structs.replace(HYBRID, pp=2), rows=4, mixed_precision=torch.bfloat16), 8),
        (replace(SHARDED, networks=(NetworkChoice("shared"),)), 2),
        (replace(SHARDED, networks=(NetworkChoice("batch_norm"),), rows=(3, 5)), 2),
    ],
)
def test_other_layouts_and_networks(training, world_size):
    check(training, world_size)


@pytest.mark.tier("ci")
@pytest.mark.parametrize("seed", [None, pytest.param(0, marks=pytest.mark.tier("nightly"))])
def test_everything_at_once_on_eight_ranks(seed):
    training = replace(
        TRANSFORMER,
        parallel=ParallelLayout(2, 2, 2, micro_batches=4),
        accumulation=2,
        mixed_precision=torch.bfloat16,
        recomputes=True,
        clip_norm=0.1,
    )
    check(training, 8, **({} if seed is None else {"policy": "random", "seed": seed}))


@pytest.mark.tier("ci")
@pytest.mark.parametrize("action", [Action.ACCUMULATE, Action.SKIP_STEP, Action.SKIP, Action.EVALUATE])
@pytest.mark.parametrize("parallel", [None, ParallelLayout(pp=2)])
def test_all_ranks_may_do_something_else_together(action, parallel):
    exceptions = (ExceptionalIterations(None, (1,), action),)
    check(replace(SHARDED, iterations=IterationRule(3), parallel=parallel, exceptions=exceptions), 2)


def test_accumulated_gradients_are_scaled_once():
    """torch's `scale_grads` scales those of earlier iterations again: pipelines here divide the loss instead."""
    check(replace(SHARDED, parallel=ParallelLayout(pp=2), accumulation=3, iterations=IterationRule(3)), 2)


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "code"),
    [
        ({"clip_norm": None}, Code.DIVERGENCE_GRADIENTS),
        ({"accumulation": 1}, Code.DIVERGENCE_PARAMETERS),
        ({"optimizer": OptimizerChoice(learning_rate=0.1)}, Code.DIVERGENCE_PARAMETERS),
        ({"seed": 1}, Code.DIVERGENCE_PARAMETERS),
    ],
)
def test_another_training_is_told_from_the_one_that_was_declared(mistake, code):
    declared = replace(SHARDED, clip_norm=0.01, accumulation=2, parallel=ParallelLayout(dp=2, pp=2))
    scenario = scenario_of_training(replace(declared, **mistake), 4, name="declared")
    result = run_scenario(replace(scenario, reference=partial(reference_by_oracle, declared)))
    assert result.findings[0].code is code


def test_a_gradient_that_a_stage_scales_twice_is_found(monkeypatch):
    monkeypatch.setattr(parallel_trainer, "_mean_square", lambda output: 2 * output.square().mean())
    result = run(replace(SHARDED, parallel=ParallelLayout(pp=2)), 2)
    assert result.findings[0].code is Code.DIVERGENCE_GRADIENTS
    assert result.findings[0].ranks == (0,)  # the first stage, whose names come first
    assert "plain training" in str(result)


def test_parts_that_leave_something_out_are_found():
    (expected, *_) = reference_by_oracle(SHARDED, 2).histories[0]
    name, weight = next(iter(expected.parameters.items()))
    parts = [
        Snapshot({name: weight[:1]}, {}, {}, 0, {name: (0, 0)}),
        Snapshot({name: weight[2:]}, {}, {}, 0, {name: (2, 0)}),
    ]
    reference = replace(
        reference_by_oracle(SHARDED, 2), histories=((Snapshot({name: weight}, {}, {}, 0),),) * 2, rounding=()
    )
    found = find_first_differences(reference, [(part,) for part in parts])
    assert [(each.rank, each.name, each.found) for each in found] == [
        (rank, name, "12 of 16 elements on all ranks together") for rank in (0, 1)
    ]
    whole = [Snapshot({name: weight[:2]}, {}, {}, 0, {name: (0, 0)}), parts[1]]
    assert find_first_differences(reference, [(part,) for part in whole]) == []


def skipping(action, rank, **options):
    return replace(SHARDED, exceptions=(ExceptionalIterations((rank,), (1,), action),), **options)


@pytest.mark.parametrize(
    ("training", "world_size", "code", "ranks"),
    [
        (skipping(Action.SKIP, 1), 2, Code.DEADLOCK_MISSING_RANK, (1,)),
        (skipping(Action.EVALUATE, 1), 3, Code.DEADLOCK_MISSING_RANK, (1,)),
        (skipping(Action.SKIP, 1, parallel=ParallelLayout(pp=2)), 2, Code.DEADLOCK_MISSING_RANK, (1,)),
        (skipping(Action.SKIP, 1, parallel=ParallelLayout(tp=2)), 2, Code.DEADLOCK_MISSING_RANK, (1,)),
        (skipping(Action.ACCUMULATE, 3, parallel=HYBRID), 4, Code.MISMATCH_OPERATION, (2, 3)),
    ],
)
def test_what_one_rank_leaves_out(training, world_size, code, ranks):
    result = run(training, world_size)
    assert (result.findings[0].code, result.findings[0].ranks) == (code, ranks), str(result)


def test_a_unit_that_one_rank_does_not_use():
    branches = Training(
        (NetworkChoice("branches"),),
        IterationRule(2),
        wrapper=ModelWrapper.FSDP2,
        exceptions=(ExceptionalIterations((1,), (0,), uses=("left",)),),
    )
    result = run(branches, 3)
    assert result.findings[0].code is Code.MISMATCH_ORIGIN, str(result)
    assert 'FSDP unit "right" of step 1, all-gather before forward' in str(result)
    check(replace(branches, exceptions=()), 3)


# --- files ------------------------------------------------------------------------------------------------------------

HEAD = 'summary = "x"\nwrapper = "fsdp2"\n'
BAD = [
    (
        "parallel = { dp = 2, tp = 3 }",
        "parallel is a mesh of 6 ranks, dp 2 x tp 3, expected one that fills world_size = 4",
    ),
    ("parallel = { dp = 0 }", "parallel.dp is 0, expected a whole number from 1 to 1024"),
    (
        "parallel = { dp = 4, tb = 2 }",
        "parallel.tb is not a known key, expected one of dp, dp_replicate, dp_shard, micro_batches, pp, schedule, tp",
    ),
    (
        "parallel = { dp = 2, dp_replicate = 2, dp_shard = 2 }",
        "parallel.dp is 2, expected dp alone, or dp_replicate and dp_shard, whose product it is: leave it out",
    ),
    (
        "parallel = { dp_replicate = 2, dp_shard = 3 }",
        "parallel is a mesh of 6 ranks, dp_replicate 2 x dp_shard 3, expected one that fills world_size = 4",
    ),
    (
        'network = "mlp"\nparallel = { pp = 4 }',
        "parallel.pp makes 4 stages, expected 3 at most: network 'mlp' has no more layers",
    ),
    (
        'network = { name = "mlp", hidden = [8, 8, 8] }\nparallel = { pp = 4, micro_batches = 2 }',
        "parallel.schedule is '1f1b', which torch refuses: Number of microbatches (2) must be greater than or equal to "
        "the number of stages (4)",
    ),
    (
        'network = "mlp"\nparallel = { dp = 2, pp = 2, schedule = "1f1c" }',
        "parallel.schedule is '1f1c', expected one of gpipe, 1f1b, interleaved_1f1b, looped_bfs, "
        "interleaved_zero_bubble, zbv_zero_bubble: did you mean '1f1b'?",
    ),
    ("parallel = { dp = 4, micro_batches = 2 }", "parallel.micro_batches is for pipelines, but pp is 1"),
    (
        'network = "conv"\nparallel = { dp = 2, pp = 2 }',
        "parallel.pp is 2, but network 'conv' has no layers that follow one another, expected linear, mlp or",
    ),
    (
        'network = "branches"\nparallel = { dp = 2, tp = 2 }',
        "parallel.tp is 2, but network 'branches' has no layers to split, expected linear, mlp or transformer",
    ),
    (
        'network = "transformer"\nparallel = { dp = 2, pp = 2 }',
        "network has embedding.weight and head.weight in different stages, and they are one parameter, expected "
        "tied = false",
    ),
    (
        'rows = 5\nnetwork = "mlp"\nparallel = { dp = 2, pp = 2 }',
        "rows is 5, expected a multiple of 2: so many micro-batches a batch is cut into",
    ),
    (
        'rows = [1, 1, 1, 1]\nnetwork = "mlp"\nparallel = { dp = 2, tp = 2 }',
        "rows has a number for each rank, but of tp = 2 ranks share batches: say one",
    ),
    (
        "world_size = 3\nparallel = { tp = 3 }",
        "parallel.tp is 3, expected a divisor of the 4 outputs of layer in network 'linear'",
    ),
    ("clip_norm = 0", "clip_norm is 0, expected a number above 0"),
    ("accumulation = 0", "accumulation is 0, expected a whole number from 1 to 100000"),
    ('mixed_precision = "bfloat15"', "mixed_precision is 'bfloat15', expected one of bfloat16, float16"),
    ("join = true", "join is said, which does not go with wrapper = 'fsdp2': leave one of them out"),
    ('network = "embedding"', "network is 'embedding', with sparse gradients, which wrapper = 'fsdp2' cannot reduce"),
    (
        "[engine]\nstatic_graph = true",
        "engine has arguments of DistributedDataParallel, but wrapper is 'fsdp2': leave it out",
    ),
    (
        '[[exception]]\naction = "evaluate_inner"',
        "exception[0].action is 'evaluate_inner', but nothing is inside of fully_shard, expected evaluate",
    ),
    (
        'network = "mlp"\nparallel = { dp = 2, pp = 2 }\n[exception]\naction = "skip_backward"',
        "exception.action is 'skip_backward', but a pipeline makes forward and backward in one step",
    ),
    ("optimizer = { sharded = true }", "optimizer.sharded is true, which does not go with wrapper = 'fsdp2'"),
]


@pytest.mark.parametrize(("lines", "message"), BAD)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, lines, message):
    path = tmp_path / "own.toml"
    path.write_text(HEAD + lines + "\n")
    with pytest.raises(UsageError) as caught:
        read_toml(path)
    where, _, said = str(caught.value).partition(" ")
    assert said.startswith(message)
    assert "\n" not in said
    assert int(where.removeprefix(f"{path}:").rstrip(":")) in range(2, HEAD.count("\n") + lines.count("\n") + 2)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("parallel = { pp = 4 }", "parallel.pp is 4, which goes with shards, expected wrapper = 'fsdp2', too"),
        (
            "parallel = { dp_shard = 4 }",
            "parallel.dp_shard is 4, which goes with shards, expected wrapper = 'fsdp2', too",
        ),
        ('mixed_precision = "float16"', "mixed_precision is 'float16', which only shards have, expected wrapper"),
        ("clip_norm = 1.0\nreduce_loss = true", "reduce_loss is said, which does not go with clip_norm"),
        (
            'network = "conv"\nactivation_checkpointing = true',
            "activation_checkpointing is true, but network 'conv' has no layers that follow one another",
        ),
    ],
)
def test_what_only_shards_and_layers_can(tmp_path, lines, message):
    path = tmp_path / "own.toml"
    path.write_text(f'summary = "x"\n{lines}\n')
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        read_toml(path)


def test_a_file_says_all_of_it_and_is_written_back(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        HEAD
        + """
world_size = 8
network = { name = "transformer", tied = false }
parallel = { dp = 2, tp = 2, pp = 2, schedule = "gpipe", micro_batches = 4 }
accumulation = 2
mixed_precision = "bfloat16"
activation_checkpointing = true
clip_norm = 1.0
"""
    )
    scenario = read_toml(path)
    training = training_of_scenario(scenario)
    assert training == replace(
        Training((NetworkChoice("transformer", {"tied": False}),)),
        wrapper=ModelWrapper.FSDP2,
        parallel=ParallelLayout(2, 2, 2, PipelineSchedule.GPIPE, 4),
        accumulation=2,
        mixed_precision=torch.bfloat16,
        recomputes=True,
        clip_norm=1.0,
    )
    assert (scenario.min_world_size, scenario.max_world_size) == (8, 8)
    path.write_text(scenario_as_toml(scenario))
    assert training_of_scenario(read_toml(path)) == training


def test_shards_alone_fit_every_world(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(HEAD + "[expect]\noracle = true\n")
    result = run_scenario(read_toml(path), world_size=3)
    assert (result.verdict, result.world_size) == (Verdict.PASS, 3)


# --- meshes -----------------------------------------------------------------------------------------------------------


def test_coordinates_and_batches():
    layout = ParallelLayout(dp=3, tp=2, pp=2)
    assert layout.dimensions == {"pp": 2, "dp": 3, "tp": 2}
    assert [tuple(layout.coordinates(rank).values()) for rank in range(12)] == [
        (pp, dp, tp) for pp in range(2) for dp in range(3) for tp in range(2)
    ]
    assert [layout.data_rank(rank) for rank in range(12)] == [0, 0, 1, 1, 2, 2] * 2
    hybrid = ParallelLayout(tp=2, pp=2, dp_replicate=2, dp_shard=3)
    assert hybrid.dimensions == {"pp": 2, "dp_replicate": 2, "dp_shard": 3, "tp": 2}
    assert hybrid.coordinates(17) == {"pp": 1, "dp_replicate": 0, "dp_shard": 2, "tp": 1}
    assert [hybrid.data_rank(rank) for rank in (0, 1, 2, 11, 12, 23)] == [0, 0, 1, 5, 0, 5]


def test_layers_are_spread_evenly_over_stages():
    layout = ParallelLayout(pp=2, schedule=PipelineSchedule.ZBV_ZERO_BUBBLE)
    assert [list(layout.layers_of_stage(stage, 6)) for stage in range(4)] == [[0, 1], [2, 3], [4], [5]]
    assert [layout.schedule.stages_of_rank(rank, 2) for rank in range(2)] == [(0, 3), (1, 2)]
    assert [PipelineSchedule.LOOPED_BFS.stages_of_rank(rank, 2) for rank in range(2)] == [(0, 2), (1, 3)]


# --- drawing and shrinking --------------------------------------------------------------------------------------------


@pytest.mark.tier("ci")
@given(parallel_trainings())
@settings(max_examples=4)
def test_drawn_ones_are_what_plain_training_gives(drawn):
    training, world_size = drawn
    networks = [make_meta_network(each.name, each.options) for each in training.networks]
    assert list(find_problems(training, networks, world_size)) == []
    check(training, world_size)


def test_a_mesh_becomes_smaller_by_places_along_a_dimension():
    training = replace(
        SHARDED,
        iterations=(2,) * 8,
        parallel=ParallelLayout(2, 2, 2, PipelineSchedule.GPIPE, 4),
        exceptions=(ExceptionalIterations((5,), (1,), Action.SKIP),),
    )
    declared = DeclaredTraining(training, 8)
    assert list(remove_ranks_of_training(declared)) == []
    smaller = [(each.training.parallel, each.world_size) for each in shrink_mesh_dimension(declared)]
    assert smaller == [
        (ParallelLayout(2, 2), 4),  # of one stage, without a schedule
        (ParallelLayout(1, 2, 2, PipelineSchedule.GPIPE, 4), 4),
        (ParallelLayout(2, 1, 2, PipelineSchedule.GPIPE, 4), 4),
    ]
    # Rank 5 is pp 1, dp 0, tp 1: gone with the second stage, and rank 3 of those with dp 0.
    assert [each.training.exceptions for each in shrink_mesh_dimension(declared)] == [
        (),
        (ExceptionalIterations((3,), (1,), Action.SKIP),),
        (),
    ]
    hybrid = DeclaredTraining(replace(training, parallel=ParallelLayout(dp_replicate=2, dp_shard=4)), 8)
    assert [(each.training.parallel, each.world_size) for each in shrink_mesh_dimension(hybrid)] == [
        (ParallelLayout(4), 4),
        (ParallelLayout(dp_replicate=2), 2),
        (ParallelLayout(dp_replicate=2, dp_shard=2), 4),
    ]
    plainer = [each.training.parallel for each in PASSES[-1](declared)]
    assert ParallelLayout(2, 2, 2, PipelineSchedule.ONE_F_ONE_B, 4) in plainer
    assert ParallelLayout(2, 2, 2, PipelineSchedule.GPIPE) in plainer


@pytest.mark.tier("ci")
def test_a_failure_on_a_mesh_is_shrunk():
    training = replace(
        SHARDED,
        parallel=ParallelLayout(2, 2, 1),
        accumulation=2,
        recomputes=True,
        clip_norm=1.0,
        iterations=IterationRule(3),
        exceptions=(ExceptionalIterations((2,), (1,), Action.SKIP),),
    )
    scenario = scenario_of_training(training, 4, name="declared")
    before, after = run_scenario(scenario), shrink_scenario(scenario)
    assert after.result.findings[0].code is before.findings[0].code is Code.MISMATCH_OPERATION
    found = training_of_scenario(after.scenario)
    assert (after.size_before[:2], after.size[:2]) == ((4, 12), (2, 3))
    assert (found.wrapper, found.parallel, found.accumulation) == (ModelWrapper.FSDP2, None, 2)
    assert not found.recomputes
    assert found.clip_norm is None
