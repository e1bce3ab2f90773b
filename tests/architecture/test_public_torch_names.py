"""simulator/foreign_names/public_names.txt knows every public name of torch.distributed, and what it says holds."""

import re
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddpsim import simulate
from ddpsim.simulator.foreign_names import public
from ddpsim.simulator.foreign_names.checking import _matches_version, find_mismatches, resolve_name_path
from ddpsim.simulator.foreign_names.names import NameUse
from ddpsim.simulator.foreign_names.public import REFUSED, RUNS, UNREACHABLE, load_public_names, refused_names
from ddpsim.simulator.process_group.group import SimulatedGroup
from ddpsim.simulator.process_group.store import SimulatedStore
from ddpsim.simulator.process_group.work import SimulatedWork
from tests.docs.blocks import ROOT

PREFIX = "torch._C._distributed_c10d."

FROM_TORCH = {
    PREFIX + "ProcessGroup": {
        *("BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL", "bound_device_id", "boxed"),
        *("group_desc", "group_name", "rank", "size", "unbox", "use_pg_for_symm_mem_rendezvous"),
        *("supports_abort_hooks", "supports_completion_hooks", "supports_reconfigure", "supports_window"),
    },
    PREFIX + "Store": set(),
    PREFIX + "Work": {"boxed", "unbox", "get_future_result"},
}
"""What the simulated classes have from torch's own unchanged: values, and what every backend refuses."""

OURS = {PREFIX + "ProcessGroup": SimulatedGroup, PREFIX + "Store": SimulatedStore, PREFIX + "Work": SimulatedWork}

OF_THE_CLASS = {"Device", "Options", "create_default_device", "create_device"}
"""What ProcessGroupGloo has besides the methods of a group."""


def rows(where):
    return [row for row in load_public_names() if row.where == where and _matches_version(row)]


def test_every_name_of_the_torch_at_hand_is_known():
    """If not: give it a row; `ddpsim doctor` says the same."""
    assert public.find_new_names() == []


def test_every_row_is_of_the_torch_at_hand():
    of_nccl = {"torch.distributed.ProcessGroupNCCL", "torch.distributed.ProcessGroupNCCL2"}
    of_nccl.add("torch.distributed.ProcessGroupNCCLLazy")  # of a build for CUDA
    assert {each.name for each in find_mismatches(load_public_names())} <= of_nccl
    assert {(row.use, row.where) for row in load_public_names()} == {
        (NameUse.CALLED, where) for where in (RUNS, REFUSED, UNREACHABLE)
    }


def test_a_name_is_in_one_row():
    names = [f"{row.owner}.{name}" for row in load_public_names() for name in row.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("owner", OURS, ids=lambda owner: owner.rpartition(".")[2])
def test_what_runs_is_ours(owner):
    """What a simulated class does not define would go to torch's own, which knows no ranks here."""
    named = {name for row in rows(RUNS) if row.owner == owner for name in row.names}
    ours = {name for kind in OURS[owner].__mro__ if kind.__module__.startswith("ddpsim") for name in vars(kind)}
    assert sorted(named - ours - FROM_TORCH[owner]) == []


def test_what_a_backend_has_is_there():
    named = {name for row in rows(RUNS) if row.owner == PREFIX + "ProcessGroupGloo" for name in row.names}
    assert sorted(name for name in named - OF_THE_CLASS if not hasattr(SimulatedGroup, name)) == []
    assert all(hasattr(dist.ProcessGroupGloo, name) for name in OF_THE_CLASS)


def test_what_this_torch_lacks_is_not_there():
    later = {"gather_single", "get_backend", "get_error", "allreduce_sparse", "register_pre_hook", "new_window"}
    theirs = {*dir(dist.ProcessGroup), *dir(dist.ProcessGroupGloo)}
    assert sorted(later & set(dir(SimulatedGroup))) == sorted(later & theirs)
    assert hasattr(SimulatedWork, "timeout") == hasattr(dist.Work, "timeout")


def test_what_is_refused_is_refused_in_a_line():
    def program(rank):
        groups = (dist.group.WORLD, dist.new_group(backend="nccl"))
        names = [*refused_names(PREFIX + "ProcessGroup"), *refused_names(PREFIX + "ProcessGroupGloo")]
        theirs = {*dir(dist.ProcessGroup), *dir(dist.ProcessGroupGloo)}
        asked = {name: [error_of(getattr(each, name)) for each in groups] for name in names if name in theirs}
        for path in (PREFIX + "_SymmetricMemory", "torch.distributed._transport"):
            with suppress(AttributeError):  # before torch 2.15
                owner = resolve_name_path(path)
                asked |= {name: [error_of(getattr(owner, name))] for name in refused_names(path)}
        return asked

    def error_of(call):
        try:
            call()
        except (NotImplementedError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    result = simulate(program, 1)
    result.raise_for_verdict()
    for name, texts in result.returns[0].items():
        *of_gloo, text = texts
        advice = next(row.why for row in rows(REFUSED) if name in row.names)
        assert re.fullmatch(rf"NotImplementedError: {name} of .* is not simulated: {re.escape(advice)}", text)
        assert all(each == text or each.startswith("RuntimeError: Backend gloo does not") for each in of_gloo)


def test_the_page_says_how_many():
    """docs/semantics.md has a table of the numbers."""
    counts = [str(sum(len(row.names) for row in rows(where))) for where in (RUNS, REFUSED, UNREACHABLE)]
    version = ".".join(torch.__version__.split(".")[:2])
    page = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
    line = re.search(rf"^ *\| {re.escape(version)} \|(.*)\|$", page, re.MULTILINE)
    assert line is None or [cell.strip() for cell in line[1].split("|")] == counts
    assert line is not None or version not in ("2.13", "2.15")


def test_the_doctor_names_what_is_new(monkeypatch, capsys):
    from ddpsim.scenarios.cli.commands import main

    monkeypatch.setattr(distributed_c10d, "grow_group", distributed_c10d.shrink_group, raising=False)
    main(["doctor"])
    said = capsys.readouterr().out
    line = "torch names:  new in this torch, not looked at: torch.distributed.distributed_c10d.grow_group"
    assert f"\n{line}\n" in said
