"""Declared scenarios in TOML: what each key means, and one line with file, line and key for whatever is wrong."""

from __future__ import annotations

import re

import pytest
import torch

from ddpsim import Code, Crash, Delay, EarlyReturn, UsageError, Verdict
from ddpsim.scenarios import explore_scenario, load, registry, run_scenario
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.files.toml_source import tomllib
from ddpsim.scenarios.training.training import (
    Action,
    CommunicationHook,
    ExceptionalIterations,
    IterationRule,
    JoinOptions,
    NetworkChoice,
    OptimizerChoice,
    OptimizerName,
    Training,
)
from tests.tiers import sweep

EVERYTHING = """
summary = "everything that can be said"
cause = "to show it"
name = "everything"
reports = ["pytorch/pytorch#42577"]
tags = ["one", "two"]
world_size = 3
seed = 7
dtype = "float64"
iterations = [2, 4, 3]
rows = [2, 3, 4]
network = [{ name = "mlp", hidden = [5, 3] }, { name = "branches" }]
optimizer = { name = "sgd", learning_rate = 0.1, momentum = 0.9, sharded = true }
join = { divide_by_initial_world_size = false, throw_on_early_termination = true }
communication_hook = "fp16_compress"
average_buffers = true
reduce_loss = true

[engine]
find_unused_parameters = true
bucket_cap_mb = 0.001

[[exception]]
ranks = [1]
iterations = [0, 2]
action = "accumulate"

[[exception]]
uses = ["left"]

[[fault]]
kind = "crash"
rank = 1
before_call = 3
message = "out of memory"

[[fault]]
kind = "delay"
rank = 2
before_call = 1
seconds = 2.5

[[fault]]
kind = "early_return"
before_call = 9

[expect]
finding = "rank_error"
ranks = [1]

[expect.ddp]
verdict = "fail"
"""


@pytest.fixture
def write(write):
    """Write a scenario file, and return its name."""
    return lambda text: str(write(text))


def test_everything_that_can_be_said(write):
    path = write(EVERYTHING)
    scenario = load(path)
    assert scenario.name == path  # what the replay line has to say
    assert (scenario.summary, scenario.cause) == ("everything that can be said", "to show it")
    assert (scenario.reports, scenario.tags) == (("pytorch/pytorch#42577",), ("one", "two"))
    assert (scenario.world_size, scenario.min_world_size, scenario.max_world_size) == (3, 3, 3)
    assert scenario.faults == (Crash(1, 3, "out of memory"), Delay(2, 1, 2.5), EarlyReturn(0, 9))
    assert scenario.args == (
        Training(
            (NetworkChoice("mlp", {"hidden": (5, 3)}), NetworkChoice("branches", {})),
            (2, 4, 3),
            (2, 3, 4),
            {"find_unused_parameters": True, "bucket_cap_mb": 0.001},
            JoinOptions(False, True),
            OptimizerChoice(OptimizerName.SGD, 0.1, 0.9, True),
            CommunicationHook.FP16_COMPRESS,
            averages_buffers=True,
            reduces_loss=True,
            exceptions=(ExceptionalIterations((1,), (0, 2), Action.ACCUMULATE), ExceptionalIterations(uses=("left",))),
            seed=7,
            dtype=torch.float64,
        ),
    )
    expected = scenario.expected_by(Engine.TORCH)
    assert (expected.verdict, expected.code, expected.ranks) == (Verdict.FAIL, Code.RANK_ERROR, (1,))
    assert scenario.expected_by(Engine.DDP).code is None


def test_a_summary_is_enough(write):
    scenario = load(write('summary = "nothing special"'))
    assert scenario.args == (Training(),)
    assert (scenario.world_size, scenario.min_world_size, scenario.max_world_size) == (4, 2, None)
    result = run_scenario(scenario, world_size=2)
    assert result.findings == ()
    assert scenario.expected.is_clean


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("iterations = 2", [2, 2, 2, 2]),
        ("iterations = [1, 2, 3, 4]", [1, 2, 3, 4]),
        ("iterations = { start = 1, step = 2 }", [1, 3, 5, 7]),
        ("iterations = { start = 5, step = -2 }", [5, 3, 1, 0]),
        ("iterations = { start = 1, step = 1, cycle = 2 }", [1, 2, 1, 2]),
    ],
)
def test_iterations(write, line, counts):
    (training,) = load(write(f'summary = "x"\njoin = true\n{line}')).args
    assert [training.iteration_count(rank) for rank in range(4)] == counts
    assert training.fits_every_world is isinstance(training.iterations, IterationRule)


