"""The table of operations is the only one: whatever else has to know an operation is held to it here.

Each test says which file lacks what.
"""

import ast
import re
from pathlib import Path

import pytest
import torch._C._distributed_c10d as c10d
import torch.distributed as dist
from torch.distributed.flight_recorder.components.types import COLLECTIVES, P2P

from ddpsim.ddp import collective_table as of_joins
from ddpsim.scenarios.ranks import interpreter
from ddpsim.simulator.operations import IN_PROGRAMS, OPERATIONS, OperationKind
from ddpsim.simulator.process_group import group
from ddpsim.simulator.process_group.group import SimulatedGroup
from ddpsim.simulator.records import as_flight_recorder, as_program, record_texts
from ddpsim.simulator.transport import gloo, memory
from tests.agreement import parts
from tests.semantics.cases import CASES

METHODS = {method for row in OPERATIONS.values() for method in row.methods}
LATER = {"gather_single"} - {*dir(dist.ProcessGroup)}
"""What groups have from torch 2.14 on."""

OTHER_METHODS = {
    "_start_coalescing",  # collects calls, and is none
    "gather_into_tensor",  # of a torch to come
}
"""What the engine in ddp knows of groups, and the simulated group need not have as an operation."""

NO_CALLS = {"_end_coalescing", "_register_on_completion_hook", "reconfigure"}
"""They return a work, and are no operation of their own: ranks that reconfigure meet in a `new_group`."""


def lacking(where, wanted, found):
    """What is missing, and what nobody asked for, as one text; "" if nothing."""
    missing = sorted(map(str, set(wanted) - set(found)))
    surplus = sorted(map(str, set(found) - set(wanted)))
    return "".join(
        f"{where} {what} {names}; "
        for what, names in (("lacks", missing), ("has, and simulator/operations.py has not,", surplus))
        if names
    )


def issued_by_name():
    """The operations that methods of the simulated group name in a `Signature`."""
    tree = ast.parse(Path(group.__file__).read_text())
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return constants & set(OPERATIONS) | {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Signature"
        if node.args and isinstance(node.args[0], ast.Constant)
    }


def test_the_simulated_group_has_the_methods():
    own = {method for method in METHODS if method in vars(SimulatedGroup)}
    assert not lacking("simulator/process_group/group.py", METHODS - LATER, own)
    assert not lacking("simulator/process_group/group.py, in signatures,", OPERATIONS, issued_by_name())


def test_torchs_group_has_no_other_methods_that_communicate():
    """Told by their documentation: what returns a work is an operation."""
    theirs = {name for name in dir(dist.ProcessGroup) if "Work" in (getattr(dist.ProcessGroup, name).__doc__ or "")}
    left = theirs - METHODS - OTHER_METHODS - NO_CALLS
    assert not left, "simulator/operations.py lacks these"


def test_other_tables_have_every_operation_of_theirs():
    collectives = {name for name, row in OPERATIONS.items() if row.kind is OperationKind.COLLECTIVE}
    rooted = {parts.algorithm_of(name) for name, row in IN_PROGRAMS.items() if row.has_root}
    assert not lacking("simulator/transport/memory.py:MOVEMENTS", {*OPERATIONS} - {"recv"}, memory.MOVEMENTS)
    assert not lacking("simulator/transport/gloo.py:METHODS", collectives, gloo.METHODS)
    assert not lacking("scenarios/ranks/interpreter.py", IN_PROGRAMS, interpreter.CALLS)
    assert not lacking("tests/agreement/parts.py:ROOTED", rooted, parts.ROOTED)


@pytest.mark.parametrize("name", gloo.METHODS)
def test_gloo_has_the_method_and_its_options(name):
    row, (method, _, kind, _) = OPERATIONS[name], gloo.METHODS[name]
    assert hasattr(dist.ProcessGroup, method)
    options = getattr(c10d, kind)() if kind else None
    assert hasattr(options, "reduceOp") == row.reduces
    assert hasattr(options, "rootRank") == row.has_root


def test_records_have_every_operation_as_programs_and_torchs_reader_know_it():
    names = {name for name, row in OPERATIONS.items() if row.kind is not OperationKind.CREATION}
    for name in sorted(names):
        assert as_program._NAMES.get(name, name) in IN_PROGRAMS, f"simulator/records/as_program.py: {name}"
    for name in sorted(names - {"barrier", "monitored_barrier"}):
        written = as_flight_recorder._NAMES.get(name, name)
        assert written in COLLECTIVES | P2P, f"simulator/records/as_flight_recorder.py writes {name} as {written}"
        read = record_texts.OPERATIONS.get(written, written)
        assert read in OPERATIONS, f"simulator/records/record_texts.py reads {written} as {read}"


ROOTED_UNKNOWN_TO_A_JOIN = {"gather_single", "gather_into_tensor"}
"""Methods with a root in which joined ranks cannot take part yet."""


NO_PART_IN_A_JOIN = {
    *("gather_single", "gather_into_tensor"),  # from torch 2.14 on
    "allgather_coalesced",  # how many tensors the others have, a joined rank cannot know
    *("send", "recv", "recv_anysource"),  # who sends to a rank that has none left is the program's to say
    "_start_coalescing",
}
"""The methods to which a joined rank has nothing to contribute."""


def test_a_join_intercepts_every_method_knows_its_root_and_lets_joined_ranks_take_part():
    assert not lacking("ddp/collective_table.py", METHODS | OTHER_METHODS, of_joins.OPERATIONS)
    rooted = {method for row in OPERATIONS.values() if row.has_root for method in row.methods}
    known = {method for method, row in of_joins.TABLE.items() if row.is_rooted}
    assert not lacking("ddp/collective_table.py, is_rooted of", rooted - ROOTED_UNKNOWN_TO_A_JOIN, known)
    without = {method for method, row in of_joins.TABLE.items() if row.contribution is None}
    assert not lacking("methods without a contribution in ddp/collective_table.py", NO_PART_IN_A_JOIN, without)


def test_a_join_and_the_simulator_call_an_operation_by_one_name():
    names = {method: row.name for row in OPERATIONS.values() for method in row.methods}
    names["gather_single"] = "gather_single"  # what a program calls, from torch 2.14 on
    assert {method: of_joins.TABLE[method].name for method in names} == names


def test_every_operation_runs_on_the_simulator_and_on_gloo():
    said = set(re.findall(r"[a-z_]+", " ".join(case.id for case in CASES)))
    said.add("split_group")  # gloo cannot: tests/process_group/test_groups.py
    assert not sorted(set(OPERATIONS) - said), "tests/semantics has no case that is called after these"
