"""What ranks raised: the cause of errors that are known, whose fault they are, and the advice at the end."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel
from torch.utils import cpp_extension

from ddpsim import simulate
from ddpsim.simulator.calls import ANY_SOURCE, Call, Signature, Site
from ddpsim.simulator.diagnosis.deadlock import find_deadlocks
from ddpsim.simulator.diagnosis.deadlock_snapshot import OpenCalls, RankSnapshot, RankState, Snapshot
from ddpsim.simulator.diagnosis.rank_errors import (
    error_kind,
    rank_error_finding,
    ranks_out_of_input,
    unused_parameter_indices,
)
from ddpsim.simulator.diagnosis.wait_graph import WaitGraph
from ddpsim.simulator.waits import CallWait, StoreWait
from tests.kit.rows import rows

from .ending import end

SITE = Site("train.py", 3, "main")
UNUSED = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."


def found(errors, unused=None):
    if isinstance(errors, str):
        errors = {2: errors}
    return rank_error_finding(errors, SITE, "Traceback:\n  the line\nError", unused or {})


KNOWN = {
    "ModuleNotFoundError: No module named 'triton.language'": "pip install triton: that is enough if no kernel",
    "RuntimeError: Expected to mark a variable ready only once. This error": "use_reentrant=False",
    "UsageError: a got more gradients in this backward than expected: a checkpoint": "static_graph=True",
    "RuntimeError: Your training graph has changed in this iteration, e.g.": "leave static_graph out",
    "RuntimeError: expect_autograd_hooks_ INTERNAL ASSERT FAILED": "compute the loss through the wrapper",
    "RuntimeError: one of the variables has been modified by an inplace operation": "broadcast_buffers=False",
    "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn": "multiplied by zero",
    "RuntimeError: it is not needed when a module doesn't have any parameters that require a gradient": "unwrapped",
    "RuntimeError: params[0] appears not to match sizes of the same param in process 0.": "build the same model",
    "ValueError: Expected more than 1 value per channel when training, got input size": "drop_last=True",
    "IndexError: max(): Expected reduction dim to be specified for input.numel() == 0.": "drop_last=True",
    "RuntimeError: cannot reshape tensor of 0 elements into shape [-1, 0]": "drop_last=True",
    "ValueError: Global rank 0 is not part of group <group>": "dist.get_global_rank(group, rank)",
    "ValueError: Group rank 3 is not part of group <group>": "group_src or group_dst",
    "DistBackendError: NCCL error: Duplicate GPU detected : rank 0 and rank 1": "torch.cuda.set_device(local_rank)",
    "RuntimeError: No backend type associated with device type cpu": '"cpu:gloo,cuda:nccl"',
    "ValueError: SyncBatchNorm layers only work with GPU modules": "`ddpsim run --gpus N FILE.py` has virtual ones",
    "ValueError: SyncBatchNorm expected input tensor to be on GPU or XPU or x": "no GPU after model.eval(), unwrapped",
    "ValueError: Default process group has not been initialized, please": "destroy the group last",
    "ValueError: trying to initialize the default process group twice!": "dist.is_initialized()",
    "RuntimeError: Rank 2 exhausted all inputs.": "catch it on every rank",
    "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.": "around the join",
    "JoinError: rank 2 ran out of input (throw_on_early_termination)": "leave the option out",
    "JoinError: broadcast float32[1] root 1 needs what only its root has, rank 1, which ran": "list it in torch's Join",
    "JoinError: the join is over: rank 1 left it by ValueError": "enter the join with the same models",
    "InjectedCrashError: injected crash (rank 2, before call 3)": "remove it from `faults`",
    "ReplicaMismatchError: the ranks' models or settings differ: rank 2 has": "ignored names and DDP options",
    "ParameterChangedError: parameters changed after construction: a was frozen": "wrap the model again",
    "BypassedBackwardError: a gradient of a came": "compute the loss through the wrapper, not model.module",
    "OpenBackwardError: the last backward left buckets open": "find_unused_parameters=True",
}


@rows(("error", "words"), KNOWN.items(), ids=range(len(KNOWN)))
def test_known_errors(error, words):
    assert words in end(found(error))[1]


def test_ranks_whose_barrier_failed_on_another_are_told_together():
    told = [f"RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors" for rank in (1, 2)]
    assert error_kind(told[0]) == error_kind(told[1])
    assert error_kind(told[0]) != error_kind(
        "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 2000 ms"
    )


def test_a_usage_error_says_itself_what_to_do():
    finding = found("UsageError: tensor has dtype int8, expected a float: convert it first")
    assert end(finding)[1] == "convert it first"
    assert "fix this exception first" in end(found("UsageError: no"))[1]


def test_unused_parameters_are_named():
    cause, remedy = end(found(UNUSED, {2: ("branch.weight", "branch.bias")}))
    assert cause == "in the step before, branch.weight, branch.bias got no gradient, so the bucket was never reduced"
    assert remedy.startswith("pass find_unused_parameters=True to DistributedDataParallel")
    cause, _ = end(found({0: UNUSED, 1: UNUSED}, {0: ("a",), 1: ("b",)}))
    assert "a on rank 0 and b on rank 1 got no gradient" in cause
    cause, _ = end(found({0: UNUSED, 1: UNUSED}, {0: ("a",), 1: ("a",)}))
    assert "in the step before, a got no gradient" in cause
    assert "p7, ... got no gradient" in end(found(UNUSED, {2: [f"p{i}" for i in range(9)]}))[0]
    assert "some parameters got no gradient" in end(found(UNUSED))[0]


def test_an_engine_that_names_them_itself():
    text = "OpenBackwardError: the last backward left buckets open: no gradient came for a, b on ranks 0, 2; none is "
    text += "missing on rank 1. If the loss does not depend on these parameters, "
    finding = found({0: text, 1: text, 2: text})
    assert "in the step before, a, b on ranks 0, 2 got no gradient" in end(finding)[0]
    assert finding.ranks == (0, 2)


def test_indices_in_torchs_message():
    message = f"{UNUSED}\nParameter indices which did not receive grad for rank 1: 2 3 11\n In addition, you can set"
    assert unused_parameter_indices(message) == (2, 3, 11)
    assert unused_parameter_indices(UNUSED) == ()


def counted(rank, count, other, other_count):
    differs = f"but Rank {rank} has {count} params, while rank {other} has inconsistent {other_count} params."
    return f"RuntimeError: DDP expects same model across all ranks, {differs}"


def test_the_rank_with_another_number_of_parameters_is_at_fault_not_all_that_raise():
    errors = {rank: counted(rank, 4, 2, 6) for rank in (0, 1, 3)} | {2: counted(2, 6, 0, 4)}
    assert len({error_kind(error) for error in errors.values()}) == 1
    finding = found(errors)
    assert finding.ranks == (2,)
    assert "ranks 0-3 raised" in finding.summary
    assert end(finding)[0].startswith("the model of rank 2 differs")
    assert found({rank: errors[rank] for rank in (0, 2)}).ranks == (0, 2)


def test_an_engine_says_whose_fault_it_is():
    text = "ReplicaMismatchError: the ranks' models or settings differ: rank 2 has weight float32[3], the others have "
    text += "float32[2]; build the same model"
    assert found(dict.fromkeys(range(4), text)).ranks == (2,)
    text = text.replace("the others have", "rank 0 has")
    assert found(dict.fromkeys((0, 2), text)).ranks == (0, 2)
    text = "JoinError: the join is over: rank 1 left it by ValueError: rank 5 has no data"
    assert found(dict.fromkeys((0, 2), text)).ranks == (1,)
    text = "JoinError: rank 2 ran out of input (throw_on_early_termination)"
    assert found(dict.fromkeys((0, 1, 3), text)).ranks == (2,)
    assert found(dict.fromkeys((0, 2), "ValueError: rank 1 has no data")).ranks == (0, 2)


def test_errors_that_differ_in_the_ranks_own_view_only_are_one():
    assert error_kind("ValueError: a") != error_kind("ValueError: b")
    refused = [f'ValueError: Global rank 0 is not part of group Group("1", rank {rank} of 2)' for rank in range(2)]
    assert error_kind(refused[0]) == error_kind(refused[1]) != error_kind(refused[0].replace("rank 0", "rank 3", 1))
    shape = "RuntimeError: [{}]: params[0] appears not to match sizes of the same param in process 0."
    assert error_kind(shape.format(1)) == error_kind(shape.format(2))


def test_parameters_that_were_frozen_are_not_unused():
    cause, remedy = end(found(UNUSED, {2: ["a.weight (frozen now)", "a.bias (frozen now)"]}))
    assert cause.startswith("a.weight (frozen now), a.bias (frozen now) changed after the model was wrapped")
    assert remedy == "do it on every rank before wrapping, or wrap the model again"
    assert "got no gradient" in end(found(UNUSED, {2: ["a.weight (frozen now)", "b"]}))[0]


def test_who_ran_out_of_input_is_to_blame_for_what_join_throws_on_the_others():
    others = "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks."
    own = {rank: f"RuntimeError: Rank {rank} exhausted all inputs." for rank in (2, 1)}
    assert ranks_out_of_input({0: others, **own}) == (1, 2)
    assert len({error_kind(error) for error in own.values()}) == 1
    finding = rank_error_finding({0: others}, SITE, "", {}, out_of_input=(1, 2))
    assert finding.ranks == (1, 2)
    assert end(finding)[0].startswith("ranks 1, 2 ran out of input")
    assert rank_error_finding({0: "ValueError: no"}, SITE, "", {}, out_of_input=(1, 2)).ranks == (0,)


def dead_rank(*calls):
    """The summary of ranks that wait in calls, each with its line, for the last rank, which raised."""
    made = [
        Call(rank, group, 2, Signature(name), Site("t.py", at, "f")) for rank, (name, group, at) in enumerate(calls)
    ]
    waiting = [RankSnapshot(call.rank, RankState.WAITING, CallWait((call,))) for call in made]
    dead = RankSnapshot(len(made), RankState.RAISED, error="ValueError: no")
    slots = tuple(OpenCalls((call,), (dead.rank,)) for call in made)
    (finding,) = find_deadlocks(WaitGraph(Snapshot((*waiting, dead), slots)))
    assert (finding.code.value, finding.ranks) == ("deadlock.dead_rank", (dead.rank,))
    return finding.summary


def test_where_ranks_wait_for_one_that_raised():
    assert dead_rank(("broadcast", "default", 7)) == "rank 0 waits in broadcast #2 at t.py:7 for rank 1, which raised"
    alike = [("barrier", "pair", 9)] * 20
    assert dead_rank(*alike) == 'ranks 0-19 wait in barrier #2 on "pair" at t.py:9 for rank 20, which raised'


def test_ranks_that_wait_for_it_in_other_calls_are_told_apart():
    one, other = ("barrier", "default", 9), ("all_reduce", "pair", 5)
    assert dead_rank(one, other, one) == (
        "ranks 0-2 wait for rank 3, which raised: ranks 0, 2 in barrier #2 at t.py:9, "
        'rank 1 in all_reduce #2 on "pair" at t.py:5'
    )
    many = dead_rank(*(("barrier", "default", line) for line in range(5)))
    assert many.endswith("rank 3 in barrier #2 at t.py:3, ...")


def test_a_rank_that_waits_for_another_one_that_waits():
    call = Call(0, "default", 0, Signature("barrier"), Site("t.py", 4, "f"))
    ranks = (
        RankSnapshot(0, RankState.WAITING, CallWait((call,))),
        RankSnapshot(1, RankState.WAITING, StoreWait(("key",))),
        RankSnapshot(2, RankState.RAISED),
    )
    dead, missing = find_deadlocks(WaitGraph(Snapshot(ranks, (OpenCalls((call,), (1, 2)),))))
    assert dead.summary == "rank 0 waits in barrier #0 at t.py:4 for rank 2, which raised"
    assert "which raised" not in missing.summary


def test_any_of_several_that_raised_would_have_been_enough():
    call = Call(0, "default", 0, Signature("recv"), Site("t.py", 4, "f"), peer=ANY_SOURCE)
    dead = (RankSnapshot(1, RankState.RAISED), RankSnapshot(2, RankState.RAISED))
    ranks = (RankSnapshot(0, RankState.WAITING, CallWait((call,))), *dead)
    (finding,) = find_deadlocks(WaitGraph(Snapshot(ranks, (OpenCalls((call,), (1, 2), any_suffices=True),))))
    assert finding.summary == "rank 0 waits in recv #0 at t.py:4 for any of ranks 1, 2, which raised"


@rows(
    ("options", "words"),
    [
        ({"find_unused_parameters": True}, "such a term of the loss in forward"),
        ({"static_graph": True}, "leave static_graph out, with find_unused_parameters=True"),
        ({}, ""),
    ],
)
def test_a_parameter_that_the_loss_uses_outside_forward(options, words):
    def program(rank):
        model = torch.nn.Linear(2, 1)
        model.scale = torch.nn.Parameter(torch.ones(2))
        wrapped = DistributedDataParallel(model, **options)
        for step in range(2):
            loss = wrapped(torch.ones(1, 2)).sum()
            if step == 0 or not options.get("static_graph"):
                loss = loss + model.scale.sum()
            loss.backward()
        if options.get("static_graph"):
            wrapped(torch.ones(1, 2))

    result = simulate(program, 2)
    tried = [line.text for each in result.findings for line in each.lines if getattr(line, "label", "") == "try"]
    assert [words in text for text in tried[:1]] == [True] * bool(words)


@rows(("first", "later"), [("one", "one"), ("both", "one"), ("both", "both")])
def test_a_parameter_that_gets_no_gradient_though_the_graph_is_static(first, later):
    def program(rank):
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(2, 1), "other": torch.nn.Linear(2, 1)})
        model.forward = lambda batch: [layer(batch).sum() for layer in model.values()]
        wrapped = DistributedDataParallel(model, static_graph=True)
        for used in (first, later, later):
            one, other = wrapped(torch.ones(1, 2))
            (one if used == "one" else one + other).backward()

    findings = simulate(program, 2).findings
    words = "in the step before, other.weight, other.bias got no gradient, which static_graph=True does not allow"
    assert [end(each)[0] for each in findings] == [words] * (later == "one")


JIT = """
class JITFunction:
    __name__ = "add_kernel"

    def run(self):
        raise {error}