def test_a_world_that_is_given_rank_by_rank_has_one_size():
    with pytest.raises(UsageError, match=r"^world size is 4, uneven-linear runs only on 3: leave it out"):
        run_scenario("uneven-linear", world_size=4)
    assert run_scenario("varying-iterations", world_size=3).findings == ()


WHOLE = "a whole number from"
NOT_EXPECTED = {
    'world_size = "3"': f"{WHOLE} 1 to 16384",
    "seed = true": f"{WHOLE} 0 to 1000000000000",
    "world_size = 0": f"{WHOLE} 1 to 16384",
    "rows = [0, 1, 1, 1]": "an array of whole numbers from 1 to 100000",
    'iterations = "three"': "a whole number, one for each rank, or",
    "iterations = -1": "",
    'network = "mlpp"': "one of ",
    "network = []": "a name, a table of name and options, or several",
    "world_size = 2000000000": f"{WHOLE} 1 to 16384",
    "rows = 100001": f"{WHOLE} 1 to 100000",
    "iterations = 100000000000": "a whole number, one for",
    "iterations = { step = 100001 }": f"{WHOLE} -100000 to 100000",
    "iterations = { cycle = 0 }": f"{WHOLE} 1 on",
    "seed = 9223372036854775807": f"{WHOLE} 0 to 1000000000000",
    "optimizer = { momentum = 1.0 }": "a number from 0 on, below 1",
    'dtype = "float16"': "one of float32, float64",
    'communication_hook = "zip"': "one of allreduce, fp16_compress",
    'optimizer = "sdg"': "one of sgd, adam, adamw: did you mean 'sgd'?",
    "join = 3": "a table",
    "fault = 3": "tables, each under [[fault]]",
    'tags = "one"': "an array of strings",
}
"""A value of the second line of a file, and what is expected in its place."""


def found(text):
    """The key and the value in a line, or in a table that it makes, as they are told."""
    ((key, value),) = tomllib.loads(text).items()
    if isinstance(value, dict):
        ((below, value),) = value.items()
        key = f"{key}.{below}"
    return f":2: {key} is {value!r}"


