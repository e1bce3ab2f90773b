"""Who did how much: the loops of ranks that wait for others, and how many batches the data loaders of each had."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ddpsim import simulate
from tests.kit.results import codes
from tests.kit.rows import rows


def reduces(rank, *, times, then_barrier=False):
    for _ in range(times[rank]):
        dist.all_reduce(torch.ones(1))
    if then_barrier:
        dist.barrier()


def line_of(program, after):
    return program.__code__.co_firstlineno + after


def labelled(finding, label):
    return [line.text for line in finding.lines if getattr(line, "label", "") == label]


def test_a_loop_that_ends_earlier_on_a_rank_is_counted_where_that_is_missed():
    (finding,) = simulate(lambda rank: reduces(rank, times=(5, 5, 4)), 3).findings
    assert (finding.code, finding.ranks) == ("deadlock.missing_rank", (2,))
    assert labelled(finding, "counts") == [
        f"all_reduce at test_uneven.py:{line_of(reduces, 2)} was called 5 times on ranks 0, 1; 4 times on rank 2"
    ]


def test_steps_of_a_wrapper_are_counted():
    def program(rank):
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        for _ in range(2 if rank == 0 else 3):
            model(torch.ones(1, 2)).sum().backward()

    (finding,) = simulate(program, 3).findings
    assert labelled(finding, "counts") == ["DDP #0 began to reduce gradients 3 times on ranks 1, 2; 2 times on rank 0"]


def test_forwards_that_no_call_shows_are_not_counted():
    """Rank 1 fails in a backward, evaluates, or waits in its step, and has gone forward as often as the others."""

    def program(rank, what):
        layers = [torch.nn.Linear(2, 2)] + [torch.nn.BatchNorm1d(2)] * (what == "evaluates")
        model = DistributedDataParallel(torch.nn.Sequential(*layers))
        for step in range(4):
            is_odd = rank == 1 and step == 2
            if is_odd and what == "evaluates":
                with torch.no_grad():
                    model.eval()(torch.ones(2, 2))
            loss = model.train()(torch.ones(2, 2)).sum()
            if is_odd and what == "waits":
                dist.barrier()
            if not (is_odd and what == "skips"):
                loss.backward()

    for what, counted in [
        ("skips", []),
        ("evaluates", []),
        ("waits", ["DDP #0 began to reduce gradients 3 times on ranks 0, 2; 2 times on rank 1"]),
    ]:
        finding = simulate(partial(program, what=what), 3).findings[0]
        assert labelled(finding, "counts") == counted


def skips_then_receives(rank, *, steps):
    for _ in range(steps[rank]):
        dist.all_reduce(torch.ones(1))
    for peer in range(1, dist.get_world_size()) if rank == 0 else ():
        dist.send(torch.ones(1), peer)
    if rank > 0:
        dist.recv(torch.ones(1), 0)


@rows(
    ("steps", "ranks", "counts"),
    [
        ((4, 3, 4), (1,), "4 times on ranks 0, 2; 3 times on rank 1"),
        ((4, 3), (0, 1), "4 times on rank 0; 3 times on rank 1"),  # either may be wrong
    ],
)
def test_a_rank_that_waits_for_a_message_of_those_whose_collective_it_left_out(steps, ranks, counts):
    (finding,) = simulate(lambda rank: skips_then_receives(rank, steps=steps), len(steps)).findings
    assert (finding.code, finding.ranks) == ("deadlock.cycle", ranks)
    assert labelled(finding, "counts") == [
        f"all_reduce at test_uneven.py:{line_of(skips_then_receives, 2)} was called {counts}"
    ]
    assert labelled(finding, "cause")[0].startswith(
        "rank 1 left the training loop earlier than the others, skipped part "
    )


def test_a_rank_that_never_came_to_the_collective_may_have_it_in_another_place():
    def program(rank):
        if rank == 1:
            dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            dist.send(torch.ones(1), 1)

    a_cycle_in_no_loop(program)


def a_cycle_in_no_loop(program, cause="not known: no call of the cycle is shown to be too early"):
    (finding,) = simulate(program, 2).findings
    assert (finding.code, finding.ranks) == ("deadlock.cycle", (0, 1))
    assert labelled(finding, "counts") == []
    assert labelled(finding, "cause")[0].startswith(cause)


def test_a_rank_that_receives_in_each_step_has_not_left_the_loop():
    def program(rank):
        for step in range(4):
            dist.all_reduce(torch.ones(1))
            if rank == 0:
                dist.recv(torch.zeros(1), 1)
            elif step != 2:
                dist.send(torch.ones(1), 0)

    line = program.__code__.co_firstlineno
    a_cycle_in_no_loop(
        program, f"rank 0 reached recv at test_uneven.py:{line + 4} 3 times, and rank 1 reached send at "
    )


def test_a_function_that_is_called_in_a_loop_may_be_called_after_it_too(tmp_path):
    names = {"dist": dist}
    exec(compile("def mean(tensor):\n    dist.all_reduce(tensor)\n", str(tmp_path / "kit.py"), "exec"), names)

    def program(rank):
        for _ in range(4):
            names["mean"](torch.ones(1))
        if rank == 0:
            dist.recv(torch.zeros(1), 1)
        names["mean"](torch.ones(1))
        if rank == 1:
            dist.send(torch.ones(1), 0)

    a_cycle_in_no_loop(program)


@pytest.mark.parametrize("times", [(1, 0), (1, 1)])
def test_no_loop_is_counted_where_there_is_none(times):
    result = simulate(lambda rank: reduces(rank, times=times), 2)
    assert not any(labelled(finding, "counts") for finding in result.findings)


def loads(rank, *, sizes, epochs=1, then_barrier=True):
    data = TensorDataset(torch.ones(sizes[rank], 1))
    for _ in range(epochs):
        for (batch,) in DataLoader(data, batch_size=2):
            dist.all_reduce(batch.sum())
    if then_barrier:
        dist.barrier()


@rows("then_barrier", [True, False])
@rows("epochs", [1, 2])
def test_data_loaders_that_are_longer_on_some_ranks_are_told(then_barrier, epochs):
    result = simulate(lambda rank: loads(rank, sizes=(26, 24, 26), epochs=epochs, then_barrier=then_barrier), 3)
    (finding,) = result.findings
    assert finding.ranks == (1,)
    assert labelled(finding, "batches") == [
        f"the data loader of test_uneven.py:{line_of(loads, 3)} has 13 batches on ranks 0, 2; 12 batches on rank 1"
    ]
    assert codes(simulate(lambda rank: loads(rank, sizes=(4, 4, 4)), 3)) == []


@rows("epochs", [1, 2])
@rows(("sizes", "who"), [((8, 6, 6), "rank 0"), ((8, 6), "rank 0"), ((8, 8, 5), "ranks 0, 1")])
def test_a_call_for_a_batch_that_others_do_not_have_is_told(sizes, who, epochs):
    def program(rank):
        loads(rank, sizes=sizes, epochs=epochs, then_barrier=False)
        dist.destroy_process_group()

    (finding,) = simulate(program, len(sizes)).findings
    (cause,) = labelled(finding, "cause")
    line = f"test_uneven.py:{line_of(loads, 3)}"
    number = 3 * epochs
    assert (
        cause
        == f"the others have no more batches in the loop at {line}, and {who} made all_reduce #{number} for one more"
    )
    assert labelled(finding, "try")[0].startswith("give every rank as many batches")


def test_a_call_of_another_loop_is_not_of_a_batch_that_others_do_not_have():
    def program(rank):
        data = TensorDataset(torch.ones(8 if rank == 0 else 6, 1))
        list(DataLoader(data, batch_size=2))
        reduces(rank, times=(3, 2, 2))

    (finding,) = simulate(program, 3).findings
    assert labelled(finding, "batches")
    assert "batches in the loop" not in labelled(finding, "cause")[0]


def test_loops_are_compared_with_the_same_loop_of_others():
    """Lengths that change from epoch to epoch, alike on all ranks, are no reason why one is behind."""

    def program(rank):
        for epoch in range(3 if rank else 2):
            for (batch,) in DataLoader(TensorDataset(torch.ones(2 + epoch, 1))):
                dist.all_reduce(batch)

    (finding,) = simulate(program, 2).findings
    assert labelled(finding, "batches") == []


def test_loaders_that_one_line_reads_in_turn_are_not_compared_with_each_other():
    """A framework has one loop for all, and rank 0 validates first."""

    def program(rank, made_at_one_line):
        training, validation = (DataLoader(TensorDataset(torch.ones(size, 1))) for size in (4, 2))
        if not made_at_one_line:
            validation = DataLoader(TensorDataset(torch.ones(2, 1)))
        for loader in (validation, training) if rank == 0 else (training,):
            for (batch,) in loader:
                dist.all_reduce(batch)

    for made_at_one_line in (True, False):
        (finding,) = simulate(program, 2, args=(made_at_one_line,)).findings
        assert labelled(finding, "batches") == []


def test_a_loader_that_does_not_know_its_length_is_counted_by_its_calls():
    class Stream(IterableDataset):
        def __init__(self, size):
            self.size = size

        def __iter__(self):
            return iter(range(self.size))

    def program(rank):
        for batch in DataLoader(Stream(3 + rank)):
            dist.all_reduce(batch)

    (finding,) = simulate(program, 2).findings
    assert labelled(finding, "batches") == []
    assert labelled(finding, "counts") == [
        f"all_reduce at test_uneven.py:{line_of(program, 2)} was called 4 times on rank 1; 3 times on rank 0"
    ]


def test_the_loader_is_torchs_own_again_after_a_run():
    before = DataLoader.__iter__
    simulate(lambda rank: loads(rank, sizes=(2, 2)), 2)
    assert DataLoader.__iter__ is before
    assert [len(batch[0]) for batch in DataLoader(TensorDataset(torch.ones(3, 1)), batch_size=2)] == [2, 1]


def test_what_a_rank_has_issued_beyond_the_meeting_is_not_counted():
    """Ranks 1 and 2 are alike, though one is further on."""

    def program(rank):
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2 if rank == 0 else 3 * rank)]
        for work in works:
            work.wait()
        if rank == 0:
            dist.barrier()

    (finding,) = simulate(program, 3).findings
    assert [text.partition(" was called ")[2] for text in labelled(finding, "counts")] == [
        "3 times on ranks 1, 2; 2 times on rank 0"
    ]
