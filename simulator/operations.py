"""The table of the operations of torch.distributed and of its process groups, with the properties of each operation.

All lists of operations are derived from this table. Code that cannot be part of a table is in dicts whose keys are its
enums or names: how data moves (transport/memory.py), the calls to gloo (transport/gloo.py), the calls of a program's
rank (scenarios/ranks/calls.py). The engine in `ddp` does not import the simulator and has a list of its own.
tests/architecture/test_operations.py checks all these against the table.
"""

from __future__ import annotations

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


class DataMovement(Enum):
    """How the data of a call moves between the ranks."""

    NOTHING = auto()
    ALL_REDUCE = auto()
    REDUCE = auto()
    BROADCAST = auto()
    ALL_GATHER = auto()
    ALL_GATHER_INTO_TENSOR = auto()
    ALL_GATHER_COALESCED = auto()
    GATHER = auto()
    SCATTER = auto()
    REDUCE_SCATTER = auto()
    REDUCE_SCATTER_TENSOR = auto()
    ALL_TO_ALL = auto()
    ALL_TO_ALL_SINGLE = auto()
    MESSAGE = auto()


class TensorArguments(Enum):
    """The tensor arguments of a process group's method. Options follow them."""

    NOTHING = auto()
    TENSORS = auto()
    """`(tensors)`: each tensor is both input and output."""
    TENSOR_FROM_TENSOR = auto()
    """`(output, input)`."""
    TENSORS_FROM_TENSORS = auto()
    """`(outputs, inputs)`."""
    LIST_FROM_TENSORS = auto()
    """`([outputs], inputs)`; without outputs, the first list is empty."""
    TENSORS_FROM_LIST = auto()
    """`(outputs, [inputs])`; without inputs, the second list is empty."""
    LISTS_FROM_TENSORS = auto()
    """`(a list of outputs for each rank, inputs)`."""
    SPLIT_TENSORS = auto()
    """`(output, input, rows received, rows sent)`."""
    PEER = auto()
    """`(tensors, the other rank, tag)`."""


class GlooMethod(NamedTuple):
    """The method of torch's gloo process group that an operation calls."""

    method: str
    passing: TensorArguments
    options: str = ""
    """The name of the class of the method's options; "" without options. The fields of the class are those of the
    operation."""


