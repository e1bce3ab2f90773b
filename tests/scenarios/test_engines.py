"""Engines: what a program that wraps a model in torch's DistributedDataParallel gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from ddpsim import UsageError, ddp, simulate
from ddpsim.scenarios import Scenario, run_scenario
from ddpsim.scenarios.engines import Engine, install_engine


def wraps(rank):
    """The type of a wrapper, and of a subclass's."""

    class Own(DistributedDataParallel):
        pass

    return type(DistributedDataParallel(torch.nn.Linear(2, 1))), Own(torch.nn.Linear(2, 1)).__class__.__mro__[1]


def types(engine):
    return run_scenario(Scenario("own", "", wraps, world_size=2), engine).returns[1]


def test_torchs_class_becomes_ours_and_subclasses_do_not():
    assert types("torch") == (DistributedDataParallel, DistributedDataParallel)
    assert types("ddp") == (ddp.DistributedDataParallel, DistributedDataParallel)
    assert types(Engine.DDP) == (ddp.DistributedDataParallel, DistributedDataParallel)


def test_the_class_is_as_before_afterwards_also_after_an_error():
    original = DistributedDataParallel.__init__

    def fails(rank):
        raise KeyboardInterrupt

    run_scenario(Scenario("own", "", fails, world_size=2), "ddp")
    assert DistributedDataParallel.__init__ is original
    with pytest.raises(ZeroDivisionError), install_engine(Engine.DDP):
        raise ZeroDivisionError
    assert DistributedDataParallel.__init__ is original
    assert simulate(wraps, 2).returns[0][0] is DistributedDataParallel


def test_an_option_that_our_engine_does_not_have():
    def program(rank):
        DistributedDataParallel(torch.nn.Linear(2, 1), mixed_precision=None, batched_grad_copy=True)

    result = run_scenario(Scenario("own", "", program, world_size=2), "ddp")
    expected = (
        "DistributedDataParallel got mixed_precision, batched_grad_copy, which this engine does not have: leave it "
        "out, or use torch's"
    )
    assert [str(error) for error in result.errors.values()] == [expected] * 2


def test_two_at_a_time_are_refused_in_another_thread_too_and_the_first_one_goes_on():
    def is_refused():
        with pytest.raises(UsageError, match="expected one at a time"), install_engine(Engine.DDP):
            pass
        return True

    with install_engine(Engine.DDP):
        assert is_refused()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(is_refused).result()
        assert simulate(wraps, 2).returns[0][0] is ddp.DistributedDataParallel


@pytest.mark.parametrize("engine", ["nothing", "", 3])
def test_unknown_engine(engine):
    with pytest.raises(UsageError, match=rf"^engine is {engine!r}, expected 'torch' or 'ddp': give one of these$"):
        run_scenario("send-send", engine)
