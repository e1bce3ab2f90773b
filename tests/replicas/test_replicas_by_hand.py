"""check="replicas" where no optimizer of torch's steps, no wrapper is made, or nothing follows, and what it says."""

import linecache
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as TorchEngine

from ddpsim import Verdict, simulate
from ddpsim.ddp import DistributedDataParallel as OwnEngine
from tests.kit import small_training as training
from tests.kit.small_training import backward, inputs, network, sgd, train, wrap, wrapped
from tests.replicas.replica_checks import check

PARAMETERS, BUFFERS, GRADIENTS = "divergence.parameters", "divergence.buffers", "divergence.gradients"
OURS = pytest.mark.parametrize("engine", [TorchEngine, OwnEngine], ids=["torch", "ddp"])


def by_hand(rank, *, rates, in_data=False, steps=3):
    model = wrapped()
    for _ in range(steps):
        backward(model, rank)
        with torch.no_grad():
            for parameter in model.parameters():
                (parameter.data if in_data else parameter).sub_(rates[rank] * parameter.grad)
                parameter.grad = None


def changed_after_the_last_step(rank, *, on):
    model = wrapped()
    train(model, sgd(model), rank, 2)
    if rank == on:
        model.module[0].bias.data.add_(1)


def gradients_without_a_step(rank, *, factors):
    model = wrapped()
    backward(model, rank)
    for parameter in model.parameters():
        parameter.grad.mul_(factors[rank])


def a_window_that_is_not_reduced(rank):
    model = wrapped()
    for context in (model.no_sync, nullcontext, model.no_sync):
        with context():
            backward(model, rank)


def in_order(rank, *, names, are_buffers):
    inner = network()
    for name in names[rank]:
        if are_buffers:
            inner.register_buffer(name, torch.tensor(1.0))
        else:
            inner.register_parameter(name, torch.nn.Parameter(torch.tensor(1.0)))
    model = wrap(inner)
    model(inputs(rank))


def without_wrapper(rank, *, seeds, is_flat=False, has_optimizer=True, steps=3):
    model = network(seed=seeds[rank])
    optimizer = sgd(model)
    for _ in range(steps):
        model.zero_grad()
        backward(model, rank)
        gradients = [parameter.grad for parameter in model.parameters()]
        if is_flat:
            flat = torch.cat([each.flatten() for each in gradients])
            dist.all_reduce(flat)
            for each, part in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
                each.copy_(part.view_as(each))
        else:
            for each in gradients:
                dist.all_reduce(each)
        if has_optimizer:
            optimizer.step()
        else:
            for parameter in model.parameters():
                parameter.data -= 0.1 * parameter.grad


def flat_of_parts(rank, *, seeds):
    """Nothing calls the whole model, only its two layers."""
    torch.manual_seed(seeds[rank])
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.MSELoss()(model[1](model[0](torch.ones(2, 3)).relu()), torch.full((2, 1), rank + 5.0)).backward()
        together = torch.cat([each.grad.flatten() for each in model.parameters()])
        dist.all_reduce(together)
        torch.nn.utils.vector_to_parameters(together / 2, [each.grad for each in model.parameters()])
        optimizer.step()


def local_sgd(rank, *, every=2, divisors=(2, 2), steps=4, is_async=False, then=None, average_first=False):
    """Parameters are averaged every few steps; `then` does something with the model after each average."""
    model = network()
    optimizer = sgd(model)
    for step in range(1, steps + 1):
        model.zero_grad()
        backward(model, rank)
        if not average_first:
            optimizer.step()
        if step % every == 0:
            for parameter in model.parameters():
                before = parameter.detach().clone()
                work = dist.all_reduce(parameter.data, async_op=is_async)
                if work is not None:
                    work.wait()
                parameter.data /= divisors[rank]
                if then is not None:
                    then(rank, parameter.data, before)
        if average_first:
            optimizer.step()


def puts_back(rank, parameter, before):
    parameter.copy_(before)


def changes_a_row(rank, parameter, before):
    parameter[0].mul_(1 + rank)


def two_models(rank, *, differing=(), swapped=False):
    """Their parameters have the same names; `differing` are those that rank 1 made otherwise."""
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)]
    for index in differing if rank else ():
        models[index].weight.data.add_(1)
    for model in models:
        model(torch.ones(2, 3)).sum().backward()
    for model in reversed(models) if swapped and rank else models:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)


