"""torchcomms' clog, version 1: a text log of each rank's calls, with more details than the flight recorder.

    V|1|base_timestamp=1714234567.890
    new_comm|comm=world|rank=0|world_size=8
    C1|sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f|comm=world
    C1|Q|work_id=1|+0.001

A signature line describes the calls of a number; each `Q` is one call, `E` its end. Calls captured into a CUDA graph
(`G..`) count as calls, made once when the graph was captured; lines about replays only say that they happened. A log
has no lines of the user's program and no shapes: a call has a number of elements.
"""

from collections import Counter, defaultdict, deque

from ddpsim.simulator.calls import Shape, Signature, Splits
from ddpsim.simulator.operations import POINT_TO_POINT
from ddpsim.simulator.records.rank_record import CallLog, CallProgress, LoggedCall, RankRecord, RecordError
from ddpsim.simulator.records.record_texts import OPERATIONS, SHORT_DTYPES, number_names, printable_text, rank_in_path

_BY_OUTPUT = frozenset({"scatter", "recv"})
_MOST_RANKS = 2**17
_UNSIZED = frozenset({"batch_op_issue"})


def is_clog(data: bytes) -> bool:
    """Return True if the data begin like a clog, of any version."""
    return data.startswith(b"V|") and b"base_timestamp=" in data[:200]


def read_clog(data: bytes, source: str) -> RankRecord:
    """Return the record in a clog; a last line that is cut off is ignored. Raises RecordError if it cannot be read."""
    text = data.decode("utf-8", "replace")
    lines = [line if line.isprintable() else printable_text(line) for line in text.splitlines()]
    version = lines[0].split("|")[1]
    if version != "1":
        raise RecordError(f"a clog (torchcomms' call log) of version {version[:20]!r}, expected 1: update ddpsim")
    reading = _ClogParser(source)
    for number, line in enumerate(lines[1:], start=2):
        try:
            reading.parse_line(line)
        except (ValueError, KeyError, IndexError) as error:
            if number == len(lines) and not data.endswith(b"\n"):
                break
            raise RecordError(
                f"a clog (torchcomms' call log) whose line {number} is {line[:60]!r}, "
                "expected a line of version 1: leave it out"
            ) from error
    return reading.make_record()


