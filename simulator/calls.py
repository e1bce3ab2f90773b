"""Calls: one rank's request to communicate, as a frozen value without tensors.

A call has a `Signature`, which must agree across ranks, a `Site`, where it was issued, and an `Origin`, the part of the
program that it belongs to.

The values are `NamedTuple`s, not frozen dataclasses, because a tuple is built in a third of the time.
"""

import re
from enum import Enum
from typing import NamedTuple

from ddpsim.simulator.operations import OPERATIONS, POINT_TO_POINT, ShapeCount

Shape = tuple[int, ...]
Splits = tuple[tuple[int, ...], tuple[int, ...]]
"""Input and output split sizes of all_to_all, in rows."""

_IN_AND_OUT = frozenset(row.name for row in OPERATIONS.values() if row.shapes is ShapeCount.IN_AND_OUT)

ANY_SOURCE = -1
"""The peer of a `recv` that accepts a message from any rank."""
FROM_RANK = "from rank "
"""How the text of a match event begins that names the sender of a message to such a receive."""


class Signature(NamedTuple):
    """The properties of a call that must be equal on all its ranks."""

    operation: str
    shapes: tuple[Shape, ...] = ()
    dtype: str | None = None
    reduction: str | None = None
    root: int | None = None
    """Global rank of the root of a rooted collective."""
    splits: Splits | None = None
    members: tuple[int, ...] | None = None
    """Global ranks of the group, for a call that creates a group."""

    def __str__(self) -> str:
        parts = [self.operation]
        if self.reduction is not None:
            parts.append(self.reduction)
        if self.dtype is not None:
            parts.append(self.dtype + shapes_text(self.shapes, are_in_and_out=self.operation in _IN_AND_OUT))
        if self.root is not None:
            parts.append(f"root {self.root}")
        if self.splits is not None:
            parts.append(f"splits {list(self.splits[0])} -> {list(self.splits[1])}")
        if self.members is not None:
            parts.append(f"ranks {list(self.members)}")
        return " ".join(parts)


def shapes_text(shapes: tuple[Shape, ...], *, are_in_and_out: bool) -> str:
    """Return the shapes of tensors as text: `[4, 2]`, `[4] x 3` for three tensors of one shape, or `[4] -> [2]`."""
    if are_in_and_out or not shapes:
        return " -> ".join(str(list(shape)) for shape in shapes)
    if all(shape == shapes[0] for shape in shapes):
        return str(list(shapes[0])) + (f" x {len(shapes)}" if len(shapes) > 1 else "")
    return ", ".join(str(list(shape)) for shape in shapes[:4]) + (", ..." if len(shapes) > 4 else "")


INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
"""Matches the folder of installed packages in the path of a file."""


class Site(NamedTuple):
    """The line of the user's program that issued a call."""

    path: str
    """The path of the file as Python reports it. It differs between machines: it is not compared, nor in a digest."""
    line: int
    function: str
    is_foreign: bool = False
    """True for a line that is not the program's (`call_sites.owner_of_file`), such as one of an installed package."""

    @property
    def file(self) -> str:
        """The name of the file without its folders."""
        return self.path.replace("\\", "/").rsplit("/", 1)[-1]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Site("", 0, "")


class Phase(Enum):
    """The purpose of a call. Calls of all phases except USER are issued by a DDP wrapper, or by `join` for it."""

    USER = "user"
    PARAMETER_CHECK = "parameter check"
    STATE_BROADCAST = "state broadcast"
    BUFFERS = "buffers"
    BUCKET = "bucket"
    USED_MAP = "used map"
    REBUILD = "rebuild"
    JOIN_CONTROL = "join control"
    FOLLOWING = "following"
    """The call is made on a rank that has run out of input, only because the other ranks make the call."""


class Parallelism(Enum):
    """The parts of torch, except DDP, that communicate for a program."""

    FSDP = "FSDP"
    PIPELINE = "pipeline"
    DTENSOR = "DTensor"
    CHECKPOINT = "checkpoint"
    OPTIMIZER = "optimizer"
    NORM = "gradient norm"


GREETING = "greeting"
"""The field `what` for the first message between neighbours of a pipeline, which only connects the ranks."""
COLLECTS_STATE = "consolidate_state_dict()"
"""The field `action` for an optimizer whose ranks send each other their parts of the optimizer state."""


class CallPart(NamedTuple):
    """What a call does within FSDP2, a pipeline, a DTensor, a checkpoint or an optimizer."""

    parallelism: Parallelism
    what: str
    """The object of the action: `unit "layers.0"`, `activations of micro-batch 2`, `Shard(0) -> Replicate`, `step
    "plan"`, `ZeroRedundancyOptimizer(Adam)`."""
    action: str = ""
    """The action in words: `all-gather before forward`, `stage 0 to stage 1`, `on "tp"`."""
    detail: str = ""
    """More details, such as the operation that needs a redistribution. Calls may match if details differ."""
    note: str = ""
    """Details that findings show and traces do not: a pipeline's schedule, or the layer that tensors are split for."""

    def matches_part(self, other: "CallPart | None") -> bool:
        """Return True if two parts may be the same action; a pipeline's message may lack its part on one rank."""
        if other is None:
            return self.parallelism is Parallelism.PIPELINE
        return self[:3] == other[:3]

    def part_text(self, step: int | None) -> str:
        """Return all fields except the note as text, with the training step if it is known."""
        what = f"{self.parallelism.value} {self.what}" + ("" if step is None else f" of step {step}")
        return ", ".join(filter(None, [what, self.action, self.detail]))


