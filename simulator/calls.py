"""Calls: one rank's request to communicate, as a frozen value.

A call knows what must agree across ranks (its `Signature`), where it was issued (its `Site`) and what it belongs to
(its `Origin`). It holds no tensor: matching and diagnosis work on calls alone, whether they come from a live run or
elsewhere.

The values here are `NamedTuple`s rather than frozen dataclasses: one is made for each operation of each rank, and a
tuple is built in a third of the time.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from ddpsim.simulator.operations import OPERATIONS, POINT_TO_POINT, Shapes

Shape = tuple[int, ...]

_IN_AND_OUT = frozenset(row.name for row in OPERATIONS.values() if row.shapes is Shapes.IN_AND_OUT)

ANY_SOURCE = -1
"""The peer of a `recv` that takes a message from whoever sends one."""


class Signature(NamedTuple):
    """What must agree across the ranks of a call."""

    operation: str
    shapes: tuple[Shape, ...] = ()
    dtype: str | None = None
    reduction: str | None = None
    root: int | None = None
    """Global rank of the root of a rooted collective."""
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Input and output split sizes of all_to_all, in rows."""
    members: tuple[int, ...] | None = None
    """Global ranks of the group, for the calls that create one."""

    def __str__(self) -> str:
        parts = [self.operation]
        if self.reduction is not None:
            parts.append(self.reduction)
        if self.dtype is not None:
            parts.append(self.dtype + self._shapes_text())
        if self.root is not None:
            parts.append(f"root {self.root}")
        if self.splits is not None:
            parts.append(f"splits {list(self.splits[0])} -> {list(self.splits[1])}")
        if self.members is not None:
            parts.append(f"ranks {list(self.members)}")
        return " ".join(parts)

    def _shapes_text(self) -> str:
        if self.operation in _IN_AND_OUT:
            return " -> ".join(str(list(shape)) for shape in self.shapes)
        return shapes_text(self.shapes)


def shapes_text(shapes: tuple[Shape, ...]) -> str:
    """Shapes as people write them: `[110]`, `[4, 2]`, and `[4] x 3` for three tensors of one shape."""
    if not shapes:
        return ""
    if all(shape == shapes[0] for shape in shapes):
        return str(list(shapes[0])) + (f" x {len(shapes)}" if len(shapes) > 1 else "")
    return ", ".join(str(list(shape)) for shape in shapes[:4]) + (", ..." if len(shapes) > 4 else "")


INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
"""The folder of installed packages, in a file's path."""


class Site(NamedTuple):
    """The line of the user's program that issued a call."""

    path: str
    """As Python reports it; never compared and never part of a digest, since it differs between machines."""
    line: int
    function: str

    @property
    def file(self) -> str:
        """The file's name without its folders."""
        return self.path.replace("\\", "/").rsplit("/", 1)[-1]

    @property
    def is_installed(self) -> bool:
        """True for a line of an installed package."""
        return INSTALLED.search(self.path) is not None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Site("", 0, "")


class Phase(Enum):
    """What a call is for. Everything but USER is issued by a DDP wrapper (or by `join` on its behalf)."""

    USER = "user"
    PARAMETER_CHECK = "parameter check"
    STATE_BROADCAST = "state broadcast"
    BUFFERS = "buffers"
    BUCKET = "bucket"
    USED_MAP = "used map"
    REBUILD = "rebuild"
    JOIN_CONTROL = "join control"
    FOLLOWING = "following"
    """Made on a rank that has joined because the others make it, whatever it is for them."""


class Parallelism(Enum):
    """What of torch, beside DDP, communicates for a program."""

    FSDP = "FSDP"
    PIPELINE = "pipeline"
    DTENSOR = "DTensor"
    CHECKPOINT = "checkpoint"
    OPTIMIZER = "optimizer"
    NORM = "gradient norm"


GREETING = "greeting"
"""What a message of a pipeline is by which neighbours only get to know each other; nobody reads it."""
COLLECTS_STATE = "consolidate_state_dict()"
"""The action of an optimizer whose ranks send each other their parts of its state."""


class Part(NamedTuple):
    """What exactly of FSDP2, a pipeline, a DTensor, a checkpoint or an optimizer a call is."""

    parallelism: Parallelism
    what: str
    """`unit "layers.0"`, `activations of micro-batch 2`, `Shard(0) -> Replicate`, `step "plan"`,
    `ZeroRedundancyOptimizer(Adam)`."""
    action: str = ""
    """`all-gather before forward`, `stage 0 to stage 1`, `on "tp"`."""
    detail: str = ""
    """What else is known, as the operation that a redistribution is for; calls that differ in it belong together."""
    note: str = ""
    """What findings say besides and traces do not: the schedule of a pipeline, the layer that tensors are split for."""

    def belongs_with(self, other: Part | None) -> bool:
        """True if it may be the same on two ranks. A message that is no pipeline's may have been left untold."""
        if other is None:
            return self.parallelism is Parallelism.PIPELINE
        return self[:3] == other[:3]

    def text(self, step: int | None) -> str:
        """All of it, in a step of training if that is known."""
        what = f"{self.parallelism.value} {self.what}" + ("" if step is None else f" of step {step}")
        return ", ".join(filter(None, [what, self.action, self.detail]))


