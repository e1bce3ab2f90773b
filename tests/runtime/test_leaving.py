"""Exceptions that were on their way out when the run ended: a `finally`, an `__exit__` or a handler communicates."""

import contextlib
import sys

import pytest
import torch
import torch.distributed as dist

from ddpsim import Code, Verdict, simulate


class Closing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        dist.broadcast(torch.ones(3), 0)


@contextlib.contextmanager
def bracket():
    try:
        yield
    finally:
        dist.barrier()


def steps(rank):
    for step in range(3):
        if rank == 2 and step == 1:
            raise KeyError("batch")
        dist.all_reduce(torch.ones(2))


def in_finally(rank):
    try:
        steps(rank)
    finally:
        dist.barrier()


def in_exit(rank):
    with Closing():
        steps(rank)


def in_generator(rank):
    with bracket():
        steps(rank)


def in_handler_that_raises_again(rank):
    try:
        steps(rank)
    except KeyError:
        dist.barrier()
        raise


def in_inner_finally_of_a_caught_one(rank):
    try:
        next(iter(()))
    except StopIteration:
        in_finally(rank)


@pytest.mark.parametrize(
    "program",
    [in_finally, in_exit, in_generator, in_handler_that_raises_again, in_inner_finally_of_a_caught_one],
    ids=lambda program: program.__name__,
)
def test_the_exception_leads_and_what_its_cleanup_met_is_its_consequence(program):
    first, second = simulate(program, 4).findings
    assert (first.code, first.ranks) == (Code.RANK_ERROR, (2,))
    assert first.summary.startswith("rank 2 raised KeyError: 'batch' at test_leaving.py:")
    assert "rank 2 raised this exception, and code that ran after it" in first.text
    assert "left the program" not in first.text
    assert (second.code, second.ranks) == (Code.MISMATCH_OPERATION, (2,))
    assert "rank 2 raised KeyError, and code that ran after the exception" in second.text
    assert "another branch" not in second.text


def test_ranks_that_are_processes_tell_it_as_threads_do():
    here, there = (simulate(in_exit, 4, isolation=each).findings for each in ("thread", "process"))
    assert [str(each.body) for each in here] == [str(each.body) for each in there]


def test_a_deadlock_of_a_cleanup_follows_the_exception():
    def program(rank):
        group = dist.new_group([0, 1])
        try:
            if rank == 1:
                raise ValueError("bad sample")
            dist.all_reduce(torch.ones(2))
        finally:
            if rank == 1:
                dist.barrier(group)

    first, second = simulate(program, 2).findings
    assert (first.code, first.ranks) == (Code.RANK_ERROR, (1,))
    assert (second.code, second.ranks) == (Code.DEADLOCK_CYCLE, (1,))
    assert "rank 1 raised ValueError, and code that ran after the exception" in second.text


def caught(rank):
    batches = iter(range(2 + (rank != 2)))
    while True:
        try:
            next(batches)
        except StopIteration:
            dist.barrier()
            break
        dist.all_reduce(torch.ones(2))


def after_a_caught_one(rank):
    try:
        raise KeyError(rank)
    except KeyError:
        try:
            dist.barrier() if rank == 2 else dist.all_reduce(torch.ones(2))
        finally:
            pass


@pytest.mark.parametrize("program", [caught, after_a_caught_one], ids=lambda program: program.__name__)
def test_an_exception_that_was_caught_is_no_error_of_the_rank(program):
    (finding,) = simulate(program, 4).findings
    assert (finding.code, finding.ranks) == (Code.MISMATCH_OPERATION, (2,))
    assert "another branch" in finding.text


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_plain_exit_is_a_return(isolation):
    def program(rank):
        dist.barrier()
        sys.exit(0 if rank else None)

    result = simulate(program, 2, isolation=isolation)
    assert result.verdict is Verdict.PASS
    assert not result.findings
    assert not result.errors