WRONG = {
    **{text: (text, f"{found(text)}, expected {expected}") for text, expected in NOT_EXPECTED.items()},
    "not toml": ("world_size = \n", ":1 is not TOML (Invalid value (at line 1, column 14)), expected lines like"),
    "no summary": ("seed = 1", ": summary is missing: add `summary = "),
    "unknown key": (
        "wordl_size = 3",
        ":2: wordl_size is not a known key, expected one of accumulation, activation_checkpointing, alike, "
        "average_buffers, ",
    ),
    "nearest key": ("wordl_size = 3", "did you mean 'world_size'?"),
    "contradiction": (
        "world_size = 4\niterations = [1, 2, 3]",
        ":3: iterations has 3 numbers, expected 4, one for each rank of world_size = 4",
    ),
    "rows": ("rows = [1, 2]", ":2: rows has 2 numbers, expected 4, one for each rank of world_size = 4"),
    "rule": (
        "iterations = { first = 1 }",
        ":2: iterations.first is not a known key, expected one of cycle, start, step",
    ),
    "network option": (
        'network = { name = "mlp", hiden = [3] }',
        ":2: network.hiden is no option, expected one of features, hidden, outputs: did you mean 'hidden'?",
    ),
    "network option in a table": (
        '[network]\nname = "mlp"\n\nhidden = 3',
        ":5: network.hidden is 3, expected a list of whole numbers from 1 to 65536: leave it out for (16, 16)",
    ),
    "network option of several": (
        '[[network]]\n[[network]]\nname = "resnet"\ndepth = 9',
        ":5: network[1].depth is 9, expected one of 8, 10, 18, 34, 50, 101, 152: take the nearest",
    ),
    "large network": (
        'network = { name = "linear", features = 65536, outputs = 65536 }',
        ":2: network 'linear' has 4294967296 parameters or more, expected 100000000 at most: make it smaller",
    ),
    "large batch": (
        'rows = 100000\nnetwork = { name = "linear", features = 2000 }',
        ":2: rows are up to 100000 of 2000 numbers, expected 100000000 numbers in a batch at most: use fewer",
    ),
    "many iterations together": (
        "world_size = 11\niterations = 100000",
        ":3: iterations are 100000 on a rank and 1100000 in all, expected 100000 and 1000000 at most: use fewer",
    ),
    "many iterations by a rule": (
        "iterations = { start = 1, step = 50000 }",
        ":2: iterations are 150001 on a rank and 300004 in all, expected 100000 and 1000000 at most: use fewer",
    ),
    "large whole": ('[[fault]]\nkind = "crash"\nbefore_call = 9223372036854775808', ":4: fault[0].before_call is 922"),
    "large number": (f"optimizer = {{ learning_rate = 1{'0' * 400} }}", "00000..., expected a number from 0 on"),
    "whole too long to show": (f"seed = 0x{'f' * 5000}", ":2: seed is a number too long to show, expected a whole"),
    "sparse": (
        'network = "embedding"\noptimizer = "adam"',
        ":3: optimizer is adam, which takes no sparse gradients, but the network has such: use sgd",
    ),
    "too many digits": (f"seed = 1{'0' * 5000}", "own.toml cannot be read (a number has too many digits), expected a"),
    "nested too deeply": (f"seed = {'[' * 5000}", "own.toml cannot be read (arrays are nested too deeply), expected a"),
    "engine": ("[engine]\nstatic = true", ":3: engine.static is not a known key, expected one of "),
    "engine flag": ("[engine]\nstatic_graph = 1", ":3: engine.static_graph is 1, expected true or false"),
    "engine whole": ("[engine]\ndim = true", ":3: engine.dim is True, expected a whole number from 0 on"),
    "engine number": (
        "[engine]\nbucket_cap_mb = true",
        ":3: engine.bucket_cap_mb is True, expected a number from 0 on, below 100000",
    ),
    "momentum": (
        'optimizer = { name = "adam", momentum = 0.9 }',
        ":2: optimizer.momentum is 0.9, but adam has none: leave it out, or use sgd",
    ),
    "join": (
        "join = { divide = true }",
        ":2: join.divide is not a known key, expected one of divide_by_initial_world_size",
    ),
    "exception rank": (
        '[[exception]]\nranks = [0]\naction = "skip"\n[[exception]]\nranks = [7]',
        ":6: exception[1].ranks is [7], expected ranks below world_size = 4",
    ),
    "exception iteration": (
        "iterations = 2\n[[exception]]\niterations = [2]",
        ":4: exception[0].iterations is [2], but no rank has more than 2, counted from 0: correct it",
    ),
    "exception past its ranks' end": (
        "world_size = 2\niterations = [4, 2]\njoin = true\n[[exception]]\nranks = [1]\niterations = [3]\n"
        'action = "skip"',
        ":7: exception[0].iterations is [3], but none of its ranks has more than 2, counted from 0: correct it",
    ),
    "exception of nobody": ('[[exception]]\nranks = []\naction = "skip"', ":3: exception[0].ranks is [], expected one"),
    "exception never": (
        '[[exception]]\niterations = []\naction = "skip"',
        ":3: exception[0].iterations is [], expected one or more: leave it out to mean all",
    ),
    "exception without a word": (
        "[[exception]]",
        ":2: exception[0].action is missing, expected an action, or `uses` with the branches that a batch uses",
    ),
    "gap": (
        'network = "early_exit"\n[[exception]]\nuses = ["third"]',
        ":4: exception[0].uses leaves out 'second' before 'third', expected no gap: name it too",
    ),
    "action": (
        '[[exception]]\naction = "jump"',
        ":3: exception[0].action is 'jump', expected one of train, accumulate",
    ),
    "branch": (
        'network = "branches"\n[[exception]]\nuses = ["lef"]',
        ":4: exception[0].uses has 'lef', expected one of left, right. did you mean 'left'?",
    ),
    "no branches": (
        '[[exception]]\nuses = ["left"]',
        ":3: exception[0].uses has 'left', expected none: this network has no branches",
    ),
    "fault": ('[[fault]]\nkind = "burn"', ":3: fault[0].kind is 'burn', expected one of crash, delay, early_return"),
    "fault kind": ("[[fault]]\nrank = 1", ":2: fault[0].kind is missing, expected one of crash, delay, early_return"),
    "fault rank": (
        '[[fault]]\nkind = "crash"\nrank = 4',
        ":4: fault[0].rank is 4, expected a rank below world_size = 4",
    ),
    "seconds of a crash": (
        '[[fault]]\nkind = "crash"\nseconds = 1.0',
        ":4: fault[0].seconds is not a known key, expected one of",
    ),
    "code": (
        '[expect]\nfinding = "deadlock.missing"',
        ":3: expect.finding is 'deadlock.missing', expected one of mismatch.operation, ",
    ),
    "nearest code": ('[expect]\nfinding = "deadlock.missing"', "did you mean 'deadlock.missing_rank'?"),
    "verdict": (
        '[expect]\nfinding = "rank_error"\nverdict = "pass"',
        ":4: expect.verdict is 'pass', but rank_error means 'fail': leave one of them out",
    ),
    "nobody is to blame": (
        '[expect]\nfinding = "rank_error"',
        ":3: expect.finding is 'rank_error' without ranks: name the culprits, such as ranks = [1]",
    ),
    "ranks": ("[expect]\nranks = [1]", ":3: expect.ranks names culprits, but no finding is expected: add one"),
    "rank": (
        '[expect]\nfinding = "rank_error"\nranks = [4]',
        ":4: expect.ranks is [4], expected ranks below world_size = 4",
    ),
    "expect.ddp": (
        "[expect.ddp]\noracel = true",
        ":3: expect.ddp.oracel is not a known key, expected one of finding, ranks, verdict",
    ),
    "oracle": (
        "iterations = [1, 2, 3, 4]\n[expect]\noracle = true",
        ":4: expect.oracle is true, but iterations are [1, 2, 3, 4] without a join, expected equal numbers",
    ),
    "oracle of what fails": (
        '[expect]\nverdict = "fail"\noracle = true',
        ":4: expect.oracle is true, but the oracle only judges runs that pass or end in divergence.*: leave it out",
    ),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_in_one_line(write, text, message):
    first = "" if text.startswith(("world_size = \n", "seed = 1")) else 'summary = "x"\n'
    path = write(first + text)
    with pytest.raises(UsageError) as caught:
        load(path)
    told = str(caught.value)
    assert told.startswith(path)
    assert "\n" not in told
    assert re.search(re.escape(message), told), told


def test_keys_are_found_where_they_stand(write):
    # Comments, strings that look like keys, dotted keys and inline tables.
    path = write(
        'summary = "world_size = 9"\n# seed = 1\n\n[engine] # world_size = 2\nstatic_graph = false\n[expect]\n'
        'ddp.finding = "rank_eror"\n'
    )
    with pytest.raises(UsageError, match=r"own.toml:7: expect.ddp.finding is 'rank_eror'"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        'cause = """\nseed = 1\n[engine]\n"""\n\nseed = "bad"',
        "cause = '''\nseed = 1\n'''\n# it's \"\"\" no string\n\nseed = \"bad\"",
        'tags = [\n  "seed = 1",\n  "a = 2",\n]\n\nseed = "bad"',
        'cause = "# \\"\\"\\" # "\n# """\nseed = "bad"',
    ],
    ids=["basic", "literal", "array", "short"],
)
def test_keys_are_not_found_in_strings(write, text):
    path = write('summary = "x"\n' + text)
    line = 1 + len(text.splitlines())
    with pytest.raises(UsageError, match=rf"own.toml:{line}: seed is 'bad', expected a whole number"):
        load(path)