class Operation(NamedTuple):
    """One row of the table: an operation and its properties."""

    name: str
    """The name of the operation in torch.distributed, also used in signatures."""
    methods: tuple[str, ...]
    """The names of the process group's method in all torch versions; () if the operation exists in torch.distributed
    only."""
    movement: DataMovement
    shapes: ShapeCount
    on_gloo: GlooMethod | None
    """The gloo method that the operation calls; None for an operation that is never passed to gloo."""
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
    Operation(
        "all_reduce",
        ("allreduce",),
        DataMovement.ALL_REDUCE,
        ShapeCount.ONE,
        GlooMethod("allreduce", TensorArguments.TENSORS, "AllreduceOptions"),
        reduces=True,
    ),
    Operation(
        "all_reduce_coalesced",
        ("allreduce_coalesced",),
        DataMovement.ALL_REDUCE,
        ShapeCount.SEVERAL,
        GlooMethod("allreduce_coalesced", TensorArguments.TENSORS, "AllreduceCoalescedOptions"),
        reduces=True,
    ),
    Operation(
        "broadcast",
        ("broadcast",),
        DataMovement.BROADCAST,
        ShapeCount.ONE,
        GlooMethod("broadcast", TensorArguments.TENSORS, "BroadcastOptions"),
        root=RootRole.SOURCE,
    ),
    Operation(
        "reduce",
        ("reduce",),
        DataMovement.REDUCE,
        ShapeCount.ONE,
        GlooMethod("reduce", TensorArguments.TENSORS, "ReduceOptions"),
        root=RootRole.DESTINATION,
        reduces=True,
    ),
    Operation(
        "all_gather",
        ("allgather",),
        DataMovement.ALL_GATHER,
        ShapeCount.ONE,
        GlooMethod("allgather", TensorArguments.LIST_FROM_TENSORS),
        gathers=True,
    ),
    Operation(
        "all_gather_coalesced",
        ("allgather_coalesced",),
        DataMovement.ALL_GATHER_COALESCED,
        ShapeCount.SEVERAL,
        GlooMethod("allgather_coalesced", TensorArguments.LISTS_FROM_TENSORS),
        gathers=True,
    ),
    Operation(
        "all_gather_into_tensor",
        ("all_gather_single", "_allgather_base"),
        DataMovement.ALL_GATHER_INTO_TENSOR,
        ShapeCount.ONE,
        GlooMethod("_allgather_base", TensorArguments.TENSOR_FROM_TENSOR),
        rows=RowRequirement.SOME,
        gathers=True,
    ),
    Operation(
        "gather",
        ("gather", "gather_single"),
        DataMovement.GATHER,
        ShapeCount.ONE,
        GlooMethod("gather", TensorArguments.LIST_FROM_TENSORS, "GatherOptions"),
        root=RootRole.DESTINATION,
        gathers=True,
    ),
    Operation(
        "scatter",
        ("scatter",),
        DataMovement.SCATTER,
        ShapeCount.ONE,
        GlooMethod("scatter", TensorArguments.TENSORS_FROM_LIST, "ScatterOptions"),
        root=RootRole.SOURCE,
    ),
    Operation(
        "reduce_scatter",
        ("reduce_scatter",),
        DataMovement.REDUCE_SCATTER,
        ShapeCount.PER_MEMBER,
        GlooMethod("reduce_scatter", TensorArguments.TENSORS_FROM_LIST, "ReduceScatterOptions"),
        reduces=True,
    ),
    Operation(
        "reduce_scatter_tensor",
        ("reduce_scatter_single", "_reduce_scatter_base"),
        DataMovement.REDUCE_SCATTER_TENSOR,
        ShapeCount.ONE,
        GlooMethod("_reduce_scatter_base", TensorArguments.TENSOR_FROM_TENSOR, "ReduceScatterOptions"),
        rows=RowRequirement.DIVISIBLE,
        reduces=True,
    ),
    Operation(
        "all_to_all",
        ("alltoall",),
        DataMovement.ALL_TO_ALL,
        ShapeCount.PER_MEMBER,
        GlooMethod("alltoall", TensorArguments.TENSORS_FROM_TENSORS),
        splits=SplitRule.TENSORS,
    ),
    Operation(
        "all_to_all_single",
        ("all_to_all_single", "alltoall_base"),
        DataMovement.ALL_TO_ALL_SINGLE,
        ShapeCount.IN_AND_OUT,
        GlooMethod("alltoall_base", TensorArguments.SPLIT_TENSORS),
        rows=RowRequirement.SOME,
        splits=SplitRule.ROWS,
    ),
    Operation(
        "barrier",
        ("barrier",),
        DataMovement.NOTHING,
        ShapeCount.NONE,
        GlooMethod("barrier", TensorArguments.NOTHING, "BarrierOptions"),
    ),
    Operation(
        "send",
        ("send",),
        DataMovement.MESSAGE,
        ShapeCount.ONE,
        GlooMethod("send", TensorArguments.PEER),
        kind=OperationKind.MESSAGE,
    ),
    Operation(
        "recv",
        ("recv", "recv_anysource"),
        DataMovement.MESSAGE,
        ShapeCount.ONE,
        GlooMethod("recv", TensorArguments.PEER),
        kind=OperationKind.MESSAGE,
    ),
    Operation(
        "all_gather_into_tensor_coalesced",
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        DataMovement.ALL_GATHER_INTO_TENSOR,
        ShapeCount.SEVERAL,
        GlooMethod("allgather_into_tensor_coalesced", TensorArguments.TENSORS_FROM_TENSORS),
        rows=RowRequirement.SOME,
        gathers=True,
        is_in_programs=False,
    ),
    Operation(
        "reduce_scatter_tensor_coalesced",
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        DataMovement.REDUCE_SCATTER_TENSOR,
        ShapeCount.SEVERAL,
        GlooMethod("reduce_scatter_tensor_coalesced", TensorArguments.TENSORS_FROM_TENSORS, "ReduceScatterOptions"),
        rows=RowRequirement.DIVISIBLE,
        reduces=True,
        is_in_programs=False,
    ),
    Operation(
        "monitored_barrier",
        ("monitored_barrier",),
        DataMovement.NOTHING,
        ShapeCount.NONE,
        GlooMethod("barrier", TensorArguments.NOTHING, "BarrierOptions"),
        is_in_programs=False,
    ),
    # A group is connected on gloo when it first moves data.
    Operation(
        "new_group",
        (),
        DataMovement.NOTHING,
        ShapeCount.NONE,
        on_gloo=None,
        kind=OperationKind.CREATION,
        is_in_programs=False,
    ),
    Operation(
        "split_group",
        (),
        DataMovement.NOTHING,
        ShapeCount.NONE,
        on_gloo=None,
        kind=OperationKind.CREATION,
        is_in_programs=False,
    ),
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
