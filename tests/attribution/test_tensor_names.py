"""Tensors that a program goes through in another order on each rank: they meet others of another name, in silence."""

import gc
import threading
import weakref
from collections import defaultdict
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Verdict, simulate
from tests.kit.results import codes
from tests.kit.small_training import backward, network, sgd

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")


def order(rank, names, *, differs):
    return sorted(names, reverse=differs and rank == 1)


def metrics(rank, *, differs, kind=dict):
    values = kind()
    values |= {"loss": torch.tensor([1.0]), "norm": torch.tensor([100.0])}
    for key in order(rank, values, differs=differs):
        dist.all_reduce(values[key])


def numbers(rank, *, differs):
    names = order(rank, {"loss", "norm"}, differs=differs)
    for key in names:
        dist.all_reduce(torch.tensor([float(len(key))]))


class Trainer:
    def __init__(self):
        self.parts = torch.nn.ModuleDict({"body": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)})
        self.sums = {"body": torch.ones(1), "head": torch.ones(1)}

    def synchronise(self, names):
        for name in names:
            reduce(self.sums[name])

    def broadcast(self, names):
        for name in names:
            dist.broadcast(self.parts[name].weight.data, 0)


def reduce(tensor):
    dist.all_reduce(tensor)


def trainer(rank, *, differs, does):
    getattr(Trainer(), does)(order(rank, ("body", "head"), differs=differs))


def equal_gradients(rank, *, differs):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    for index in order(rank, (0, 1), differs=differs):
        dist.all_reduce(model[index].weight.grad)


def optimizer_state(rank, *, differs):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizer = sgd(model, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    del model
    states = list(optimizer.state.values())
    for index in order(rank, (0, 2), differs=differs):
        dist.all_reduce(states[index]["momentum_buffer"])


def gathered(rank, *, differs, does):
    values = {"loss": torch.tensor([1.0, 2.0]), "norm": torch.tensor([100.0, 200.0])}
    outputs = [torch.zeros(2) for _ in range(2)]
    for key in order(rank, values, differs=differs):
        value = values[key]
        if does == "all_gather":
            dist.all_gather(outputs, value)
        elif does == "all_gather_into_tensor":
            dist.all_gather_into_tensor(torch.zeros(4), value)
        elif does == "gather":
            dist.gather(value, outputs if rank == 0 else None)
        elif does == "reduce_scatter_tensor":
            dist.reduce_scatter_tensor(torch.zeros(1), value)
        else:
            dist.all_gather_object([None, None], value.tolist())


def coalesced(rank, *, differs):
    values = {"loss": torch.tensor([1.0]), "norm": torch.tensor([100.0])}
    dist.all_reduce_coalesced([values[key] for key in order(rank, values, differs=differs)])


def managed(rank, *, differs):
    values = {"loss": torch.tensor([1.0]), "norm": torch.tensor([100.0])}
    with dist.distributed_c10d._coalescing_manager():
        for key in order(rank, values, differs=differs):
            dist.all_reduce(values[key])


def in_a_thread(rank, *, differs):
    thread = threading.Thread(target=metrics, args=(rank,), kwargs={"differs": differs}, name="logger")
    thread.start()
    thread.join()


def gathered_parameters(rank, *, differs):
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)})
    for name in order(rank, ("body", "head"), differs=differs):
        dist.all_gather([torch.zeros(2, 2) for _ in range(2)], model[name].weight.data)


