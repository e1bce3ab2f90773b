"""Whole programs on several ranks against one: each planted bug at its first tensor, each repaired twin the same."""

import importlib

import pytest

import ddpsim
from ddpsim.simulator.comparing.comparison import Answer
from tests.comparing.scripts import evaluated
from tests.kit.rows import rows

SUM, MEAN = "and their sum is the reference's", "and their mean is the reference's"
NOT_ALL = "not all that is trained was compared"
EACH_COUNT = "do not add up to that of all samples"

BUGS = [
    ("sampled", 2, "loss", "gradient of weight is x 1/2", "divided by 2"),
    ("sampled", 2, "seeds", "", "ranks draw from the data set in different orders"),
    ("sampled", 4, "overlap", "9 of the 11 samples that are read are read by several ranks", "parts of one order"),
    (
        "sampled",
        4,
        "drawn overlap",
        "9 of the 10 samples that are read are read by several ranks",
        "parts of one order",
    ),
    ("prototypes", 2, "prototypes", "buffer of prototypes differs", "the gradients of the step are the same"),
    ("prototypes", 2, "centre", "the mean of the ranks' losses differs", "keeps between steps for itself"),
    ("recurrent", 2, "reset", "output of cell on rank 1 differs", "so are the outputs before it"),
    ("recurrent", 2, "state of rank 0", "output of cell on rank 1 differs", "so are the outputs before it"),
    ("recurrent", 2, "zeroed", "gradient of out.bias on rank 1 is zero", "before it are the same: out.weight"),
    ("adapters", 2, "not sent", "0.a starts on rank 1 with other values", ""),
    ("context_parallel", 4, "keys", "gradient of att.k.weight differs", "before it are the same: att.q.bias"),
    ("sequence_parallel", 2, "bias on each rank", "output of 1 differs", "so are the outputs before it"),
    ("sequence_parallel", 2, "norm not reduced", "gradient of 2.norm.weight differs", SUM),
    ("context_parallel", 4, "divided", "gradient of head.weight is x 1/4", "divided by 4"),
    ("context_parallel", 4, "labels", "the mean of the ranks' losses differs", EACH_COUNT),
    ("context_parallel", 4, "positions", "input 2 of the model is not that of the reference", "such as positions"),
    ("sequence_parallel_norm", 4, "no partial", "gradient of norm.scale differs", SUM),
    ("tied_embedding", 2, "untied", "gradient of emb.weight differs", SUM),
    ("used_twice", 4, "once", "gradient of mid.weight differs", MEAN),
    ("experts", 4, "aux", "the mean of the ranks' losses differs", EACH_COUNT),
    ("experts", 4, "experts", "gradient of moe.experts.3.2.weight on rank 3 is x 4", "not divided by 4"),
    ("experts", 4, "router", "gradient of moe.router.weight differs", MEAN),
    ("token_loss", 2, "own", "the mean of the ranks' losses differs", EACH_COUNT),
    ("token_loss", 2, "worldless", "gradient before clipping of head.weight is x 1/2", "divided by 2"),
    ("token_loss", 2, "micro", "the mean of the ranks' losses differs", EACH_COUNT),
    ("evaluated", 4, "buffer", "buffer of running differs", "the gradients of the step are the same"),
    ("evaluated", 4, "means", "what ranks reduce in evaluation at evaluated.py:", "a mean of means"),
    ("evaluated", 4, "padded", "what ranks reduce in evaluation at evaluated.py:", "counted twice"),
    ("evaluated", 4, "ema", "evaluated parameter of f.weight differs", "the trained parameters are the same"),
    (
        "tensor_parallel",
        4,
        "world",
        "gradient of blocks.1.down.weight differs",
        "hold different parts of the parameter",
    ),
    ("tensor_parallel", 4, "skipplain", "gradient of head.weight differs", "ranks 0, 1 and ranks 2, 3 have one each"),
    ("sharded_optimizer", 4, "sum", "gradient of copy 0 is x 4", "not divided by 4"),
    ("sharded_optimizer", 4, "norm", "gradient of copy 0 differs", "as by a clip to the rank's own norm"),
    ("sharded_optimizer", 4, "left", "written parameter of 2.weight differs", "the gradients of the step are the same"),
]
OF_FSDP2 = [
    ("norm_by_hand", 4, "replicas", "gradient of 4.weight is x 0.7071", "counts each part 2 times"),
    ("norm_by_hand", 4, "twice", "gradient of 4.weight is x 1/2", "counts each part 4 times"),
    ("norm_by_hand", 4, "decay", "parameter of 0.weight differs", "the gradients of the step are the same"),
]


