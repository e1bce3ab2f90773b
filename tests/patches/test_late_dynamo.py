"""torch's compiler is loaded when a program compiles, and then is what it would have been: with and without."""

import subprocess
import sys

import pytest

from tests.tiers import sweep

pytestmark = pytest.mark.tier("ci")  # a fresh interpreter each

PROGRAM = """
import sys
import torch
from torch.nn.parallel import DistributedDataParallel
from ddpsim import simulate

def is_loaded():
    return "torch._dynamo.eval_frame" in sys.modules

def train(rank):
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]

def compiled(rank):
    graphs = []
    def keep(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op != "placeholder"])
        return graph
    torch._dynamo.reset()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    @torch.compile(backend=keep)
    def step(x):
        loss = model(x).square().mean()
        optimizer.zero_grad()  # breaks the graph: it is disabled
        return loss * 2
    return step(torch.ones(2, 4)).tolist(), [list(map(str, graph)) for graph in graphs]
"""


def run(script):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


SHOWN = """
for program in (train, compiled, train, compiled):
    result = simulate(program, 2)
    print(is_loaded(), result.errors, result.trace.digest(), result.returns)
"""


@pytest.mark.parametrize("is_there", sweep([False, True], lambda is_there: not is_there))
def test_a_training_loads_none_and_what_compiles_is_the_same_as_with_it_loaded_before(is_there):
    late = run(("import torch._dynamo.eval_frame\n" if is_there else "") + SHOWN)
    assert [line.split()[0] for line in late] == [str(is_there), "True", "True", "True"]
    first, second, *again = [line.partition(" ")[2] for line in late]
    assert [first, second] == again
    assert len(set(late[1].partition("[[")[2].split("'"))) > 4  # graphs were made, on both sides of the optimizer


ASKED = """
def asks(rank):
    global torch
    train(rank)
    late = sys.modules["torch._dynamo"]
    add = torch.optim.Optimizer.add_param_group.__wrapped__
    print(torch._dynamo is late, getattr(add, "__dynamo_disable") is add, is_loaded())
    print([name for name in ("__file__", "__name__", "__spec__") if not getattr(late, name)], is_loaded())
    {look}
    print(is_loaded(), type(late) is type(sys), sys.modules["torch._dynamo"] is late)
    print(getattr(add, "__dynamo_disable")._torchdynamo_disable)
    from torch._dynamo.utils import get_optimize_ddp_mode
    print(get_optimize_ddp_mode(), torch._dynamo.graph_break(), torch._dynamo.trace_rules.clear_lru_cache())
    from ddpsim import simulator
    print(any(simulator.__file__.startswith(folder) for folder in torch._dynamo.trace_rules.SKIP_DIRS))
    torch._dynamo.config.optimize_ddp = "python_reducer"
    print(DistributedDataParallel(torch.nn.Linear(1, 1))._use_python_reducer)

result = simulate(asks, 1)
result.raise_for_verdict()
print(result.errors, is_loaded())
"""


@pytest.mark.parametrize(
    "look",
    sweep(
        [
            "torch._dynamo.graph_break",  # the program's own question, not torch's
            "import torch._dynamo.config",
            "torch._dynamo.own = 1",
        ],
        lambda look: look.endswith("graph_break"),
    ),
)
def test_who_looks_at_it_has_it_whole(look):
    assert run(ASKED.format(look=look)) == [
        "True True False",
        "[] False",
        "True True True",
        "True",
        "ddp_optimizer None None",  # what is answered without it is what it answers
        "True",
        "True",  # and what was changed in it holds
        "{} True",
    ]


def test_after_a_run_that_needed_none_it_was_never_imported():
    script = """
kept = []
def keeps(rank):
    train(rank)
    kept.append(torch._dynamo)
simulate(keeps, 2)
add = torch.optim.Optimizer.add_param_group.__wrapped__
print(is_loaded(), "torch._dynamo" in sys.modules, "_dynamo" in vars(torch), hasattr(add, "__dynamo_disable"))
print(sys.meta_path[0].__module__.startswith("ddpsim"))
torch.optim.SGD([torch.zeros(1)], lr=0.1)
print(is_loaded(), getattr(add, "__dynamo_disable")._torchdynamo_disable, kept[0].config is torch._dynamo.config)
"""
    assert run(script) == ["False False False False", "False", "True True True"]


SLOWLY = """
import time
from ddpsim import Budget

def compiles_slowly(rank):
    def backend(graph, inputs):
        time.sleep(1.0)  # lets the other rank run, in the middle of a compilation
        return graph
    return torch.compile(lambda x: x * 2 + rank, backend=backend)(torch.ones(1)).item(), time.monotonic()

kept = []
for _ in range(2):
    result = simulate(compiles_slowly, 2, alike=True, budget=Budget(stuck_seconds=5.0))
    values, ends = zip(*result.returns)
    print(result.findings, values, max(ends))
    kept.append(torch._dynamo.convert_frame.compile_lock)
print({type(each).__module__ for each in kept}, kept[0] is kept[1])
"""


def test_a_rank_that_waits_for_another_to_compile_lets_it_run():
    # One compiles after the other, in a second each, whether the run has loaded the compiler or found it.
    assert run(SLOWLY) == ["() (2.0, 3.0) 2.0"] * 2 + ["{'_thread'} True"]
