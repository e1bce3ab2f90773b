"""What the public functions cannot work with: one clear line each, and the process stays as it was."""

import os
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim import Budget, Crash, Delay, UsageError, Verdict, replay, simulate
from ddpsim.simulator.policies.named import RUNNING
from tests.exploration.programs import add_up
from tests.kit.leftovers import no_thread_is_left
from tests.kit.results import returned
from tests.kit.rows import rows


def process_state():
    """What a simulation replaces or might leave behind."""
    return {
        "world": distributed_c10d._world,
        "init_process_group": dist.init_process_group,
        "new group": distributed_c10d._new_process_group_helper,
        "future wait": torch._C.Future.wait,
        "torch threads": torch.get_num_threads(),
        "torch generator": torch.get_rng_state().tolist(),
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "warnings": list(warnings.filters),
        "initialised": dist.is_initialized(),
    }


@pytest.fixture(autouse=True)
def _process_is_left_as_it_was():
    before = process_state()
    with no_thread_is_left():
        yield
    assert process_state() == before
    assert simulate(add_up, 3).returns == (3, 3, 3)


@rows("world_size", [0, -1, 2.0, "4", None, True, 16_385, 100_000_000])
def test_world_size(world_size):
    # A system has no threads for more.
    expected = f"world_size is {world_size!r}, expected a whole number from 1 to 16384: correct it"
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        simulate(add_up, world_size)


@pytest.mark.parametrize("program", [None, 3, "train"])
def test_program_that_is_not_callable(program):
    expected = f"program is {program!r}, expected a function that takes a rank: pass the function itself"
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        simulate(program, 2)
    with pytest.raises(UsageError, match=f"^{re.escape(expected)}$"):
        replay(program, 2, "s1:0:00000000")


@rows(
    ("arguments", "message"),
    [
        ({"policy": "fair"}, rf"policy is 'fair', expected one of {', '.join(RUNNING)}: give one of these names"),
        ({"policy": 3}, r"policy is 3, expected a name or an object with choose\(point, options\).*"),
        ({"policy": Budget}, r"policy is <class.*"),
        ({"transport": "pigeon"}, r"transport is 'pigeon', expected .*"),
        ({"check": "everything"}, r"check is 'everything', expected one of replicas, replicas-if-any, reference: .*"),
        ({"args": 5}, r"args is 5, expected a sequence of arguments: .*"),
        ({"args": "ab"}, r"args is 'ab', expected a sequence of arguments: .*"),
        ({"budget": 5}, r"budget is 5, expected a Budget: .*"),
        ({"faults": Crash(0, 0)}, r"faults is Crash\(.*"),
        ({"faults": ["crash"]}, r"faults has 'crash', expected Crash, Delay or EarlyReturn values.*"),
        ({"faults": [Crash("0", 0)]}, r"Crash\(rank='0', before_call=0, .*\) has a rank or call.*"),
        ({"faults": [Crash(3, 0)]}, r"Crash\(rank=3, .*\) names rank 3, expected 0 to 2: correct the rank"),
        ({"faults": [Crash(0, -1)]}, r"Crash\(.*\) has before_call -1, expected 0 or more: calls count from 0"),
        ({"faults": [Delay(0, 0, -1.0)]}, r"Delay\(.*\) has -1.0 seconds, expected a finite number.*"),
        ({"faults": [Delay(0, 0, float("inf"))]}, r"Delay\(rank=0, before_call=0, seconds=inf\) has inf seconds.*"),
    ],
)
def test_another_argument_gets_one_line(arguments, message):
    with pytest.raises(UsageError, match=f"^{message}$") as caught:
        simulate(add_up, 3, **arguments)
    assert "\n" not in str(caught.value)


def test_budget_of_nothing():
    with pytest.raises(UsageError, match=r"^Budget\(steps=0\), expected more than 0"):
        Budget(steps=0)


def test_inside_a_rank():
    def program(rank):
        with pytest.raises(UsageError, match=r"inside a rank.*: call simulate outside ranks"):
            simulate(add_up, 2)
        return add_up(rank)

    assert simulate(program, 2).returns == (1, 1)


def test_while_another_simulation_runs():
    def program(rank):
        if rank == 0:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(simulate, add_up, 2).exception()
        return None

    returns = returned(program, 2)
    assert isinstance(returns[0], UsageError)
    assert "\n" not in str(returns[0])