class _ClogParser:
    """Parses one clog (torchcomms' text log of a rank's calls), line by line."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._ranks: dict[str, tuple[int, int]] = {}
        """For each communicator, this rank's number in it and its size."""
        self._members: dict[str, tuple[int, ...]] = {}
        self._signatures: dict[str, tuple[str, Signature, int | None]] = {}
        """By signature number: communicator, signature, and the peer's rank in the communicator."""
        self._queued: list[str] = []
        """For each call, the number of its signature."""
        self._running: dict[str, deque[int]] = defaultdict(deque)
        """For each signature, its calls that have not ended, the earliest first."""
        self._ended: set[int] = set()
        self._has_ends = False

    def parse_line(self, line: str) -> None:
        """Parse one line of the clog."""
        head, *rest = line.split("|")
        if head == "new_comm":
            fields = _parse_fields(rest)
            rank, size = int(fields["rank"]), int(fields["world_size"])
            if not 0 <= rank < size <= _MOST_RANKS:
                raise ValueError(size)
            self._ranks[fields["comm"]] = rank, size
        elif head == "split":
            fields = _parse_fields(rest)
            self._members[fields["child"]] = _parse_numbers(fields["ranks"])
        elif head.startswith("G"):
            if rest and rest[0].startswith("C"):  # otherwise a replay
                self._parse_call_line(rest[0], rest[1:])
        elif head.startswith("C"):
            self._parse_call_line(head, rest)
        elif head not in ("WARN", ""):
            raise ValueError(head)

    def _parse_call_line(self, number: str, rest: list[str]) -> None:
        """Parse a line about a call: its signature, its begin or its end."""
        kind = rest[0]
        if kind == "sig":
            self._signatures[number] = self._parse_signature(rest[1], _parse_fields(rest[2:]))
        elif kind == "Q":
            if number not in self._signatures:
                raise ValueError(number)
            self._running[number].append(len(self._queued))
            self._queued.append(number)
        elif kind == "E":
            self._has_ends = True
            if self._running[number]:
                self._ended.add(self._running[number].popleft())
        elif kind not in ("S", "W"):
            raise ValueError(kind)

    def make_record(self) -> RankRecord:
        """Return the record made from all parsed lines."""
        rank = self._own_rank()
        for name, (_, size) in self._ranks.items():
            if name not in self._members and size == self._world_size():
                self._members[name] = tuple(range(size))
        counts: Counter[tuple[str, bool]] = Counter()
        numbers = enumerate(self._queued)
        queued = [(*self._signatures[number], self._progress_of_call(index)) for index, number in numbers]
        queued = [each for each in queued if each[1].operation not in _UNSIZED]  # they announce the call after them
        groups = number_names(group for group, *_ in queued)
        steps = []
        for group, signature, peer, progress in queued:
            steps.append(LoggedCall(groups[group], counts[group, peer is not None], signature, progress, peer))
            counts[group, peer is not None] += 1
        call_log = CallLog(tuple(steps))
        return RankRecord(rank, self._source, "clog 1", call_log, tuple(groups), members=dict(self._members))

    def _world_size(self) -> int:
        return max((size for _, size in self._ranks.values()), default=0)

    def _own_rank(self) -> int:
        of_world = [rank for rank, size in self._ranks.values() if size == self._world_size()]
        rank = of_world[0] if of_world else rank_in_path(self._source)
        if rank is None:
            raise RecordError(
                "neither the clog (it has no new_comm line) nor its file name says its rank: "
                'rename the file to end in the rank, such as "rank_3"'
            )
        return rank

    def _progress_of_call(self, index: int) -> CallProgress:
        if index in self._ended:
            return CallProgress.COMPLETE
        return CallProgress.UNFINISHED if self._has_ends else CallProgress.UNKNOWN

    def _parse_signature(self, name: str, fields: dict[str, str]) -> tuple[str, Signature, int | None]:
        operation = OPERATIONS.get(name, name)
        root = self._parse_root(fields)
        reduction = fields["red_op"].upper() if "red_op" in fields else None
        splits = self._parse_splits(fields) if operation == "all_to_all_single" else None
        dtype = SHORT_DTYPES.get(fields.get("dtype", ""), fields.get("dtype"))
        signature = Signature(operation, _parse_shapes(operation, fields, splits), dtype, reduction, root, splits)
        return fields["comm"], signature, int(fields["peer"]) if operation in POINT_TO_POINT else None

    def _parse_splits(self, fields: dict[str, str]) -> Splits:
        """Return a call's splits. For an exchange of equal parts, the clog has only the total number of elements."""
        if "in_splits" in fields:
            return _parse_numbers(fields["in_splits"]), _parse_numbers(fields["out_splits"])
        size = self._ranks[fields["comm"]][1]
        return (int(fields["in_count"]) // size,) * size, (int(fields["out_count"]) // size,) * size

    def _parse_root(self, fields: dict[str, str]) -> int | None:
        """Return the global rank of a call's root; the clog has the root's rank in the communicator."""
        if "root" not in fields:
            return None
        rank, members = int(fields["root"]), self._members.get(fields["comm"], ())
        return members[rank] if 0 <= rank < len(members) else rank


def _parse_fields(parts: list[str]) -> dict[str, str]:
    return dict(part.split("=", 1) for part in parts)


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",")) if text else ()


def _parse_shapes(operation: str, fields: dict[str, str], splits: Splits | None) -> tuple[Shape, ...]:
    if operation == "barrier":
        return ()
    if splits is not None:
        return (sum(splits[0]),), (sum(splits[1]),)
    sent, received = _shapes_of_side(fields, "in"), _shapes_of_side(fields, "out")
    return received if operation in _BY_OUTPUT or not sent else sent


def _shapes_of_side(fields: dict[str, str], side: str) -> tuple[Shape, ...]:
    if f"{side}_counts" in fields:
        return tuple((count,) for count in _parse_numbers(fields[f"{side}_counts"]))
    return ((int(fields[f"{side}_count"]),),) if f"{side}_count" in fields else ()