class Origin(NamedTuple):
    """The source of a call: the user's program, or a DDP wrapper with its phase, bucket and step.

    Calls of FSDP2, a pipeline, DTensors, checkpoints or optimizers count as the user's; `part` describes them.
    """

    phase: Phase = Phase.USER
    wrapper: int | None = None
    """The number of the DistributedDataParallel object on its rank, from 0 in order of construction."""
    bucket: int | None = None
    step: int | None = None
    """The number of synchronising forwards of that object before the call; None if it is not known."""
    shadow: bool = False
    """True if the call is made on a rank that has run out of input, so that the other ranks can continue."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters in the bucket, in bucket order."""
    by_hook: bool = False
    """True if the bucket's communication hook made the call. Such a call may match calls that no hook made."""
    is_chained: bool = False
    """True if the hook made the call in a `then` of a future, after an earlier call of the bucket was complete."""
    part: CallPart | None = None
    is_recomputed: bool = False
    """True if the program made the call while torch.utils.checkpoint ran a block again, in backward."""

    @property
    def is_of_program(self) -> bool:
        """Return True if the program's own code makes the call, neither DDP nor another part of torch."""
        return self.phase is Phase.USER and self.part is None

    def matches_origin(self, other: "Origin") -> bool:
        """Return True if calls of these two origins may match: of one DDP object, phase, bucket, part and step."""
        if Phase.FOLLOWING in (self.phase, other.phase):
            return True
        if self.part is not other.part and not _parts_match(self.part, other.part):
            return False
        if self.phase is not other.phase or self.wrapper != other.wrapper or self.bucket != other.bucket:
            return False
        return self.step is None or other.step is None or self.step == other.step

    def text_in_findings(self) -> str:
        """Return the origin as text for findings, which include details that a trace omits."""
        return f"{self}, {self.part.note}" if self.part is not None and self.part.note else str(self)

    def __str__(self) -> str:
        if self.part is not None:
            return self.part.part_text(self.step)
        if self.phase is Phase.USER:
            return "the user's program"
        text = f"DDP #{self.wrapper} {self.phase.value}" if self.wrapper is not None else self.phase.value
        if self.bucket is not None:
            text += f" {self.bucket}"
        if self.step is not None:
            text += f" of step {self.step}"
        return text + (" (shadow)" if self.shadow else "")


def _parts_match(one: CallPart | None, other: CallPart | None) -> bool:
    return one.matches_part(other) if one is not None else other is not None and other.matches_part(one)


USER_ORIGIN = Origin()


class Call(NamedTuple):
    """One rank's request to communicate: the call of an operation."""

    rank: int
    group: str
    sequence: int
    """The number of the call within group and rank, from 0. Messages and collectives are counted separately."""
    signature: Signature
    site: Site
    origin: Origin = USER_ORIGIN
    peer: int | None = None
    """The other rank of a point-to-point call, as a global rank; `ANY_SOURCE` for a receive from any rank."""
    tag: int = 0
    caller: Site | None = None
    """The line of the user's program behind `site` and in another file (`call_sites.caller_to_show`), or None."""
    thread: str = ""
    """The name of the thread that made the call; "" for the thread that runs the rank's program."""
    coordinates: str = ""
    """The coordinates of the call's rank in the program's device mesh: `dp 1, tp 0`; "" without two dimensions."""
    ignored_tag: int = 0
    """The tag that the program gave, if the backend ignores tags; the field `tag` is 0 then."""

    @property
    def location(self) -> str:
        """Return the line that issued the call, and its caller's: `metrics.py:24 from train.py:80`; "" if unknown."""
        if self.site == NOWHERE:  # in a record without stacks
            return ""
        return str(self.site) if self.caller is None else f"{self.site} from {self.caller}"

    @property
    def operation(self) -> str:
        """Return the name of the call's operation in torch.distributed."""
        return self.signature.operation

    @property
    def title(self) -> str:
        """Return the operation and the number of the call: `all_reduce #3`."""
        is_first = self.signature.operation == "new_group" and self.group == "default"
        return "init_process_group" if is_first else f"{self.signature.operation} #{self.sequence}"

    @property
    def is_point_to_point(self) -> bool:
        """Return True for a send or a receive."""
        return self.signature.operation in POINT_TO_POINT

    @property
    def leaves_undefined(self) -> bool:
        """Return True if the call may leave any values in its tensors: a reduce on a rank that is not the root."""
        return self.signature.operation == "reduce" and self.signature.root != self.rank

    def __str__(self) -> str:
        head, _, rest = str(self.signature).partition(" ")
        text = self.title + (f"  {rest}" if rest else "")
        if self.is_point_to_point:
            other = "any source" if self.peer == ANY_SOURCE else f"rank {self.peer}"
            text += ("  to " if head == "send" else "  from ") + other + (f"  tag {self.tag}" if self.tag else "")
            text += f"  tag {self.ignored_tag} ignored" if self.ignored_tag else ""
        return f'{text}  group "{self.group}"'


def channel_of_message(call: Call) -> tuple[str, int, int]:
    """Return the key by which messages are matched with receives: group, receiving rank, tag."""
    receiver = call.rank if call.signature.operation == "recv" else call.peer
    assert receiver is not None
    return call.group, receiver, call.tag


def is_other_half(other: Call, arrival: Call, text: str) -> bool:
    """Return True if `other` is the send or receive with which `arrival` was matched; both are of the same channel.

    `text` is the text of the match event, which names the sender for a receive from any source.
    """
    if other.operation == arrival.operation:
        return False
    if arrival.operation == "send":
        return other.peer in (ANY_SOURCE, arrival.rank)
    return text == f"{FROM_RANK}{other.rank}" if arrival.peer == ANY_SOURCE else other.rank == arrival.peer