def compare(name, world_size, *words, **options):
    module = importlib.import_module(f"tests.comparing.scripts.{name}")
    return ddpsim.compare(lambda rank: module.main(words), world_size, default_group=False, **options)


def check_bug(name, world_size, bug, line, cause, *words, **options):
    found = compare(name, world_size, "--bug", bug, *words, **options)
    assert found.answer is Answer.DIFFERENT, found
    assert found.line.removeprefix(f"step {found.step}: ").startswith(line)
    assert not cause or any(cause in each.text for each in found.lines if each.label == "cause"), found


@pytest.mark.tier("ci")
@rows(("name", "world_size", "bug", "line", "cause"), BUGS)
def test_a_bug_is_found_at_its_first_tensor(name, world_size, bug, line, cause):
    check_bug(name, world_size, bug, line, cause)


@pytest.mark.tier("ci")
@rows(("name", "world_size"), dict.fromkeys(row[:2] for row in BUGS))
def test_the_repaired_program_is_the_same(name, world_size):
    found = compare(name, world_size)
    assert found.is_same, found


@pytest.mark.tier("ci")
def test_of_padded_shards_the_norm_of_all_gradients_is_compared():
    found = compare("sharded_optimizer", 3)
    assert found.is_same, found
    assert found.notes[-1] == "of copy 0 only the norm of all gradients is compared"
    for bug, line in (("sum", "is x 3"), ("norm", "is x "), ("left", "")):
        found = compare("sharded_optimizer", 3, "--bug", bug)
        first = (
            f"gradient of all copies together (its norm) {line}" if line else "written parameter of 2.weight differs"
        )
        assert found.line.startswith(f"step 0: {first}"), found


@pytest.mark.tier("ci")
def test_a_factor_that_adam_does_not_show_is_found():
    assert compare("sharded_optimizer", 3, "--adam").is_same
    for size in (2, 3):
        found = compare("sharded_optimizer", size, "--adam", "--bug", "sum")
        assert found.answer is Answer.DIFFERENT
        assert found.line.endswith(f"is x {size}")


@pytest.mark.tier("ci")
def test_copies_whose_gradients_the_reference_does_not_have_are_not_known():
    found = compare("sharded_optimizer", 3, "--adam", "--plain-alone")
    assert (found.answer, found.line) == (Answer.UNKNOWN, f"{NOT_ALL}; gradients of copy 0 were not compared"), found


@pytest.mark.tier("ci")
@rows(("world_size", "words"), [(4, ("--bug", "extra")), (3, ("--bug", "extra")), (3, ("--steps", "1"))])
def test_what_is_trained_and_in_no_model_is_not_known(world_size, words):
    found = compare("sharded_optimizer", world_size, *words)
    assert (found.answer, found.line) == (Answer.UNKNOWN, NOT_ALL), found


@pytest.mark.tier("ci")
def test_a_check_of_a_number_of_an_evaluation_is_no_finding_of_gradients():
    words = ("--bug", "means")
    result = ddpsim.simulate(lambda rank: evaluated.main(words), 4, default_group=False, check="reference")
    assert (result.findings[0].code, result.findings[0].ranks) == ("divergence.buffers", (0, 1, 2, 3))


@pytest.mark.tier("nightly")
@rows(("name", "world_size", "bug", "line", "cause"), OF_FSDP2)
def test_fsdp2_with_replicas(name, world_size, bug, line, cause):
    words = ("--replicas", "2")
    check_bug(name, world_size, bug, line, cause, *words, isolation="process")
    assert compare(name, world_size, *words, isolation="process").is_same