@pytest.fixture
def own_group():
    """A default group of this process, which is none of the simulator's business."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_where_torch_distributed_is_initialised(own_group):
    with pytest.raises(
        UsageError, match=r"^torch.distributed is already initialised in this process .*: call simulate"
    ):
        simulate(add_up, 2)
    assert dist.group.WORLD is own_group
    assert add_up(5) == 5


def errors_of(program, world_size=2, ranks=(0, 1)):
    """What the ranks raise, after checking that the findings say so."""
    result = simulate(program, world_size)
    assert result.verdict is Verdict.FAIL
    leading = result.findings[0]
    assert leading.code == "rank_error"
    first = next(iter(result.errors.values()))
    assert leading.ranks == tuple(rank for rank in ranks if str(result.errors[rank]) == str(first))
    assert tuple(sorted(result.errors)) == ranks
    assert str(result).splitlines()[-1] == f"  replay  {result.replay}"
    return [result.errors[rank] for rank in ranks]


def test_init_process_group_again():
    def program(rank):
        dist.init_process_group("gloo")

    for error in errors_of(program):
        assert isinstance(error, ValueError)
        assert re.fullmatch(
            r"trying to initialize the default process group twice! .*: leave .* out, or .*", str(error)
        )


def test_init_process_group_guarded():
    def program(rank):
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return add_up(rank)

    assert simulate(program, 2).returns == (1, 1)


def test_use_of_the_default_group_after_its_end():
    def program(rank):
        dist.destroy_process_group()
        dist.all_reduce(torch.ones(1))

    for error in errors_of(program):
        assert isinstance(error, ValueError)
        assert str(error).startswith("Default process group has not been initialized")


@rows("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_whatever_a_rank_raises_is_reported(kind):
    raised = kind("enough")

    def program(rank):
        if rank == 1:
            raise raised
        return add_up(rank)

    (error,) = errors_of(program, world_size=3, ranks=(1,))
    assert error is raised
    result = simulate(program, 3)
    assert [str(finding.code) for finding in result.findings] == ["rank_error", "deadlock.dead_rank"]
    assert result.findings[0].summary.startswith(f"rank 1 raised {kind.__name__}: enough at test_usage.py:")


def fails(rank, *arguments):
    if rank == 1:
        raise ValueError(arguments)


def test_replay_line_is_a_call_to_paste():
    result = simulate(fails, 2, args=(3, "a"), policy="random", seed=4, faults=[Crash(0, 9)], name="mine")
    assert result.replay == (
        f"replay(fails, 2, \"{result.schedule}\", args=(3, 'a'), "
        f"faults=[Crash(rank=0, before_call=9, message='injected crash')], name='mine')"
    )
    assert str(eval(result.replay)) == str(result)
    assert str(result.findings[0]).endswith(f"\n  replay  {result.replay}")
    without_options = simulate(fails, 2)
    assert without_options.replay == f'replay(fails, 2, "{without_options.schedule}")'
    result = simulate(lambda rank, tensor: fails(rank), 2, args=(torch.ones(2),))  # what text cannot give is left out
    assert result.replay == f'replay(program, 2, "{result.schedule}", args=...)'


def test_raise_for_verdict_gives_the_text_and_the_error():
    result = simulate(fails, 2)
    with pytest.raises(AssertionError) as caught:
        result.raise_for_verdict()
    assert str(caught.value) == str(result)
    assert caught.value.__cause__ is result.errors[1]
    assert simulate(add_up, 2).raise_for_verdict() is None


def test_large_arguments_are_not_written_out():
    class Unprintable:
        def __repr__(self):
            raise RuntimeError("no text")

    def program(rank, *arguments):
        return len(arguments)

    result = simulate(program, 1, args=(Unprintable(), [0.5] * 1_000_000, (1, "a"), [2]))
    assert result.returns == (4,)
    assert "args=..." in result.replay
    assert "args=((1, 'a'), [2])" in simulate(program, 1, args=((1, "a"), [2])).replay


def test_a_torch_that_is_too_old(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    with pytest.raises(
        UsageError, match=r"^torch is 2\.10\.1\+cpu, expected 2\.11 or newer: pip install 'torch>=2\.11'$"
    ):
        simulate(add_up, 2)


@pytest.mark.tier("ci")
@pytest.mark.parametrize(
    "words",
    [
        ("-c", "from ddpsim import simulate"),
        ("-c", "from ddpsim.scenarios import load"),
        ("-m", "ddpsim", "run", "uneven-linear"),
    ],
)
def test_a_torch_that_lacks_what_is_imported(words, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('__version__ = "2.4.0"\n')
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == (2 if "-m" in words else 1)
    assert ended.stderr.splitlines()[-1].endswith("torch is 2.4.0, expected 2.11 or newer: pip install 'torch>=2.11'")
    assert "During handling" not in ended.stderr
    assert "-m" not in words or ended.stderr.count("\n") == 1