class Origin(NamedTuple):
    """What a call belongs to: the user's program, or a DDP wrapper with its phase, bucket and step.

    What the program has torch do by FSDP2, a pipeline, DTensors, checkpoints or optimizers is the user's, and `part`
    tells it.
    """

    phase: Phase = Phase.USER
    wrapper: int | None = None
    """Which DDP wrapper of its rank, numbered from 0 in order of construction."""
    bucket: int | None = None
    step: int | None = None
    """Synchronising forward of the wrapper that the call follows, from 1; None where a shadow cannot know it."""
    shadow: bool = False
    """Made on a joined rank to keep the others going."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters in the bucket, in bucket order."""
    by_hook: bool = False
    """The bucket's communication hook made the call. Calls belong together whether hooks make them or not."""
    is_chained: bool = False
    """The hook made the call when an earlier one of the bucket was complete, in a `then`."""
    part: Part | None = None

    @property
    def is_programs(self) -> bool:
        """True for a call of the program's own lines, which neither DDP nor another part of torch makes for it."""
        return self.phase is Phase.USER and self.part is None

    def belongs_with(self, other: Origin) -> bool:
        """True if the two calls are the same thing on two ranks: same wrapper, phase, bucket, part and step."""
        if Phase.FOLLOWING in (self.phase, other.phase):
            return True
        if self.part is not other.part and not _parts_belong_together(self.part, other.part):
            return False
        if self.phase is not other.phase or self.wrapper != other.wrapper or self.bucket != other.bucket:
            return False
        return self.step is None or other.step is None or self.step == other.step

    def told(self) -> str:
        """As findings tell it: with what a trace leaves out."""
        return f"{self}, {self.part.note}" if self.part is not None and self.part.note else str(self)

    def __str__(self) -> str:
        if self.part is not None:
            return self.part.text(self.step)
        if self.phase is Phase.USER:
            return "the user's program"
        text = f"DDP #{self.wrapper} {self.phase.value}" if self.wrapper is not None else self.phase.value
        if self.bucket is not None:
            text += f" {self.bucket}"
        if self.step is not None:
            text += f" of step {self.step}"
        return text + (" (shadow)" if self.shadow else "")


def _parts_belong_together(one: Part | None, other: Part | None) -> bool:
    return one.belongs_with(other) if one is not None else other is not None and other.belongs_with(one)


USER_ORIGIN = Origin()


class Call(NamedTuple):
    """One rank's request."""

    rank: int
    group: str
    sequence: int
    """Its number within group and rank, from 0; point-to-point calls are counted apart from collectives."""
    signature: Signature
    site: Site
    origin: Origin = USER_ORIGIN
    peer: int | None = None
    """The other rank of a point-to-point call (global), `ANY_SOURCE` for a recv from whoever sends."""
    tag: int = 0
    caller: Site | None = None
    """Where the file of `site`, or the installed packages that it is in, were called from; None if nowhere else."""
    thread: str = ""
    """The name of the thread that made it; "" for the one that runs the rank's program."""
    coordinates: str = ""
    """Where its rank stands in the program's device mesh, as `dp 1, tp 0`; "" without a mesh of two dimensions."""
    ignored_tag: int = 0
    """The tag that the program gave, where the backend does not see tags; `tag` is 0 then."""

    @property
    def location(self) -> str:
        """The line that issued it, and the one behind it: `metrics.py:24 from train.py:80`; "" if nobody knows."""
        if self.site == NOWHERE:  # in a record without stacks
            return ""
        return str(self.site) if self.caller is None else f"{self.site} from {self.caller}"

    @property
    def operation(self) -> str:
        """The name of the operation, as torch.distributed spells it."""
        return self.signature.operation

    @property
    def is_point_to_point(self) -> bool:
        """True for send and recv."""
        return self.signature.operation in POINT_TO_POINT

    @property
    def leaves_undefined(self) -> bool:
        """True for a reduce elsewhere than at its root, which may leave anything in its tensors."""
        return self.signature.operation == "reduce" and self.signature.root != self.rank

    def __str__(self) -> str:
        head, _, rest = str(self.signature).partition(" ")
        text = f"{head} #{self.sequence}" + (f"  {rest}" if rest else "")
        if self.is_point_to_point:
            other = "any source" if self.peer == ANY_SOURCE else f"rank {self.peer}"
            text += ("  to " if head == "send" else "  from ") + other + (f"  tag {self.tag}" if self.tag else "")
            text += f"  tag {self.ignored_tag} ignored" if self.ignored_tag else ""
        return f'{text}  group "{self.group}"'


def channel(call: Call) -> tuple[str, int, int]:
    """Where a message and its receive look for each other: group, the rank that receives, tag."""
    receiver = call.rank if call.operation == "recv" else call.peer
    assert receiver is not None
    return call.group, receiver, call.tag


def is_partner(other: Call, arrival: Call, text: str) -> bool:
    """Whether a call of that channel is the other half of the message whose later half arrived.

    `text` is that of the event, which says whom a receive from anybody has met.
    """
    if other.operation == arrival.operation:
        return False
    if arrival.operation == "send":
        return other.peer in (ANY_SOURCE, arrival.rank)
    return text == f"from rank {other.rank}" if arrival.peer == ANY_SOURCE else other.rank == arrival.peer
