"""The table of the operations of torch.distributed and of its process groups, with the properties of each.

All lists of operations are derived from it. Code that cannot be part of a pure table is in dicts keyed by its enums or
names: how data moves (transport/memory.py), the calls to gloo (transport/gloo.py), the calls of a program's rank
(scenarios/ranks/calls.py). The engine in `ddp` does not import the simulator and has a list of its own.
tests/architecture/test_operations.py checks all of them against this table.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from ddpsim.simulator.errors import InternalError


class Kind(Enum):
    """Which ranks take part in a call."""

    COLLECTIVE = "collective"
    MESSAGE = "message"
    """One sender and one receiver: it has a peer and a tag."""
    CREATION = "creation of a group"
    """A call that torch makes while it creates a group; it moves no data."""


class Shapes(Enum):
    """How many shapes a call's signature has."""

    NONE = "none"
    ONE = "one"
    SEVERAL = "one or more"
    PER_MEMBER = "one for each member of the group"
    IN_AND_OUT = "two: what is sent, what is received"


class Rows(Enum):
    """The requirement on the first dimension of a shape."""

    ANY = auto()
    """No requirement: a tensor may have no dimension."""
    SOME = auto()
    """It must exist, because tensors are joined or cut along it."""
    DIVISIBLE = auto()
    """It must be a multiple of the number of members."""


class Root(Enum):
    """The role of a call's root."""

    NONE = auto()
    SOURCE = auto()
    DESTINATION = auto()


class Splits(Enum):
    """How ranks divide their input if the parts for different members may have different sizes."""

    NONE = auto()
    TENSORS = auto()
    """Each tensor is one part."""
    ROWS = auto()
    """The caller gives the number of rows of each part; the sent and the received shape are both known."""


class Movement(Enum):
    """How the data of a call moves."""

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


class Passing(Enum):
    """The tensor arguments of a process group's method, before the options."""

    NOTHING = auto()
    TENSORS = auto()
    """`(tensors)`: each is input and output."""
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


class OnGloo(NamedTuple):
    """The method of torch's gloo group that an operation calls."""

    method: str
    passing: Passing
    options: str = ""
    """The name of the class of the method's options, whose fields are those of the operation; "" without options."""


class Operation(NamedTuple):
    """One row of the table: an operation and its properties."""

    name: str
    """The name in torch.distributed, which signatures use, too."""
    methods: tuple[str, ...]
    """The names of the process group's method in all versions of torch; () if only torch.distributed has it."""
    movement: Movement
    shapes: Shapes
    on_gloo: OnGloo | None
    """None for an operation that is never passed to gloo."""
    kind: Kind = Kind.COLLECTIVE
    rows: Rows = Rows.ANY
    root: Root = Root.NONE
    splits: Splits = Splits.NONE
    reduces: bool = False
    gathers: bool = False
    """Ranks receive the other ranks' tensors side by side."""
    is_in_programs: bool = True
    """The operation may occur in a `Program`: in drawn programs, and in those saved as files."""

    @property
    def has_root(self) -> bool:
        """Return True if the call names one rank that sends to all others, or receives from them."""
        return self.root is not Root.NONE


