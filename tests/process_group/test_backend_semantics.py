"""One program by the rules of several backends: what hangs where, and that the repaired twin does not."""

import re
from datetime import timedelta
from typing import get_args, get_type_hints

import pytest
import torch
import torch.distributed as dist

from ddpsim import UsageError, Verdict, explore, replay, simulate
from ddpsim.scenarios.cli.options import backends_named
from ddpsim.scenarios.cli.run import outcomes_by_backend
from ddpsim.scenarios.files.toml_forms import ScenarioForm
from ddpsim.scenarios.model import Scenario
from ddpsim.scenarios.running.exploring import explore_scenario
from ddpsim.simulator.backend_semantics import BACKENDS

IN_ORDER = {"nccl", "in-order"}


def hangs_on(program, world_size=2, **options):
    """On which backends; and that it passes, with the same numbers, on the others."""
    results = {name: simulate(program, world_size, backend_semantics=name, **options) for name in BACKENDS}
    passed = [result for result in results.values() if result.verdict is Verdict.PASS]
    assert all(result.returns == passed[0].returns for result in passed)
    hung = {name for name, result in results.items() if result.verdict is not Verdict.PASS}
    assert {results[name].findings[0].code.value for name in hung} <= {"deadlock.cycle", "deadlock.missing_rank"}
    return hung


def messages(rank, *, operations=("isend", "irecv"), in_batch=False):
    """Give the other rank its own number, in one of several ways."""
    other, received, own = 1 - rank, torch.zeros(2), torch.full((2,), float(rank))
    tensors = {"isend": own, "irecv": received}
    if in_batch:
        works = dist.batch_isend_irecv([dist.P2POp(getattr(dist, name), tensors[name], other) for name in operations])
    else:
        works = [getattr(dist, name)(tensors[name], other) for name in operations]
    for work in works:
        work.wait()
    assert received.tolist() == [other, other]
    return received.tolist()


def test_messages_both_ways_pass_where_nothing_is_in_order():
    assert hangs_on(messages) == IN_ORDER
    assert hangs_on(lambda rank: messages(rank, operations=("irecv", "isend"))) == IN_ORDER


def test_a_batch_is_a_unit_on_nccl_and_is_not_where_it_is_replayed_in_order():
    assert hangs_on(lambda rank: messages(rank, in_batch=True)) == {"in-order"}
    orders = ("isend", "irecv"), ("irecv", "isend")
    assert hangs_on(lambda rank: messages(rank, operations=orders[rank], in_batch=True)) == set()


def test_both_send_first():
    def program(rank):
        tensor, received = torch.full((2,), float(rank)), torch.zeros(2)
        dist.send(tensor, 1 - rank)
        tensor.zero_()  # an eager send has copied it
        dist.recv(received, 1 - rank)
        return received.tolist()

    assert hangs_on(program) == set(BACKENDS) - {"eager-send"}
    assert simulate(program, 2, backend_semantics="eager-send").returns == ([1.0, 1.0], [0.0, 0.0])


def test_an_eager_send_that_nobody_waits_for_is_still_a_hazard():
    def program(rank):
        if rank == 0:
            dist.isend(torch.ones(1), 1)
        else:
            dist.recv(torch.zeros(1), 0)

    assert [each.code.value for each in simulate(program, 2, backend_semantics="eager-send").findings] == [
        "hazard.unwaited_work"
    ]


def tagged(rank, *, tags=((1, 2), (2, 1)), sizes=(2, 2), **group):
    """Two messages from rank 0 to rank 1, which the ranks name by `tags`, each in its order; tag k has sizes[k - 1]."""
    tensors = [torch.full((sizes[tag - 1],), 10.0 * tag if rank == 0 else 0.0) for tag in tags[rank]]
    make, other = (dist.isend, 1) if rank == 0 else (dist.irecv, 0)
    works = [make(tensor, other, tag=tag, **group) for tensor, tag in zip(tensors, tags[rank], strict=True)]
    for work in works:
        work.wait()
    return {tag: tensor[0].item() for tag, tensor in zip(tags[rank], tensors, strict=True)}


def test_nccl_does_not_see_tags():
    result = simulate(tagged, 2, backend_semantics="nccl")
    assert result.returns[1] == {2: 10.0, 1: 20.0}
    (finding,) = result.findings
    assert (finding.code.value, finding.ranks) == ("mismatch.origin", (0, 1))
    text = 'send #0 with tag 1 on rank 0 is matched with recv #0 with tag 2 on rank 1, group "default"'
    assert finding.summary == text
    assert "this backend ignores tags" in finding.body
    assert simulate(tagged, 2).returns[1] == {2: 20.0, 1: 10.0}
    assert not simulate(tagged, 2).findings


def test_messages_that_nccl_gives_to_others_may_not_fit():
    (finding,) = simulate(lambda rank: tagged(rank, sizes=(2, 3)), 2, backend_semantics="nccl").findings
    assert finding.code.value == "mismatch.shape"
    assert "tag 1 ignored" in finding.body
    assert "this backend ignores tags" in finding.body


@pytest.mark.usefixtures("virtual_gpus")
def test_tags_are_not_seen_between_gpus_under_any_rules():
    def program(rank):
        group = dist.new_group(backend="nccl")
        tensors = [torch.full((2,), float(tag), device=f"cuda:{rank}") for tag in (1, 2)]
        for tag, tensor in zip((1, 2) if rank == 0 else (2, 1), tensors, strict=True):
            (dist.send if rank == 0 else dist.recv)(tensor, 1 - rank, group=group, tag=tag)

    (finding,) = simulate(program, 2, isolation="process", gpus=2).findings
    assert finding.code.value == "mismatch.origin"
    assert "this backend ignores tags" in finding.body


