"""The table of the operations of torch.distributed and of its process groups, with the properties of each operation.

All lists of operations are derived from this table. Code that cannot be part of a table is in dicts whose keys are its
names: how data moves (transport/memory.py), the calls to gloo (transport/gloo.py), the calls of a program's rank
(scenarios/ranks/interpreter.py). The engine in `ddp` does not import the simulator and has a list of its own.
tests/architecture/test_operations.py checks all these against the table.
"""

from enum import Enum, auto
from typing import NamedTuple

from ddpsim.simulator.errors import InternalError


class OperationKind(Enum):
    """The kind of an operation: which ranks take part in a call."""

    COLLECTIVE = "collective"
    MESSAGE = "message"
    """One sender and one receiver take part; the call has a peer and a tag."""
    CREATION = "creation of a group"
    """A call that torch makes while it creates a group; it moves no data."""


class ShapeCount(Enum):
    """How many shapes the signature of a call has."""

    NONE = "none"
    ONE = "one"
    SEVERAL = "one or more"
    PER_MEMBER = "one for each member of the group"
    IN_AND_OUT = "two: what is sent, what is received"


class RowRequirement(Enum):
    """The requirement on the first dimension (the rows) of a tensor's shape."""

    ANY = auto()
    """There is no requirement: the tensor may be a scalar."""
    SOME = auto()
    """The first dimension must exist, because tensors are joined or cut along it."""
    DIVISIBLE = auto()
    """The first dimension must be a multiple of the number of members of the group."""


class RootRole(Enum):
    """The role of the root rank in a call: it sends or receives."""

    NONE = auto()
    SOURCE = auto()
    DESTINATION = auto()


class SplitRule(Enum):
    """How ranks divide their input, in operations whose parts for different members may have different sizes."""

    NONE = auto()
    TENSORS = auto()
    """Each tensor is one part."""
    ROWS = auto()
    """The caller gives the number of rows of each part. The sent and the received shape are both known."""


class Operation(NamedTuple):
    """A row of the table of operations: a collective, send or receive, and what a backend needs to know of it."""

    name: str
    """The name of the operation in torch.distributed, also used in signatures."""
    methods: tuple[str, ...]
    """The names of the process group's method in all torch versions; () if torch.distributed alone has it."""
    shapes: ShapeCount
    kind: OperationKind = OperationKind.COLLECTIVE
    rows: RowRequirement = RowRequirement.ANY
    root: RootRole = RootRole.NONE
    splits: SplitRule = SplitRule.NONE
    reduces: bool = False
    gathers: bool = False
    """True if ranks receive the tensors of the other ranks side by side."""
    is_in_programs: bool = True
    """True if the operation may occur in a `Program`, drawn or saved as a file."""

    @property
    def has_root(self) -> bool:
        """Return True if the call names one rank that sends to all others, or receives from them."""
        return self.root is not RootRole.NONE


_ROWS = (
    Operation("all_reduce", ("allreduce",), ShapeCount.ONE, reduces=True),
    Operation("all_reduce_coalesced", ("allreduce_coalesced",), ShapeCount.SEVERAL, reduces=True),
    Operation("broadcast", ("broadcast",), ShapeCount.ONE, root=RootRole.SOURCE),
    Operation("reduce", ("reduce",), ShapeCount.ONE, root=RootRole.DESTINATION, reduces=True),
    Operation("all_gather", ("allgather",), ShapeCount.ONE, gathers=True),
    Operation("all_gather_coalesced", ("allgather_coalesced",), ShapeCount.SEVERAL, gathers=True),
    Operation(
        "all_gather_into_tensor",
        ("all_gather_single", "_allgather_base"),
        ShapeCount.ONE,
        rows=RowRequirement.SOME,
        gathers=True,
    ),
    Operation("gather", ("gather", "gather_single"), ShapeCount.ONE, root=RootRole.DESTINATION, gathers=True),
    Operation("scatter", ("scatter",), ShapeCount.ONE, root=RootRole.SOURCE),
    Operation("reduce_scatter", ("reduce_scatter",), ShapeCount.PER_MEMBER, reduces=True),
    Operation(
        "reduce_scatter_tensor",
        ("reduce_scatter_single", "_reduce_scatter_base"),
        ShapeCount.ONE,
        rows=RowRequirement.DIVISIBLE,
        reduces=True,
    ),
    Operation("all_to_all", ("alltoall",), ShapeCount.PER_MEMBER, splits=SplitRule.TENSORS),
    Operation(
        "all_to_all_single",
        ("all_to_all_single", "alltoall_base"),
        ShapeCount.IN_AND_OUT,
        rows=RowRequirement.SOME,
        splits=SplitRule.ROWS,
    ),
    Operation("barrier", ("barrier",), ShapeCount.NONE),
    Operation("send", ("send",), ShapeCount.ONE, OperationKind.MESSAGE),
    Operation("recv", ("recv", "recv_anysource"), ShapeCount.ONE, OperationKind.MESSAGE),
    Operation(
        "all_gather_into_tensor_coalesced",
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        ShapeCount.SEVERAL,
        rows=RowRequirement.SOME,
        gathers=True,
        is_in_programs=False,
    ),
    Operation(
        "reduce_scatter_tensor_coalesced",
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        ShapeCount.SEVERAL,
        rows=RowRequirement.DIVISIBLE,
        reduces=True,
        is_in_programs=False,
    ),
    Operation("monitored_barrier", ("monitored_barrier",), ShapeCount.NONE, is_in_programs=False),
    Operation("new_group", (), ShapeCount.NONE, OperationKind.CREATION, is_in_programs=False),
    Operation("split_group", (), ShapeCount.NONE, OperationKind.CREATION, is_in_programs=False),
)


class OperationTable(dict[str, Operation]):
    """Operations by name. A missing name is a bug in ddpsim and raises a one-line error."""

    def __missing__(self, name: str) -> Operation:
        """Raise an InternalError that names the operation without a row."""
        raise InternalError(f"operation {name!r} has no row in simulator/operations.py: give it one")


OPERATIONS = OperationTable({row.name: row for row in _ROWS})

IN_PROGRAMS = OperationTable({row.name: row for row in _ROWS if row.is_in_programs})
"""The operations that may occur in a `Program`. Their order decides which operation a seed draws."""

POINT_TO_POINT = frozenset(row.name for row in _ROWS if row.kind is OperationKind.MESSAGE)
CREATING = frozenset(row.name for row in _ROWS if row.kind is OperationKind.CREATION)