"""


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError('0 active drivers ([]). There should only be one.')",
        "AssertionError('libcuda.so cannot found!\\nPlease make sure GPU is set up')",
    ],
)
def test_a_kernel_of_triton_that_is_launched_is_named_with_what_replaces_it(error):
    names = {"__name__": "triton.runtime.jit"}
    exec(JIT.format(error=error), names)
    text = str(simulate(lambda rank: names["JITFunction"]().run(), 1))
    assert "  cause   the kernel add_kernel of triton needs a GPU; " in text
    assert "TRITON_INTERPRET=1" in text


def test_an_extension_of_cuda_sources_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(cpp_extension, "verify_ninja_availability", lambda: None)

    def program(rank):
        cpp_extension.load_inline("my_fused", "", cuda_sources=["//"], build_directory=str(tmp_path))

    def without_name(rank):
        raise OSError("CUDA_HOME environment variable is not set. Please set it to your CUDA install root.")

    assert "  cause   the extension my_fused needs the toolkit of a GPU " in str(simulate(program, 1))
    assert "  cause   the extension of CUDA sources needs the toolkit of a GPU " in str(simulate(without_name, 1))
    assert "  cause   an exception left " in str(simulate(lambda rank: {}["CUDA_HOME"], 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchs_own_backward_that_takes_a_rank_within_the_group_for_a_global_one():
    def program(rank):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x = torch.ones(2, requires_grad=True)
        torch.cat(all_gather(x, group=pairs[rank // 2])).sum().backward()

    (finding,) = simulate(program, 4).findings
    assert finding.ranks == (2, 3)
    assert "a backward passes a rank within the group as a global one" in finding.text