@pytest.mark.parametrize("tags", [((1, 2), (1, 2)), ((3, 4), (0, 0)), ((1, 2), (2, 5))])
def test_tags_that_are_alike_or_mean_nothing_are_no_finding_on_nccl(tags):
    assert simulate(lambda rank: tagged(rank, tags=tags, sizes=(2,) * 5), 2, backend_semantics="nccl").findings == ()


def test_a_group_on_gloo_beside_nccl_keeps_its_tags():
    def program(rank):
        dist.new_group(backend="nccl", timeout=timedelta(seconds=60))
        return tagged(rank, group=dist.new_group(backend="gloo"))

    result = simulate(program, 2, backend_semantics="nccl")
    assert (result.findings, result.returns[1]) == ((), {2: 20.0, 1: 10.0})


def groups_in_orders(rank, orders):
    groups = [dist.new_group(), dist.new_group()]
    works = [dist.all_reduce(torch.ones(1), group=groups[index], async_op=True) for index in orders[rank]]
    for work in works:
        work.wait()


def test_two_groups_in_different_orders():
    assert hangs_on(lambda rank: groups_in_orders(rank, ((0, 1), (1, 0)))) == IN_ORDER
    assert hangs_on(lambda rank: groups_in_orders(rank, ((0, 1), (0, 1)))) == set()


@pytest.mark.parametrize(("main", "hung"), [("nccl", set()), ("gloo", IN_ORDER)])
def test_a_group_on_gloo_beside_one_on_nccl_keeps_the_rules_of_gloo(main, hung):
    def program(rank):
        timeout = timedelta(seconds=60)
        groups = [dist.new_group(backend=main, timeout=timeout), dist.new_group(backend="gloo")]
        for work in [dist.all_reduce(torch.ones(1), group=groups[(i + rank) % 2], async_op=True) for i in range(2)]:
            work.wait()

    assert hangs_on(program) == hung


def left_behind(rank, *, connects=False, waits=False):
    if connects:
        dist.all_reduce(torch.ones(1))
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if waits:
            work.wait()
    else:
        for _ in range(3):
            dist.distributed_c10d._get_default_store().check(["key"])  # lets rank 0 end
        dist.all_reduce(torch.ones(1))


def test_what_a_rank_leaves_behind_before_the_ranks_have_connected():
    assert hangs_on(left_behind) == {"lazy-connect"}
    assert hangs_on(lambda rank: left_behind(rank, connects=True)) == set()
    assert hangs_on(lambda rank: left_behind(rank, waits=True)) == set()


@pytest.mark.tier("ci")
def test_processes_go_by_the_same_rules():
    for name in BACKENDS:
        runs = [simulate(messages, 2, backend_semantics=name, isolation=each) for each in ("thread", "process")]
        assert runs[0].trace.digest() == runs[1].trace.digest()
        assert str(runs[0].findings and runs[0].findings[0].body) == str(runs[1].findings and runs[1].findings[0].body)


def test_the_schedule_is_replayed_by_the_same_rules():
    result = simulate(messages, 2, backend_semantics="nccl", policy="random", seed=3)
    assert "backend_semantics='nccl'" in result.findings[0].replay.replace('"', "'")
    again = replay(messages, 2, result.schedule, backend_semantics="nccl")
    assert again.trace.digest() == result.trace.digest()


def test_exploring_by_rules_that_dpor_does_not_know():
    with pytest.raises(UsageError, match="'nccl', which policy 'dpor' does not support: use policy 'dfs'"):
        explore(messages, 2, backend_semantics="nccl")
    assert explore(messages, 2, backend_semantics="nccl", policy="dfs").verdict is Verdict.FAIL
    covered = explore(messages, 2, backend_semantics="eager-send")
    assert (covered.verdict, covered.complete) == (Verdict.PASS, True)


def test_a_scenario_is_not_explored_by_dpor_either():
    own = Scenario("messages", "", messages, world_size=2, backend_semantics="nccl")
    with pytest.raises(UsageError, match="which policy 'dpor' does not support"):
        explore_scenario(own)
    assert explore_scenario(own, policy="random").verdict is Verdict.FAIL


def test_a_name_that_there_is_not():
    with pytest.raises(UsageError, match="backend_semantics is 'mpi', expected one of gloo, nccl, in-order"):
        simulate(messages, 2, backend_semantics="mpi")


def test_backends_that_are_named():
    assert (backends_named("all", "gloo"), backends_named("nccl, gloo", "gloo")) == (tuple(BACKENDS), ("nccl", "gloo"))
    with pytest.raises(UsageError, match="semantics are 'nccl,gloo,nccl', which has nccl twice: name each once"):
        backends_named("nccl,gloo,nccl", "gloo")


def test_files_may_say_each_backend():
    (literal, _) = get_args(get_type_hints(ScenarioForm)["backend_semantics"])
    assert set(get_args(literal)) == set(BACKENDS)


def test_the_line_for_all_backends():
    found = {name: [simulate(messages, 2, backend_semantics=name)] for name in BACKENDS}
    assert outcomes_by_backend(found) == "passes on gloo, eager-send, lazy-connect; can hang on nccl, in-order"
    assert re.match("hangs on gloo", outcomes_by_backend({"gloo": [simulate(lambda rank: rank or dist.barrier(), 2)]}))