def in_turn(rank, *, differs):
    """A part at each step, in turn; a rank that is one step ahead ends one ahead, too."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
    for step in range(4):
        dist.all_reduce(model[(step + (differs and rank == 1)) % 3].weight.data)


def log(name, value):
    total = torch.tensor([value])
    dist.all_reduce(total)


def logged(rank, *, differs):
    """A metric of even labels and one of odd ones; the ranks have not equally many of them (Lightning#21409)."""
    for step in range(3):
        log("loss", 1.0)
        log("odd" if differs and (rank + step) % 2 else "even", 0.5)


SILENT = {
    "parameters in turn": (in_turn, "mismatch.origin", "0.weight of rank 0 is matched with 1.weight of rank 1"),
    "metrics": (metrics, "hazard.tensor_order", "values['loss'] of rank 0 is matched with values['norm'] of rank 1"),
    "defaultdict": (partial(metrics, kind=defaultdict), "hazard.tensor_order", "values['loss'] of rank 0 is matched"),
    "numbers": (numbers, "hazard.tensor_order", "key 'loss' of rank 0 is matched with key 'norm' of rank 1"),
    "an argument": (logged, "hazard.tensor_order", "name 'even' of rank 0 is matched with name 'odd' of rank 1"),
    "a helper": (partial(trainer, does="synchronise"), "hazard.tensor_order", "self.sums['body'] of rank 0 is matched"),
    "parameters": (partial(trainer, does="broadcast"), "mismatch.origin", "body.weight of rank 0 is matched with"),
    "gradients": (equal_gradients, "mismatch.origin", "gradient of 0.weight of rank 0 is matched with gradient of 1."),
    **{
        name: (partial(gathered, does=name), "hazard.tensor_order", "['loss'] of rank 0 is matched with")
        for name in ("all_gather", "all_gather_into_tensor", "gather", "reduce_scatter_tensor")
    },
    "objects": (partial(gathered, does="objects"), "hazard.tensor_order", "key 'loss' of rank 0 is matched with"),
    "a list": (coalesced, "hazard.tensor_order", "values['loss'] of rank 0 is matched with values['norm'] of rank 1"),
    "a manager": (managed, "hazard.tensor_order", "values['loss'] of rank 0 is matched with values['norm'] of rank 1"),
    "a thread": (in_a_thread, "hazard.tensor_order", "values['loss'] of rank 0 is matched with values['norm'] of rank"),
    "parameters side by side": (gathered_parameters, "hazard.tensor_order", "body.weight of rank 0 is matched with"),
    "state": (optimizer_state, "mismatch.origin", "momentum_buffer of parameter 0 of rank 0 is matched with"),
}


@pytest.mark.parametrize("name", SILENT)
def test_found(name):
    program, code, words = SILENT[name]
    result = simulate(partial(program, differs=True), 2)
    assert codes(result) == [(code, (0, 1))]
    assert words in result.findings[0].summary
    assert result.verdict is (Verdict.FAIL if code == "mismatch.origin" else Verdict.PASS)


def counted(rank, does, op=dist.ReduceOp.SUM):
    for _ in range(2):
        right = torch.tensor(1.0 + rank)
        counts = {"right": right, "all": torch.tensor(4.0), "sure": right.clone() if does == "clone" else right}
        for name, value in counts.items():
            if does != "leave out" or name != "sure":
                dist.all_reduce(value, op)
            if does == "divide":
                value /= 2


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.tier("ci"))])
@pytest.mark.parametrize("does", ["nothing else", "clone", "leave out", "divide", "maximum", "inference"])
def test_a_tensor_with_two_names_that_is_summed_for_both_is_noted(does, isolation):
    program = partial(counted, does=does, op=dist.ReduceOp.MAX if does == "maximum" else dist.ReduceOp.SUM)
    if does == "inference":
        program = torch.inference_mode()(program)
    result = simulate(program, 2, isolation=isolation)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())
    text = "counts['right'] and counts['sure'] are one tensor, which all_reduce at test_tensor_names.py:"
    assert [note.startswith(text) and note.endswith(" has summed twice") for note in result.notes] == (
        [True] * (does == "nothing else")
    )


def test_a_buffer_that_is_summed_often_is_not_noted():
    def program(rank):
        buffers = {"small": torch.ones(2), "large": torch.ones(8)}
        for buffer in (*buffers.values(), buffers["large"]):
            dist.all_reduce(buffer)

    assert simulate(program, 2).notes == ()


@pytest.mark.parametrize("differs", [False, True])
def test_at_a_line_that_is_passed_often(differs):
    def program(rank):
        values = {name: torch.ones(1) for name in "abc"}
        for _ in range(100):
            for name in order(rank, values, differs=differs):
                dist.all_reduce(values[name])

    assert codes(simulate(program, 2)) == [("hazard.tensor_order", (0, 1))] * differs


@pytest.mark.parametrize("name", SILENT)
def test_in_one_order(name):
    assert codes(simulate(partial(SILENT[name][0], differs=False), 2)) == []


def own_choice(rank):
    """Each rank brings its best, whatever it is called."""
    values = {"a": torch.tensor([float(rank)]), "b": torch.tensor([float(1 - rank)])}
    dist.all_reduce(values["a" if rank else "b"], dist.ReduceOp.MAX)


def own_names(rank):
    names = [f"rank{rank}", f"other{rank}"]
    for name in names:
        values = {name: torch.ones(1)}
        dist.all_reduce(values[name])


def own_devices(rank):
    for _ in range(3):
        log(f"cuda:{rank}", 1.0)
        log("best", 1.0)


def own_best(rank):
    """Each rank brings its best, whatever it is called, and no rank adds them up."""

    def reduce_best(name):
        dist.all_reduce(torch.ones(1), dist.ReduceOp.MAX)

    for step in range(3):
        reduce_best("even" if (rank + step) % 2 else "odd")


def with_odd_objects(rank):
    class Odd:
        __class__ = property(lambda self: 1 / 0)

        def __eq__(self, other):
            raise ArithmeticError

    odd, several = Odd(), [Odd(), "word"]
    word = "word"
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    return odd is several or word


def wrapped(rank):
    model = DistributedDataParallel(network())
    for name in ("train", "test"):
        backward(model, rank)
        dist.all_reduce(torch.ones(1))
        assert name


