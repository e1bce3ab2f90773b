"""Samplers of ranks that do not share their data set out, and those that only look so."""

from functools import partial

import torch
from torch.utils.data import DataLoader, DistributedSampler

from ddpsim import simulate
from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.samplers import SamplerRead, SamplerSettings, sampler_finding
from tests.kit.rows import rows

MADE, SITE = Site("train.py", 3, "main"), Site("train.py", 9, "main")


def found(**options):
    """What is found for three ranks whose samplers have these attributes, one for each."""
    samplings = [
        SamplerSettings(3, rank, 12, True, 0, 0, False)._replace(
            **{name: values[rank] for name, values in options.items()}
        )
        for rank in range(3)
    ]
    finding = sampler_finding([SamplerRead(rank, sampling, MADE, SITE) for rank, sampling in enumerate(samplings)])
    return finding and (finding.ranks, finding.summary.removeprefix("samplers made at train.py:3 differ: "))


@rows(
    ("options", "expected"),
    [
        ({"seed": (7, 7, 8)}, ((2,), "seed 7 on ranks 0, 1 against 8 on rank 2")),
        ({"epoch": (1, 0, 0)}, ((0,), "epoch 1 on rank 0 against 0 on ranks 1, 2")),
        ({"shuffle": (True, False, True)}, ((1,), "shuffle True on ranks 0, 2 against False on rank 1")),
        ({"drop_last": (True, False, True)}, ((1,), "drop_last True on ranks 0, 2 against False on rank 1")),
        ({"samples": (12, 12, 9)}, ((2,), "length of the data set 12 on ranks 0, 1 against 9 on rank 2")),
        ({"num_replicas": (3, 1, 3)}, ((1,), "num_replicas 3 on ranks 0, 2 against 1 on rank 1")),
        ({"rank": (0, 0, 2)}, ((0, 1), "rank=0 on ranks 0, 1")),
        ({"epoch": (1, 0, 0), "shuffle": (False,) * 3}, None),
        ({"seed": (1, 0, 0), "epoch": (0, 1, 1)}, None),  # the generator starts from the sum
        ({"num_replicas": (2, 2, 1), "rank": (0, 1, 0), "seed": (0, 0, 5)}, None),  # groups of their own
    ],
)
def test_only_what_surely_is_no_partition_is_told(options, expected):
    assert found(**options) == expected


def test_each_pass_is_compared_with_those_of_its_line():
    def train(rank):
        sampler = DistributedSampler(range(12), shuffle=True)
        loader = DataLoader(range(12), sampler=sampler)
        if rank == 0:
            next(iter(loader))  # a look at what there is
        for epoch in range(3):
            sampler.set_epoch(epoch)
            list(loader)
        return list(DistributedSampler(range(12), 1, 0, seed=rank)) if rank else []  # all of it, on some ranks

    def validate_first(rank, same=True):
        training, validation = (
            DistributedSampler(range(size), shuffle=False) for size in (12, 6 if same else 6 + rank)
        )
        for sampler in (validation, training, validation) if rank == 0 else (training, validation):
            list(sampler)  # at one line, as a framework's own loop does

    class Own(DistributedSampler):
        """Deals out samples in its own way."""

    assert simulate(train, 3).findings == ()
    assert simulate(validate_first, 3).findings == ()
    (finding,) = simulate(lambda rank: validate_first(rank, same=False), 3).findings
    assert "length of the data set 6 on rank 0 against 7 on rank 1" in finding.summary
    assert "a sample may be read twice or by no rank" in finding.body
    assert simulate(lambda rank: list(Own(range(12), seed=rank)), 3).findings == ()
    (finding,) = simulate(lambda rank: [list(DistributedSampler(range(12), seed=rank)) for _ in range(2)], 3).findings
    assert (finding.code, finding.sites[0].file) == ("hazard.sampler", "test_samplers.py")


def test_samples_that_are_repeated_in_an_evaluation_are_noted():
    def evaluate(rank, samples, drop_last=False, evaluates=True):
        with torch.set_grad_enabled(not evaluates):
            list(DataLoader(range(samples), sampler=DistributedSampler(range(samples), drop_last=drop_last)))

    (note,) = simulate(evaluate, 3, args=(22,)).notes
    assert note.startswith(
        "not checked: whether a metric counts 2 samples twice: the DistributedSampler of test_samplers"
    )
    assert note.endswith(" repeats them, as it divides 22 samples among 3 ranks")
    for harmless in ((21,), (22, True), (22, False, False)):
        assert simulate(evaluate, 3, args=harmless).notes == ()


def test_epochs_that_a_shuffling_sampler_reads_in_one_order_are_noted():
    def train(rank, epochs=3, shuffle=True, sets=False, evaluates=False):
        sampler = DistributedSampler(range(6), shuffle=shuffle)
        loader = DataLoader(range(6), sampler=sampler)
        with torch.set_grad_enabled(not evaluates):
            for epoch in range(epochs):
                if sets:
                    sampler.set_epoch(epoch)
                list(loader)

    (note,) = simulate(train, 2).notes
    first = train.__code__.co_firstlineno
    what = f"test_samplers.py:{first + 7} reads the shuffling DistributedSampler of test_samplers.py:{first + 1} again"
    assert note == f"not checked: whether epochs may have one order: {what}, with no set_epoch() between"
    for harmless in ({"epochs": 1}, {"shuffle": False}, {"sets": True}, {"evaluates": True}):
        assert simulate(partial(train, **harmless), 2).notes == ()
