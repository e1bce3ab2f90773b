"""Two loops whose messages meet and one of which is longer: that is told, and not that sends come before receives."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from ddpsim import Verdict, simulate
from tests.kit.results import codes

from .ending import end

PIECE = torch.ones(2)


def pipeline(rank, *, batches):
    """Forwards there, then gradients back; all stages have as many micro-batches, or not."""
    last = dist.get_world_size() - 1
    for _ in range(batches[rank]):
        if rank > 0:
            dist.recv(PIECE.clone(), rank - 1)
        if rank < last:
            dist.send(PIECE, rank + 1)
    for _ in range(batches[rank]):
        if rank < last:
            dist.recv(PIECE.clone(), rank + 1)
        if rank > 0:
            dist.send(PIECE, rank - 1)


def ping_pong(rank, *, left_out):
    for turn in range(4):
        if rank == 0:
            dist.send(PIECE, 1)
            dist.recv(PIECE.clone(), 1)
        else:
            if turn != left_out:
                dist.recv(PIECE.clone(), 0)
            dist.send(PIECE, 0)


def at(program, *lines):
    return tuple(f"test_message_loops.py:{program.__code__.co_firstlineno + line}" for line in lines)


def cause_of(program, world_size):
    (finding,) = simulate(program, world_size).findings
    assert finding.code == "deadlock.cycle"
    return end(finding)[0]


def test_the_stage_that_sends_more():
    sends, receives, back = at(pipeline, 7, 5, 12)
    assert cause_of(lambda rank: pipeline(rank, batches=(4, 2)), 2).startswith(
        f"rank 0 reached send at {sends} 3 times, and rank 1 reached recv at {receives} 2 times and "
        f"continued at {back}; a send waits for its recv: either both send before they receive, or one of two loops "
    )


def test_stages_that_send_before_they_receive_are_not_told_that_a_loop_is_longer_alone():
    def forward():
        dist.send(PIECE, 1)

    def one_f_one_b(rank):
        if rank == 0:
            forward()
        for _ in range(2):
            if rank == 0:
                forward()  # of the next micro-batch, before it takes the gradient of this one
                dist.recv(PIECE.clone(), 1)
            else:
                dist.recv(PIECE.clone(), 0)
                dist.send(PIECE, 0)

    assert "either both send before they receive, or one of two loops is longer" in cause_of(one_f_one_b, 2)


def test_the_stage_that_receives_more():
    receives, sends, back = at(pipeline, 5, 7, 10)
    assert cause_of(lambda rank: pipeline(rank, batches=(1, 3)), 2).startswith(
        f"rank 1 reached recv at {receives} 2 times, and rank 0 reached send at {sends} once and continued at {back}: "
    )


@pytest.mark.parametrize("batches", [(4, 3, 4), (2, 3, 3), (3, 3, 2)])
def test_longer_pipelines(batches):
    assert "one of two loops is longer than the other" in cause_of(lambda rank: pipeline(rank, batches=batches), 3)


def test_a_collective_of_the_loop_that_a_rank_left_out():
    def stages(rank, returns_early=True):
        for _ in range(2):
            pipeline(rank, batches=(1, 1, 1))
            if not (returns_early and rank == 2):
                dist.all_reduce(PIECE.clone())

    (finding,) = simulate(stages, 3).findings
    assert finding.ranks == (2,)
    assert "where rank 2 never came: it left that call out, or one of two loops" in end(finding)[0]
    assert simulate(lambda rank: stages(rank, returns_early=False), 3).verdict is Verdict.PASS


def test_a_branch_that_leaves_one_out():
    assert "reached send" in cause_of(lambda rank: ping_pong(rank, left_out=2), 2)


@pytest.mark.parametrize("batches", [(3, 3), (2, 2, 2)])
def test_stages_with_as_many_micro_batches_pass(batches):
    assert simulate(lambda rank: pipeline(rank, batches=batches), len(batches)).verdict is Verdict.PASS
    assert simulate(lambda rank: ping_pong(rank, left_out=None), 2).verdict is Verdict.PASS


def test_an_order_that_was_wrong_from_the_start_is_told_as_that():
    def program(rank):
        for _ in range(3):
            dist.send(PIECE, 1 - rank)
            dist.recv(PIECE.clone(), 1 - rank)

    assert cause_of(program, 2).startswith("every rank of the cycle sends before it receives, or instead, and a send ")


@pytest.mark.parametrize("wrong", [True, False])
def test_a_server_that_answers_another_rank_does_not_send_before_it_receives(wrong):
    def program(rank):
        if rank == 0:
            source = dist.recv(PIECE.clone())
            dist.send(PIECE, 3 - source if wrong else source)
            dist.send(PIECE, dist.recv(PIECE.clone()))
        else:
            dist.send(PIECE, 0)
            dist.recv(PIECE.clone(), 0)

    if wrong:
        assert cause_of(program, 3).startswith("not known: ")
    else:
        assert simulate(program, 3).verdict is Verdict.PASS


def test_stages_of_torch_that_cut_the_batch_otherwise():
    def program(rank):
        stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, n_microbatches=(5, 4)[rank], loss_fn=torch.nn.functional.mse_loss)
        for _ in range(2):
            schedule.step(*[torch.ones(8, 4)] * (rank == 0), target=torch.ones(8, 4))

    result = simulate(program, 2)
    assert codes(result) == [("mismatch.shape", (0, 1))]
    assert "they split the batch into different numbers of micro-batches" in end(result.findings[0])[0]
