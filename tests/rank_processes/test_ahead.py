"""Ranks compute beside each other, and nobody can tell from what is said of the run."""

import ctypes
import mmap
import os
import pickle
import signal
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Budget, Code, Verdict, explore, simulate
from ddpsim.scenarios.cli.commands import main
from ddpsim.simulator.rank_processes.coordinator import RankCoordinator
from tests.tiers import sweep

BOTH = (False, True)
"""`one_at_a_time`."""

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: ranks run one at a time")


def told(result):
    """All that a run says."""
    findings = [(finding.code, finding.ranks, finding.body) for finding in result.findings]
    errors = {rank: repr(error) for rank, error in result.errors.items()}
    return result.trace.digest(), str(result.schedule), result.verdict, findings, errors, result.waiting


def both(program, world_size=2, **options):
    """A run with ranks that compute beside each other, and one at a time."""
    return [simulate(program, world_size, isolation="process", one_at_a_time=one, **options) for one in BOTH]


def training(rank):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.001)
    torch.manual_seed(rank)
    for step in range(4):
        model.zero_grad()
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        print(f"rank {rank}, step {step}: {float(loss.detach()):.6f}")
    return float(sum(parameter.detach().sum() for parameter in model.parameters()))


@pytest.mark.tier("ci")
@pytest.mark.parametrize("policy", ["round_robin", "random"])
@pytest.mark.parametrize("runs", [1, pytest.param(20, marks=pytest.mark.tier("nightly"))])
def test_the_same_is_told_and_printed(runs, policy, capfd):
    threads = simulate(training, 3, policy=policy, seed=3)
    capfd.readouterr()
    one = simulate(training, 3, isolation="process", one_at_a_time=True, policy=policy, seed=3)
    printed = capfd.readouterr()
    assert len(printed.out.splitlines()) == 12
    assert one.trace.digest() == threads.trace.digest()
    for _ in range(runs):
        beside = simulate(training, 3, isolation="process", policy=policy, seed=3)
        assert told(beside) == told(one)
        assert beside.returns == one.returns
        assert capfd.readouterr() == printed


def test_ranks_compute_beside_each_other():
    begun = mmap.mmap(-1, mmap.PAGESIZE)

    def meet(rank, patience):
        dist.barrier()
        begun[rank] = 1
        for _ in range(patience):
            if begun[1 - rank]:
                return True
            ctypes.CDLL(None).usleep(1000)
        return False

    assert simulate(meet, 2, args=(20_000,), isolation="process").returns == (True, True)
    begun[:2] = bytes(2)
    assert simulate(meet, 2, args=(50,), isolation="process", one_at_a_time=True).returns in (
        (False, True),
        (True, False),
    )


def test_files_are_found_as_when_ranks_take_turns(tmp_path):
    def program(rank):
        (path := tmp_path / "who").touch()
        found = path.read_text(), len(list(tmp_path.iterdir())), (tmp_path / f"{rank - 1}").exists()
        path.write_text(f"{found[0]}{rank}")
        (tmp_path / str(rank)).mkdir()
        return found

    result = simulate(program, 4, isolation="process")
    assert result.returns == (("", 1, False), ("0", 2, True), ("01", 3, True), ("012", 4, True))


def test_functions_of_os_are_still_known_by_name():
    def program(rank):
        return pickle.loads(pickle.dumps(os.stat)) is os.stat, os.stat in os.supports_fd

    assert simulate(program, 1, isolation="process").returns == ((True, True),)


def test_who_went_too_far_is_not_heard(capfd):
    pairs = mmap.mmap(-1, mmap.PAGESIZE)

    def program(rank):
        pair = dist.new_group([0, 1])
        dist.barrier()
        print(rank, "begins")
        try:
            if rank == 2:
                pairs[0] = 1
                print(rank, "went on")
                return rank
            while not pairs[0]:  # until rank 2 has run ahead
                ctypes.CDLL(None).usleep(1000)
            dist.all_reduce(torch.ones(1 + rank), group=pair)
        finally:
            print(rank, "leaves")

    result = simulate(program, 3, isolation="process")
    assert [finding.code for finding in result.findings] == [Code.MISMATCH_SHAPE]
    assert result.returns == (None, None, None)
    assert "went on" not in capfd.readouterr().out


def kill(rank):
    os.kill(os.getpid(), signal.SIGKILL)


def leave(rank):
    print("on its way out")
    sys.exit(3)


def fail(rank):
    raise KeyError(rank)


@pytest.mark.parametrize(
    "end",
    sweep([kill, leave, fail, lambda rank: os._exit(4)], lambda end: end in (kill, leave)),
    ids=["killed", "exits", "raises", "_exit"],
)
def test_a_rank_that_ends_while_it_is_ahead(end, capfd):
    def program(rank):
        dist.barrier()
        if rank == 1:
            end(rank)
        dist.all_reduce(torch.ones(2))

    beside, one = both(program, 3)
    assert told(beside) == told(one)
    assert beside.findings[0].code is Code.RANK_ERROR


def test_a_rank_that_is_ahead_when_others_are_stuck():
    def program(rank):
        if rank == 0:
            ctypes.CDLL(None).sleep(60)
        while rank == 1:
            pass
        dist.barrier()

    result = simulate(program, 3, isolation="process", budget=Budget(stuck_seconds=0.3))
    assert [(finding.code, finding.ranks) for finding in result.findings] == [(Code.STUCK, (0,))]


def test_what_is_read_without_waiting_is_the_same_each_time():
    def program(rank):
        tensor, other = torch.ones(2), torch.ones(1)
        dist.all_reduce(tensor, async_op=True)
        read = [tensor.tolist()]
        dist.all_reduce(other)
        read.append(tensor.tolist())
        return read

    for result in both(program, 3):
        assert result.returns == ([[1, 1], [3, 3]],) * 3


@pytest.mark.parametrize(("words", "option"), [(["run"], []), (["explore", "--executions", "1"], ["--one-at-a-time"])])
def test_on_the_console(words, option, monkeypatch):
    asked = []

    def keep(coordinator, kernel, children, config, **options):
        asked.append(config.is_speculative)
        begin(coordinator, kernel, children, config, **options)

    begin = RankCoordinator.__init__
    monkeypatch.setattr(RankCoordinator, "__init__", keep)
    main([*words, "--isolation", "process", *option, "send-send"])
    assert set(asked) == {not option}


def test_an_exploration_is_the_same():
    def program(rank):
        if rank == 0:
            senders = [dist.recv(torch.zeros(1)) for _ in range(2)]
            assert senders == [1, 2], senders
        else:
            dist.send(torch.ones(1), 0)

    beside, one = [explore(program, 3, isolation="process", one_at_a_time=each) for each in BOTH]
    assert (beside.executions, beside.verdict) == (one.executions, one.verdict)
    assert beside.verdict is Verdict.FAIL
    assert told(beside.first_failure) == told(one.first_failure)