def flat(rank, *, seeds, writes=lambda gradient, part: gradient.copy_(part), divides=False, clips=False, dtype=None):
    """All gradients in one tensor, on which `writes` decides what comes of them; every rank has the same data."""
    model = network(seed=seeds[rank])
    optimizer = sgd(model)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model, 0)
        gradients = [parameter.grad for parameter in model.parameters()]
        together = torch.cat([each.flatten() for each in gradients]).to(dtype or torch.float32)
        if divides:
            together /= dist.get_world_size()
        dist.all_reduce(together, async_op=True).wait()
        for parameter, part in zip(
            model.parameters(), together.split([each.numel() for each in gradients]), strict=True
        ):
            writes(parameter.grad, part.view_as(parameter))
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()


def in_views(rank, *, seeds):
    """The gradients are parts of one tensor that lasts."""
    model = network(seed=seeds[rank])
    parameters = list(model.parameters())
    together = torch.zeros(sum(each.numel() for each in parameters))
    for parameter, part in zip(parameters, together.split([each.numel() for each in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    for _ in range(2):
        together.zero_()
        backward(model, rank)
        dist.all_reduce(together, async_op=True).wait()
        sgd(model).step()


def of_equal_size(rank, *, gradient=None, content=2.0):
    """Each rank has a model of its own; what is summed has as many elements as its gradients."""
    model = network(seed=rank)
    for _ in range(2):
        model.zero_grad(set_to_none=False)
        dist.all_reduce(torch.zeros(25))
        if gradient is None:
            backward(model, rank)
        else:
            model(inputs(rank))
            (gradient * sum(parameter.sum() for parameter in model.parameters())).backward()
        dist.all_reduce(torch.full((25,), content))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        sgd(model).step()


def at_the_place_of_a_gradient(rank):
    """The memory of a gradient that is gone holds something else."""
    model = network(seed=rank)
    memory = torch.zeros(16)
    model[0].weight.grad = memory.view(4, 4)
    backward(model, rank)
    dist.all_reduce(torch.zeros(3))
    sgd(model).step()
    model.zero_grad()
    dist.all_reduce(memory)
    backward(model, rank)
    sgd(model).step()


def tied_embedding(rank):
    """The first and the last stage of a pipeline share a table, under two names; nothing else is a replica."""
    torch.manual_seed(0)
    table = torch.nn.Parameter(torch.randn(3, 2))
    stage = torch.nn.Module()
    setattr(stage, "embedding" if rank == 0 else "head", table)
    stage.own = torch.nn.Parameter(torch.tensor(float(rank)))
    stage.forward = lambda: (table.sum() + stage.own) * (rank + 1)
    for _ in range(2):
        stage().backward()
        dist.all_reduce(table.grad)
        sgd(stage).step()
        stage.zero_grad()


def averaging(rank, *, every, steps, by_torch=False, momentum=0.0):
    model = wrapped()
    optimizer = sgd(model, momentum=momentum)
    averager = averagers.PeriodicModelAverager(period=every)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        with model.no_sync():
            backward(model, rank)
        optimizer.step()
        if by_torch:
            averager.average_parameters(model.parameters())
        elif step % every == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()


def stops_averaging(rank):
    averaging(rank, every=2, steps=4)
    model = wrapped()
    averaging_once = [True, False, False, False]
    for averages in averaging_once:
        with model.no_sync():
            train(model, sgd(model), rank, 1)
        if averages:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data, dist.ReduceOp.AVG)


AB, BA = "ab", "ba"
FOUND = {
    "a step by hand": (
        partial(by_hand, rates=(0.1, 0.2)),
        PARAMETERS,
        "when a forward of DDP #0 began, after its step 1",
    ),
    "of .data": (partial(by_hand, rates=(0.1, 0.2), in_data=True), PARAMETERS, "after its step 1"),
    "the last step": (partial(by_hand, rates=(0.1, 0.2), steps=1), PARAMETERS, "when the program had ended"),
    "afterwards": (partial(changed_after_the_last_step, on=1), PARAMETERS, "had ended, after step 2 of DDP #0"),
    "gradients": (partial(gradients_without_a_step, factors=(1, 2)), GRADIENTS, "after the backward of step 1"),
    "names of parameters": (partial(in_order, names=(AB, BA), are_buffers=False), PARAMETERS, "when DDP #0 was made"),
    "names of buffers": (partial(in_order, names=(AB, BA), are_buffers=True), BUFFERS, "when DDP #0 was made"),
    "averages that stop": (stops_averaging, PARAMETERS, "DDP #1"),
    "no wrapper": (partial(without_wrapper, seeds=(0, 1)), PARAMETERS, "after all_reduce #3 of gradients"),
    "one flat tensor": (partial(without_wrapper, seeds=(0, 1), is_flat=True), PARAMETERS, "after all_reduce #0 of"),
    "one flat tensor of parts": (partial(flat_of_parts, seeds=(0, 1)), PARAMETERS, "after all_reduce #0 of"),
    "the first of two models": (partial(two_models, differing=(0,)), PARAMETERS, "weight[0, 0] differs"),
    "the second of two models": (partial(two_models, differing=(1,)), PARAMETERS, "weight (2)[0, 0] differs"),
    "flat, equal on all": (partial(flat, seeds=(0, 1), dtype=torch.float64), PARAMETERS, "after all_reduce #0 of"),
    "flat, clipped": (partial(flat, seeds=(0, 1), clips=True), PARAMETERS, "after all_reduce #0 of"),
    "flat, divided before": (partial(flat, seeds=(0, 1), divides=True), PARAMETERS, "after all_reduce #0 of"),
    "flat, in half": (partial(flat, seeds=(0, 1), dtype=torch.bfloat16, divides=True), PARAMETERS, "all_reduce #0 of"),
    "flat, in views": (partial(in_views, seeds=(0, 1)), PARAMETERS, "after all_reduce #0 of"),
    "nothing of torch's": (
        partial(without_wrapper, seeds=(0, 1), has_optimizer=False, steps=1),
        PARAMETERS,
        "when the program had ended, after all_reduce #3",
    ),
}
CLEAN = {
    "a step by hand": partial(by_hand, rates=(0.1, 0.1)),
    "nothing afterwards": partial(changed_after_the_last_step, on=None),
    "gradients": partial(gradients_without_a_step, factors=(2, 2)),
    "a last window that is not reduced": a_window_that_is_not_reduced,
    "names of parameters": partial(in_order, names=(AB, AB), are_buffers=False),
    "names of buffers": partial(in_order, names=(AB, AB), are_buffers=True),
    "averages": partial(averaging, every=2, steps=6),
    "with momentum": partial(averaging, every=2, steps=6, momentum=0.9),
    "ends between averages": partial(averaging, every=3, steps=8),
    "averages by torch": partial(averaging, every=2, steps=7, by_torch=True),
    "no wrapper": partial(without_wrapper, seeds=(0, 0)),
    "one flat tensor": partial(without_wrapper, seeds=(0, 0), is_flat=True),
    "one flat tensor of parts": partial(flat_of_parts, seeds=(0, 0)),
    "nothing of torch's": partial(without_wrapper, seeds=(0, 0), has_optimizer=False),
    "flat, equal on all": partial(flat, seeds=(0, 0)),
    "flat, divided by hand": partial(flat, seeds=(0, 0), writes=lambda gradient, part: gradient.copy_(part / 3)),
    "flat, clipped": partial(flat, seeds=(0, 0), clips=True),
    "flat, as they were": partial(flat, seeds=(0, 0), divides=True),
    "flat, in half": partial(flat, seeds=(0, 0), dtype=torch.bfloat16, divides=True),
    "flat, in views": partial(in_views, seeds=(0, 0)),
    "tied embedding": tied_embedding,
    "two models": two_models,
    "two models in other orders": partial(two_models, swapped=True),
}
LOOKS_ONLY = {
    "a histogram": of_equal_size,
    "a histogram, and gradients that are constant": partial(of_equal_size, gradient=3.0),
    "nothing, and no gradients": partial(of_equal_size, gradient=0.0, content=0.0),
    "gradients that are never written back": partial(flat, seeds=(0, 1), writes=lambda gradient, part: None),
    "equal ones": partial(flat, seeds=(0, 0), writes=lambda gradient, part: None),
    "divided ones": partial(flat, seeds=(0, 1), writes=lambda gradient, part: None, divides=True),
    "the memory of a gradient": at_the_place_of_a_gradient,
}


def test_gradients_of_a_backward_past_the_wrapper_are_each_ranks_own():
    # As in a comparison of two ways through one model; our own engine refuses it.
    def program(rank):
        model = wrapped()
        backward(model, rank)
        backward(model.module, rank)

    assert simulate(program, 2, check="replicas").verdict is Verdict.PASS


@pytest.mark.parametrize("name", FOUND)
@OURS
def test_found(monkeypatch, engine, name):
    if engine is OwnEngine and "names" in name:
        pytest.skip("it refuses models with other names itself")
    monkeypatch.setattr(training, "DistributedDataParallel", engine)
    program, code, words = FOUND[name]
    codes, result = check(program, 2)
    assert [found for found, _ in codes if found != "hazard.call_site"] == [code]
    (finding,) = [each for each in result.findings if each.code == code]
    assert words in finding.summary
    assert all(linecache.getline(site.path, site.line).strip() for site in finding.sites)


def test_gradients_that_differ_at_the_end_are_told_where_they_were_reduced():
    (finding,) = simulate(partial(gradients_without_a_step, factors=(1, 2)), 2, check="replicas").findings
    assert [(site.file, site.function) for site in finding.sites] == [("small_training.py", "backward")]


@pytest.mark.parametrize("name", CLEAN)
@OURS
def test_clean(monkeypatch, engine, name):
    monkeypatch.setattr(training, "DistributedDataParallel", engine)
    codes, result = check(CLEAN[name], 2, policy="random")
    assert codes == []
    assert result.comparisons > 0


@pytest.mark.parametrize("poison", [False, True], ids=["as is", "poisoned"])
@pytest.mark.parametrize("name", LOOKS_ONLY)
def test_what_is_no_gradient_claims_nothing(name, poison):
    result = simulate(LOOKS_ONLY[name], 2, check="replicas-if-any", poison=poison)
    assert (result.verdict, result.findings, result.comparisons) == (Verdict.PASS, (), 0)


@pytest.mark.parametrize("name", [name for name in CLEAN if name.startswith("flat")])
def test_flat_gradients_are_compared_where_tensors_in_flight_are_poisoned(name):
    codes, result = check(CLEAN[name], 2, poison=True)
    assert codes == []
    assert result.comparisons == 2  # when the second forward began, and at the end


@pytest.mark.tier("ci")
@pytest.mark.parametrize("name", ["a step by hand", "gradients", "no wrapper", "one flat tensor", "flat, clipped"])
def test_in_processes_as_in_threads(name):
    program, code, _ = FOUND[name]
    alike = [simulate(program, 2, check="replicas", isolation=isolation) for isolation in ("thread", "process")]
    assert [[(str(each.code), each.ranks, each.summary) for each in result.findings] for result in alike] == [
        [(code, alike[0].findings[0].ranks, alike[0].findings[0].summary)]
    ] * 2
    assert alike[0].comparisons == alike[1].comparisons


def nothing_to_compare(rank):
    model = network()
    backward(model, rank)
    sgd(model).step()


def test_a_check_that_compared_nothing_is_no_pass():
    result = simulate(nothing_to_compare, 2, check="replicas")
    assert (result.verdict, result.comparisons) == (Verdict.UNKNOWN, 0)
    assert [str(each.code) for each in result.findings] == ["unchecked"]
    lenient = simulate(nothing_to_compare, 2, check="replicas-if-any")
    assert lenient.verdict is Verdict.PASS
    assert "no replicas were compared" in str(lenient)
    assert "were compared" not in str(simulate(lambda rank: dist.barrier(), 2, check="replicas-if-any"))
    assert simulate(nothing_to_compare, 1, check="replicas").verdict is Verdict.PASS


def test_how_many_comparisons_were_made():
    result = simulate(partial(by_hand, rates=(0.1, 0.1), steps=1), 2, check="replicas")
    # When the wrapper was made, its first forward began, its backward had ended, and the program.
    assert result.comparisons == 4
    assert "check   replicas were compared 4 times" in str(result)
    assert simulate(partial(by_hand, rates=(0.1, 0.1)), 2).comparisons is None


@pytest.mark.parametrize("options", [{}, {"isolation": "process"}, {"poison": True}], ids=str)
def test_parameters_are_compared_after_each_average_and_not_between(options):
    result = simulate(partial(local_sgd, is_async=True), 2, check="replicas", **options)
    assert (result.findings, result.comparisons) == ((), 2)  # of 4 steps, the second and the last
    (finding,) = simulate(partial(local_sgd, divisors=(2, 3)), 2, check="replicas", **options).findings
    assert (finding.code, finding.ranks) == (PARAMETERS, (0, 1))
    assert "of parameters on group" in finding.summary
    assert "the ranks computed different averages from the same sum" in finding.body


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_steps_after_the_last_average_are_nobodys_fault(steps):
    assert simulate(partial(local_sgd, steps=steps), 2, check="replicas").findings == ()


@pytest.mark.parametrize("program", [partial(local_sgd, then=puts_back), partial(local_sgd, then=changes_a_row)])
def test_a_sum_that_is_only_looked_at_or_trained_on_is_not_compared(program):
    (finding,) = simulate(program, 2, check="replicas").findings
    assert finding.code == "unchecked"
    (finding,) = simulate(partial(local_sgd, average_first=True), 2, check="replicas").findings
    assert finding.code == "unchecked"


def averaged_flat(rank, *, divisors=(2, 2), takes=True, seeds=(0, 0), divides_first=False, every=2):
    """Each rank has batches of its own; all parameters are averaged together every second step."""
    model = network(seed=seeds[rank])
    optimizer = sgd(model)
    for step in range(1, 5):
        optimizer.zero_grad()
        backward(model, rank)
        optimizer.step()
        if step % every == 0:
            flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
            if divides_first:
                flat /= divisors[rank]
            dist.all_reduce(flat)
            if not divides_first:
                flat /= divisors[rank]
            if takes:
                torch.nn.utils.vector_to_parameters(flat, model.parameters())


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("divides_first", [False, True])
def test_a_flat_average_is_compared(divides_first, every):
    result = simulate(partial(averaged_flat, divides_first=divides_first, every=every), 2, check="replicas")
    assert (result.verdict, result.findings, result.comparisons) == (Verdict.PASS, (), 4 // every)


def test_ranks_that_make_different_averages_of_one_flat_sum_are_found():
    (finding,) = simulate(partial(averaged_flat, divisors=(2, 3)), 2, check="replicas").findings
    assert finding.code == PARAMETERS
    assert 'after all_reduce #0 of parameters on group "default"' in finding.summary


def test_a_flat_sum_that_is_only_looked_at_claims_nothing():
    result = simulate(partial(averaged_flat, takes=False, seeds=(0, 1)), 2, check="replicas")
    assert [finding.code for finding in result.findings] == ["unchecked"]


@pytest.mark.tier("ci")
def test_flat_averages_of_processes_are_compared_alike():
    result = simulate(partial(averaged_flat, divisors=(2, 3)), 2, check="replicas", isolation="process")
    assert [finding.code for finding in result.findings] == [PARAMETERS]


@pytest.mark.filterwarnings("ignore:The `NO_SHARD` sharding strategy is deprecated:FutureWarning")
@pytest.mark.parametrize("seeds", [(0, 1), (0, 0)])
def test_fsdp_without_shards_reduces_gradients_not_the_program(seeds):
    def program(rank):
        model = FullyShardedDataParallel(
            network(seed=seeds[rank]), sharding_strategy=ShardingStrategy.NO_SHARD, device_id=torch.device("cpu")
        )
        train(model, sgd(model), rank, 2)

    findings = simulate(program, 2, check="replicas").findings
    causes = [line.text for each in findings for line in each.lines if getattr(line, "label", "") == "cause"]
    assert ["the initial models differed, or" in text for text in causes] == [True] * (seeds[0] != seeds[1])
    assert not any("the program" in text for text in causes)


def reduced_over_one_axis(rank, axis):
    torch.manual_seed(0)
    group = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards")).get_group(axis)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.full((1, 2), 1.0 + rank)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
        optimizer.step()


def test_models_whose_gradients_stay_in_groups_of_one_rank_are_told():
    groups = '"shards (replicas 0) of rank 0" (rank 0), "shards (replicas 1) of rank 1" (rank 1)'
    told = f"not compared: models of groups {groups}, which began equal and ended different"
    notes = [
        simulate(reduced_over_one_axis, 2, args=(axis,), check="replicas").notes for axis in ("shards", "replicas")
    ]
    assert notes == [(told,), ()]


def trains_the_inner_module(rank, through_wrapper):
    torch.manual_seed(0)
    model = TorchEngine(torch.nn.Linear(2, 1))
    model = model if through_wrapper else model.module
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.full((1, 2), 1.0 + rank)).sum().backward()
        optimizer.step()


def test_a_wrapper_that_is_dropped_before_training_is_the_cause():
    (finding,) = simulate(trains_the_inner_module, 2, args=(False,), check="replicas").findings
    assert "no synchronising forward went through the wrapper, so nothing averaged the gradients" in finding.text
    assert simulate(trains_the_inner_module, 2, args=(True,), check="replicas").verdict is Verdict.PASS


def gets_a_batch_that_is_no_number(rank, skips):
    model = TorchEngine(torch.nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.full((1, 2), float("nan") if (rank, step) == (1, 1) else 1.0)).sum()
        is_bad = (~loss.detach().isfinite()).int()
        dist.all_reduce(is_bad, dist.ReduceOp.MAX)
        if not (skips and is_bad):
            loss.backward()
            optimizer.step()


def test_replicas_that_share_values_that_are_no_numbers_are_told():
    notes = [simulate(gets_a_batch_that_is_no_number, 2, args=(skips,), check="replicas").notes for skips in (0, 1)]
    assert notes == [("NaN or infinity at the end in weight of DDP #0",), ()]
