"""The one table of operations: what torch.distributed and its process groups have, and what each operation is.

Whoever lists operations reads it, and what cannot stand in a pure table is a dict keyed by one of its enums, or by the
names in it: how data moves (transport/memory.py), what gloo is handed (transport/gloo.py), what a rank of a
program does (scenarios/ranks/calls.py). The engine in `ddp` knows no simulator and has a list of its own.
tests/architecture/test_operations.py holds all of them to this table, and says which lacks what.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from ddpsim.simulator.errors import InternalError


class Kind(Enum):
    """Who meets in a call."""

    COLLECTIVE = "collective"
    MESSAGE = "message"
    """One sender and one receiver: it has a peer and a tag."""
    CREATION = "creation of a group"
    """Made by torch on the way to a new group; it moves nothing."""


class Shapes(Enum):
    """How many shapes a call's signature has."""

    NONE = "none"
    ONE = "one"
    SEVERAL = "one or more"
    PER_MEMBER = "one for each member of the group"
    IN_AND_OUT = "two: what is sent, what is received"


class Rows(Enum):
    """What is asked of the first dimension of a shape."""

    ANY = auto()
    """Nothing; a tensor may have no dimension."""
    SOME = auto()
    """There is one, since tensors are put together, or cut, along it."""
    DIVISIBLE = auto()
    """There is one, and it is a multiple of the members."""


class Root(Enum):
    """What the root of a call is to the others."""

    NONE = auto()
    SOURCE = auto()
    DESTINATION = auto()


class Splits(Enum):
    """Whether the ranks may bring different sizes, and what then says which part goes where."""

    NONE = auto()
    TENSORS = auto()
    """A tensor is a part."""
    ROWS = auto()
    """The caller says how many rows are a part, and both the sent and the received shape are known."""


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
    """How a method of a process group takes its tensors, before the options."""

    NOTHING = auto()
    TENSORS = auto()
    """`(tensors)`: each is input and output."""
    TENSOR_FROM_TENSOR = auto()
    """`(output, input)`."""
    TENSORS_FROM_TENSORS = auto()
    """`(outputs, inputs)`."""
    LIST_FROM_TENSORS = auto()
    """`([outputs], inputs)`; no list where there are no outputs."""
    TENSORS_FROM_LIST = auto()
    """`(outputs, [inputs])`; no list where there are no inputs."""
    LISTS_FROM_TENSORS = auto()
    """`(a list of outputs for each rank, inputs)`."""
    SPLIT_TENSORS = auto()
    """`(output, input, rows received, rows sent)`."""
    PEER = auto()
    """`(tensors, the other rank, tag)`."""


class Algorithm(Enum):
    """What gloo does: it cannot tell two operations apart that are one algorithm there."""

    ALL_REDUCE = "all_reduce"
    REDUCE = "reduce"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"
    GATHER = "gather"
    SCATTER = "scatter"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    ALL_TO_ALL_SINGLE = "all_to_all_single"
    BARRIER = "barrier"
    MESSAGE = "message"


class OnGloo(NamedTuple):
    """The call of torch's own group that an operation becomes, and what gloo does not notice in it."""

    method: str
    passing: Passing
    algorithm: Algorithm
    options: str = ""
    """The name of the options' class; its fields are those that the operation has. "" for a method without."""
    ends_when_empty: bool = False
    """A call of no elements waits for nobody."""
    has_room_to_spare: bool = False
    """What one rank sends may be shorter than what it is received into."""


class Operation(NamedTuple):
    """One row of the table."""

    name: str
    """As torch.distributed spells it, and signatures do."""
    methods: tuple[str, ...]
    """Of a process group, under the names of all versions of torch; () for what only torch.distributed has."""
    movement: Movement
    shapes: Shapes
    on_gloo: OnGloo | None
    """None for what gloo is not asked to do."""
    kind: Kind = Kind.COLLECTIVE
    rows: Rows = Rows.ANY
    root: Root = Root.NONE
    splits: Splits = Splits.NONE
    reduces: bool = False
    gathers: bool = False
    """Ranks receive what others bring, side by side."""
    is_in_programs: bool = True
    """The programs that are drawn, checked and kept as files may have it; scenarios/ranks/calls.py makes it."""

    @property
    def has_root(self) -> bool:
        """True if one rank is named that sends to the others, or receives from them."""
        return self.root is not Root.NONE