def test_a_divergence_is_compared_with_the_oracle(write):
    text = 'summary = "x"\n[expect]\nfinding = "divergence.parameters"\nranks = [1]\noracle = true\n'
    assert load(write(text)).reference is not None
    text = 'summary = "x"\n[expect]\nverdict = "fail"\noracle = true\n[expect.ddp]\nverdict = "pass"'
    assert load(write(text)).reference is not None


def test_an_argument_that_only_torchs_engine_has(write):
    path = write('summary = "x"\nworld_size = 2\n[engine]\nskip_all_reduce_unused_params = true')
    assert run_scenario(path).findings == ()
    for run in (run_scenario, explore_scenario):
        with pytest.raises(UsageError, match=r"has \[engine\] skip_all_reduce_unused_params, which engine 'ddp' does"):
            run(path, "ddp")


@pytest.mark.parametrize("blamed", ["[expect]", "[expect.ddp]"])
def test_who_is_blamed_fixes_the_world(write, blamed):
    text = f'summary = "x"\nworld_size = 4\n{blamed}\nfinding = "deadlock.missing_rank"\nranks = '
    assert load(write(text + "[3]")).max_world_size == 4
    assert load(write(text + "[]")).max_world_size is None


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "own.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"own.toml:1 is not TOML \(.*\), expected lines like"):
        load(str(path))


@pytest.mark.parametrize("engine", sweep(["torch", "ddp"], lambda engine: engine == "ddp"))
@pytest.mark.parametrize("name", [name for name, scenario in registry.items() if "join-matrix" in scenario.tags])
def test_the_join_matrix_agrees_with_the_oracle(name, engine):
    scenario = registry[name]
    assert scenario.reference is not None
    result = run_scenario(scenario, engine)
    assert result.findings == ()
    assert {rank.rank for joining in result.joins for rank in joining.ranks} == set(range(scenario.world_size))