_ROWS = (
    Operation(
        "all_reduce",
        ("allreduce",),
        Movement.ALL_REDUCE,
        Shapes.ONE,
        OnGloo("allreduce", Passing.TENSORS, "AllreduceOptions"),
        reduces=True,
    ),
    Operation(
        "all_reduce_coalesced",
        ("allreduce_coalesced",),
        Movement.ALL_REDUCE,
        Shapes.SEVERAL,
        OnGloo("allreduce_coalesced", Passing.TENSORS, "AllreduceCoalescedOptions"),
        reduces=True,
    ),
    Operation(
        "broadcast",
        ("broadcast",),
        Movement.BROADCAST,
        Shapes.ONE,
        OnGloo("broadcast", Passing.TENSORS, "BroadcastOptions"),
        root=Root.SOURCE,
    ),
    Operation(
        "reduce",
        ("reduce",),
        Movement.REDUCE,
        Shapes.ONE,
        OnGloo("reduce", Passing.TENSORS, "ReduceOptions"),
        root=Root.DESTINATION,
        reduces=True,
    ),
    Operation(
        "all_gather",
        ("allgather",),
        Movement.ALL_GATHER,
        Shapes.ONE,
        OnGloo("allgather", Passing.LIST_FROM_TENSORS),
        gathers=True,
    ),
    Operation(
        "all_gather_coalesced",
        ("allgather_coalesced",),
        Movement.ALL_GATHER_COALESCED,
        Shapes.SEVERAL,
        OnGloo("allgather_coalesced", Passing.LISTS_FROM_TENSORS),
        gathers=True,
    ),
    Operation(
        "all_gather_into_tensor",
        ("all_gather_single", "_allgather_base"),
        Movement.ALL_GATHER_INTO_TENSOR,
        Shapes.ONE,
        OnGloo("_allgather_base", Passing.TENSOR_FROM_TENSOR),
        rows=Rows.SOME,
        gathers=True,
    ),
    Operation(
        "gather",
        ("gather", "gather_single"),
        Movement.GATHER,
        Shapes.ONE,
        OnGloo("gather", Passing.LIST_FROM_TENSORS, "GatherOptions"),
        root=Root.DESTINATION,
        gathers=True,
    ),
    Operation(
        "scatter",
        ("scatter",),
        Movement.SCATTER,
        Shapes.ONE,
        OnGloo("scatter", Passing.TENSORS_FROM_LIST, "ScatterOptions"),
        root=Root.SOURCE,
    ),
    Operation(
        "reduce_scatter",
        ("reduce_scatter",),
        Movement.REDUCE_SCATTER,
        Shapes.PER_MEMBER,
        OnGloo("reduce_scatter", Passing.TENSORS_FROM_LIST, "ReduceScatterOptions"),
        reduces=True,
    ),
    Operation(
        "reduce_scatter_tensor",
        ("reduce_scatter_single", "_reduce_scatter_base"),
        Movement.REDUCE_SCATTER_TENSOR,
        Shapes.ONE,
        OnGloo("_reduce_scatter_base", Passing.TENSOR_FROM_TENSOR, "ReduceScatterOptions"),
        rows=Rows.DIVISIBLE,
        reduces=True,
    ),
    Operation(
        "all_to_all",
        ("alltoall",),
        Movement.ALL_TO_ALL,
        Shapes.PER_MEMBER,
        OnGloo("alltoall", Passing.TENSORS_FROM_TENSORS),
        splits=Splits.TENSORS,
    ),
    Operation(
        "all_to_all_single",
        ("all_to_all_single", "alltoall_base"),
        Movement.ALL_TO_ALL_SINGLE,
        Shapes.IN_AND_OUT,
        OnGloo("alltoall_base", Passing.SPLIT_TENSORS),
        rows=Rows.SOME,
        splits=Splits.ROWS,
    ),
    Operation(
        "barrier",
        ("barrier",),
        Movement.NOTHING,
        Shapes.NONE,
        OnGloo("barrier", Passing.NOTHING, "BarrierOptions"),
    ),
    Operation(
        "send",
        ("send",),
        Movement.MESSAGE,
        Shapes.ONE,
        OnGloo("send", Passing.PEER),
        kind=Kind.MESSAGE,
    ),
    Operation(
        "recv",
        ("recv", "recv_anysource"),
        Movement.MESSAGE,
        Shapes.ONE,
        OnGloo("recv", Passing.PEER),
        kind=Kind.MESSAGE,
    ),
    Operation(
        "all_gather_into_tensor_coalesced",
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        Movement.ALL_GATHER_INTO_TENSOR,
        Shapes.SEVERAL,
        OnGloo("allgather_into_tensor_coalesced", Passing.TENSORS_FROM_TENSORS),
        rows=Rows.SOME,
        gathers=True,
        is_in_programs=False,
    ),
    Operation(
        "reduce_scatter_tensor_coalesced",
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        Movement.REDUCE_SCATTER_TENSOR,
        Shapes.SEVERAL,
        OnGloo("reduce_scatter_tensor_coalesced", Passing.TENSORS_FROM_TENSORS, "ReduceScatterOptions"),
        rows=Rows.DIVISIBLE,
        reduces=True,
        is_in_programs=False,
    ),
    Operation(
        "monitored_barrier",
        ("monitored_barrier",),
        Movement.NOTHING,
        Shapes.NONE,
        OnGloo("barrier", Passing.NOTHING, "BarrierOptions"),
        is_in_programs=False,
    ),
    # A group is connected on gloo when it first moves data.
    Operation("new_group", (), Movement.NOTHING, Shapes.NONE, on_gloo=None, kind=Kind.CREATION, is_in_programs=False),
    Operation("split_group", (), Movement.NOTHING, Shapes.NONE, on_gloo=None, kind=Kind.CREATION, is_in_programs=False),
)


class Table(dict[str, Operation]):
    """Operations by name. A missing name is a bug in ddpsim and raises an error of one line."""

    def __missing__(self, name: str) -> Operation:
        """Raise an InternalError that names the missing row."""
        raise InternalError(f"operation {name!r} has no row in simulator/operations.py: give it one")


OPERATIONS = Table({row.name: row for row in _ROWS})

IN_PROGRAMS = Table({row.name: row for row in _ROWS if row.is_in_programs})
"""The operations of a `Program`. Their order decides which one a seed draws."""

POINT_TO_POINT = frozenset(row.name for row in _ROWS if row.kind is Kind.MESSAGE)
CREATING = frozenset(row.name for row in _ROWS if row.kind is Kind.CREATION)