_ROWS = (
    Operation(
        "all_reduce",
        ("allreduce",),
        Movement.ALL_REDUCE,
        Shapes.ONE,
        OnGloo("allreduce", Passing.TENSORS, Algorithm.ALL_REDUCE, "AllreduceOptions", ends_when_empty=True),
        reduces=True,
    ),
    Operation(
        "all_reduce_coalesced",
        ("allreduce_coalesced",),
        Movement.ALL_REDUCE,
        Shapes.SEVERAL,
        OnGloo(
            "allreduce_coalesced",
            Passing.TENSORS,
            Algorithm.ALL_REDUCE,
            "AllreduceCoalescedOptions",
            ends_when_empty=True,
        ),
        reduces=True,
    ),
    Operation(
        "broadcast",
        ("broadcast",),
        Movement.BROADCAST,
        Shapes.ONE,
        OnGloo("broadcast", Passing.TENSORS, Algorithm.BROADCAST, "BroadcastOptions", has_room_to_spare=True),
        root=Root.SOURCE,
    ),
    Operation(
        "reduce",
        ("reduce",),
        Movement.REDUCE,
        Shapes.ONE,
        OnGloo("reduce", Passing.TENSORS, Algorithm.REDUCE, "ReduceOptions", ends_when_empty=True),
        root=Root.DESTINATION,
        reduces=True,
    ),
    Operation(
        "all_gather",
        ("allgather",),
        Movement.ALL_GATHER,
        Shapes.ONE,
        OnGloo("allgather", Passing.LIST_FROM_TENSORS, Algorithm.ALL_GATHER, ends_when_empty=True),
        gathers=True,
    ),
    Operation(
        "all_gather_coalesced",
        ("allgather_coalesced",),
        Movement.ALL_GATHER_COALESCED,
        Shapes.SEVERAL,
        OnGloo("allgather_coalesced", Passing.LISTS_FROM_TENSORS, Algorithm.ALL_GATHER, ends_when_empty=True),
        gathers=True,
    ),
    Operation(
        "all_gather_into_tensor",
        ("all_gather_single", "_allgather_base"),
        Movement.ALL_GATHER_INTO_TENSOR,
        Shapes.ONE,
        OnGloo("_allgather_base", Passing.TENSOR_FROM_TENSOR, Algorithm.ALL_GATHER, ends_when_empty=True),
        rows=Rows.SOME,
        gathers=True,
    ),
    Operation(
        "gather",
        ("gather", "gather_single"),
        Movement.GATHER,
        Shapes.ONE,
        OnGloo("gather", Passing.LIST_FROM_TENSORS, Algorithm.GATHER, "GatherOptions", has_room_to_spare=True),
        root=Root.DESTINATION,
        gathers=True,
    ),
    Operation(
        "scatter",
        ("scatter",),
        Movement.SCATTER,
        Shapes.ONE,
        OnGloo("scatter", Passing.TENSORS_FROM_LIST, Algorithm.SCATTER, "ScatterOptions", has_room_to_spare=True),
        root=Root.SOURCE,
    ),
    Operation(
        "reduce_scatter",
        ("reduce_scatter",),
        Movement.REDUCE_SCATTER,
        Shapes.PER_MEMBER,
        OnGloo(
            "reduce_scatter",
            Passing.TENSORS_FROM_LIST,
            Algorithm.REDUCE_SCATTER,
            "ReduceScatterOptions",
            ends_when_empty=True,
        ),
        reduces=True,
    ),
    Operation(
        "reduce_scatter_tensor",
        ("reduce_scatter_single", "_reduce_scatter_base"),
        Movement.REDUCE_SCATTER_TENSOR,
        Shapes.ONE,
        OnGloo(
            "_reduce_scatter_base",
            Passing.TENSOR_FROM_TENSOR,
            Algorithm.ALL_REDUCE,
            "ReduceScatterOptions",
            ends_when_empty=True,
        ),
        rows=Rows.DIVISIBLE,
        reduces=True,
    ),
    Operation(
        "all_to_all",
        ("alltoall",),
        Movement.ALL_TO_ALL,
        Shapes.PER_MEMBER,
        OnGloo("alltoall", Passing.TENSORS_FROM_TENSORS, Algorithm.ALL_TO_ALL, has_room_to_spare=True),
        splits=Splits.TENSORS,
    ),
    Operation(
        "all_to_all_single",
        ("all_to_all_single", "alltoall_base"),
        Movement.ALL_TO_ALL_SINGLE,
        Shapes.IN_AND_OUT,
        OnGloo("alltoall_base", Passing.SPLIT_TENSORS, Algorithm.ALL_TO_ALL_SINGLE, has_room_to_spare=True),
        rows=Rows.SOME,
        splits=Splits.ROWS,
    ),
    Operation(
        "barrier",
        ("barrier",),
        Movement.NOTHING,
        Shapes.NONE,
        OnGloo("barrier", Passing.NOTHING, Algorithm.BARRIER, "BarrierOptions"),
    ),
    Operation(
        "send",
        ("send",),
        Movement.MESSAGE,
        Shapes.ONE,
        OnGloo("send", Passing.PEER, Algorithm.MESSAGE, has_room_to_spare=True),
        kind=Kind.MESSAGE,
    ),
    Operation(
        "recv",
        ("recv", "recv_anysource"),
        Movement.MESSAGE,
        Shapes.ONE,
        OnGloo("recv", Passing.PEER, Algorithm.MESSAGE, has_room_to_spare=True),
        kind=Kind.MESSAGE,
    ),
    Operation(
        "all_gather_into_tensor_coalesced",
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        Movement.ALL_GATHER_INTO_TENSOR,
        Shapes.SEVERAL,
        OnGloo(
            "allgather_into_tensor_coalesced",
            Passing.TENSORS_FROM_TENSORS,
            Algorithm.ALL_GATHER,
            ends_when_empty=True,
        ),
        rows=Rows.SOME,
        gathers=True,
        is_in_programs=False,
    ),
    Operation(
        "reduce_scatter_tensor_coalesced",
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        Movement.REDUCE_SCATTER_TENSOR,
        Shapes.SEVERAL,
        OnGloo(
            "reduce_scatter_tensor_coalesced",
            Passing.TENSORS_FROM_TENSORS,
            Algorithm.ALL_REDUCE,
            "ReduceScatterOptions",
            ends_when_empty=True,
        ),
        rows=Rows.DIVISIBLE,
        reduces=True,
        is_in_programs=False,
    ),
    Operation(
        "monitored_barrier",
        ("monitored_barrier",),
        Movement.NOTHING,
        Shapes.NONE,
        OnGloo("barrier", Passing.NOTHING, Algorithm.BARRIER, "BarrierOptions"),
        is_in_programs=False,
    ),
    # A group is connected on gloo when it first moves data.
    Operation("new_group", (), Movement.NOTHING, Shapes.NONE, on_gloo=None, kind=Kind.CREATION, is_in_programs=False),
    Operation("split_group", (), Movement.NOTHING, Shapes.NONE, on_gloo=None, kind=Kind.CREATION, is_in_programs=False),
)


class Table(dict[str, Operation]):
    """Operations by name; one that is asked for and not there is a bug of ours, said in one line."""

    def __missing__(self, name: str) -> Operation:
        """Say which row is missing."""
        raise InternalError(f"operation {name!r} has no row in simulator/operations.py: give it one")


OPERATIONS = Table({row.name: row for row in _ROWS})
"""All of them."""

IN_PROGRAMS = Table({row.name: row for row in _ROWS if row.is_in_programs})
"""Those of programs. The order is that in which seeds draw them."""

POINT_TO_POINT = frozenset(row.name for row in _ROWS if row.kind is Kind.MESSAGE)
CREATING = frozenset(row.name for row in _ROWS if row.kind is Kind.CREATION)