def borders(rank):
    """What leaves on the left arrives on the right."""
    sent = {"left": torch.tensor([1.0]), "right": torch.tensor([2.0])}
    received = {"left": torch.zeros(1), "right": torch.zeros(1)}
    for side, other in (("left", "right"), ("right", "left")):
        operations = [dist.P2POp(dist.isend, sent[side], 1 - rank), dist.P2POp(dist.irecv, received[other], 1 - rank)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    assert [each.item() for each in received.values()] == [2.0, 1.0]


def own_shards(rank):
    """Each rank brings the parameters that it owns, as optimizers do whose state is sharded."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2, bias=False) for _ in range(4)])
    for step in range(2):
        outputs = [torch.zeros(2, 2) for _ in range(2)]
        dist.all_gather(outputs, model[2 * step + rank].weight.data)


def tuple_of_metrics(rank):
    loss, accuracy = torch.tensor([1.0]), torch.tensor([0.5])
    for value in (loss, accuracy) if rank == 0 else (accuracy, loss):
        dist.all_reduce(value)  # nobody knows what they are called


def flat_buffer(rank):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    part = torch.zeros(flat.numel() // 2)
    for _ in range(12):
        dist.reduce_scatter_tensor(part, flat)
        dist.all_gather_into_tensor(flat, part)
        dist.reduce_scatter(part, list(flat.chunk(2)))


def a_part_for_each(rank):
    parts = {"mine": torch.ones(1), "yours": torch.zeros(1)}
    dist.reduce_scatter(torch.zeros(1), [parts[name] for name in order(rank, parts, differs=True)])


def some_without_a_name(rank):
    values = {"loss": torch.ones(1)}
    for _ in range(2):
        dist.all_reduce_coalesced([values["loss"], torch.ones(1)] if rank else [torch.ones(1), values["loss"]])


def threads_that_take_turns(rank):
    """Two loggers, each with a group of its own and its own names."""
    groups = {name: dist.new_group() for name in ("train", "test")}

    def log(name):
        for key in ("loss", "norm"):
            dist.all_reduce({key: torch.ones(1)}[key], group=groups[name])

    threads = [threading.Thread(target=log, args=(name,), name=name) for name in groups]
    for thread in threads if rank == 0 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()


LEGAL = [
    own_choice,
    own_names,
    own_devices,
    own_best,
    with_odd_objects,
    wrapped,
    borders,
    own_shards,
    tuple_of_metrics,
    flat_buffer,
]


@pytest.mark.parametrize("program", [*LEGAL, a_part_for_each, some_without_a_name, threads_that_take_turns])
def test_what_a_program_may_do(program):
    result = simulate(program, 2)
    assert result.verdict is Verdict.PASS, str(result)
    assert "hazard.tensor_order" not in {str(each.code) for each in result.findings}


def reduces_a_stack(rank, values):
    for key in sorted(values):
        values[key] *= 1.0
    dist.all_reduce(torch.stack(list(values.values())))
    return {key: len(key) for key in values}


def reduces_what_it_looked_for(rank, values):
    for key in sorted(values, reverse=rank == 0):
        if len(key) > 0:
            break
    dist.all_reduce(torch.ones(len(key)))


def reduces_each(rank, values):
    for key in sorted(values, reverse=rank == 0):
        dist.all_reduce(torch.ones(len(key)))


def reduces_what_was_bound_twice(rank, values):
    for key in sorted(values):
        values[key] *= 1.0
    key = max(values, key=len)
    dist.all_reduce(torch.ones(len(key)))


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (reduces_a_stack, False),
        (reduces_what_it_looked_for, True),
        (reduces_each, True),
        (reduces_what_was_bound_twice, True),
    ],
)
def test_the_variable_of_a_loop_that_has_ended_names_nothing(program, named):
    """A stack of what a loop has read is no single entry; one that it looked for, or that was chosen later, is."""
    keys = [{"cls": torch.ones(()), "extra": torch.ones(())}, {"cls": torch.ones(())}]
    (finding,) = simulate(lambda rank: program(rank, dict(keys[rank])), 2).findings
    assert finding.code == "mismatch.shape"
    assert ("key 'extra' on rank 0 against key 'cls' on rank 1" in finding.text) is named
    assert (
        "each rank passed a different shape to the same call, as where entries of a stack or a batch are missing, or "
        "this line's calls come in another order there" in finding.text
    ) is not named
    lacks = (
        "let every rank have the same tensors, zeros for one that it lacks, and go through them in one order"
        if (named)
        else "pass the same shape on every rank of the group, with zeros for what a rank lacks, and in one order"
    )
    assert lacks in finding.text


def test_looking_keeps_nothing_alive():
    def program(rank):
        values, kept = {"a": torch.ones(1)}, torch.ones(2)
        watched = weakref.ref(kept)
        dist.all_reduce(values["a"])
        del kept
        gc.collect()
        return watched() is None

    assert simulate(program, 2).returns == (True, True)


@pytest.mark.tier("ci")
def test_ranks_as_processes():
    for name in ("metrics", "gradients"):
        program = partial(SILENT[name][0], differs=True)
        threads, processes = (simulate(program, 2, isolation=each).findings for each in ("thread", "process"))
        assert [each.body for each in processes] == [each.body for each in threads]
