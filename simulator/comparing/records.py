"""What a rank of a compared run records, in a file of the rank: the tensors of each optimizer step, in order of time.

Memory: a comparison reads one step of all ranks at a time. Files: at most `MOST_OF_FIRST_STEP` for the first step of a
rank and run, and `MOST_BYTES` for all that follow it; a rank that would write more stops recording, and the answer says
how many steps were compared.
"""

import pickle
from collections.abc import Container, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST_BYTES = 1 << 29
MOST_OF_FIRST_STEP = 1 << 32
DIGEST_BYTES = 8
COPIES = (
    "optimizers step copies of parameters: the models' own are compared when they run next, so not after the last step"
)
COPY, ALL_COPIES = "copy ", "all copies together (its norm)"
"""The names of copies begin with the one; the other is the name of what is known of all of them."""
BY_HAND = "parameters that no optimizer steps are compared when they run next, so not after the last step"
UNNAMED = "not compared: parameters of no module that ran in training, which an optimizer steps"


class Recording(NamedTuple):
    """What the ranks of a run record, and what of the run is changed so that it can be compared."""

    folder: str
    most_steps: int
    batches_of: str = ""
    """The folder of the run whose batches the data loaders give; "" for their own batches."""
    ranks: int = 0
    """The number of ranks of that run."""
    moved_by: float = 0.0
    """The relative size of one rounding: parameters and inputs are moved by it, up or down. 0.0 for a run as it is."""
    freezes_batch_norm: bool = True
    """True if BatchNorm that is not synchronised uses its running statistics."""


class Kind(Enum):
    """The kind of a recorded value. In a step, differences are looked for in this order."""

    NOTE = "note"
    START = "parameter at the start"
    COPY = "copy of parameters at the start"
    SAMPLES = "samples"
    INPUT = "input"
    """An input of the model beside the samples; it is held against the reference without being recorded by itself."""
    OUTPUT = "output"
    RANDOM = "random numbers"
    LOSS = "loss"
    UNCLIPPED = "gradient before clipping"
    NORM = "norm"
    OWN_GRADIENT = "own gradient"
    """The gradient of a parameter whose copy is stepped; a rank may have its own one."""
    GRADIENT = "gradient"
    RATE = "learning rate"
    PARAMETER = "parameter"
    STATE = "optimizer state"
    BUFFER = "buffer"
    STEP = "step"
    """The end of a step; evaluations that follow are of it, too."""
    EVALUATED = "evaluated parameter"
    SEEN = "evaluated samples"
    METRIC = "number reduced in evaluation"
    WRITTEN = "written parameter"
    """A parameter of a model, which the program writes after the step."""


_AFTER_STEP = (Kind.EVALUATED, Kind.SEEN, Kind.METRIC, Kind.BUFFER, Kind.WRITTEN)


class Part(NamedTuple):
    """The part of a whole tensor that a rank holds of it."""

    shape: tuple[int, ...]
    """The shape of the whole."""
    offsets: tuple[int, ...]


class Inputs(NamedTuple):
    """The tensors that a model gets in a forward."""

    rows: list[bytes]
    """A digest of each sample: those of its row in all tensors that have as many rows as the first one, joined."""
    totals: list[tuple[int, int]]
    """For each tensor a sum over its elements that no order or splitting changes, and their number."""
    form: tuple[str, int]
    """The type of the first tensor and its number of dimensions, which the outputs of a stage before do not have."""
    in_order: list[bool]
    """For each tensor whether it holds whole numbers in order, as positions are."""
    columns: list[int]
    """The numbers of the tensors with rows."""

    def without(self, moved: Container[int]) -> "Inputs":
        """Return the inputs without these tensors, and none if the first tensor is one of them."""
        kept = [i for i in range(len(self.totals)) if i not in moved and 0 not in moved]
        parts = [k * DIGEST_BYTES for k, i in enumerate(self.columns) if i in kept]
        rows = [b"".join(row[at : at + DIGEST_BYTES] for at in parts) for row in self.rows if parts]
        totals, in_order = [self.totals[i] for i in kept], [self.in_order[i] for i in kept]
        return self._replace(rows=rows, totals=totals, in_order=in_order)


class Entry(NamedTuple):
    """One recorded value of a rank.

    The inputs of a forward are None if they are what another module computed.
    """

    kind: Kind
    name: str = ""
    value: Any = None
    """An array; a number for `LOSS`, `NORM`, `RATE` and `METRIC`; `Inputs`; or whether a step is whole."""
    dtype: str = ""
    part: Part | None = None
    """Set for a DTensor: its value is the local part."""


class RecordWriter:
    """Writes the entries of one rank. The file is open from the start, as a rank may not open one unnoticed later."""

    def __init__(self, file: Path) -> None:
        self._file = open(file, "wb", buffering=0)  # noqa: SIM115 - the rank's process ends with os._exit
        self.close = self._file.close
        self._left = MOST_OF_FIRST_STEP
        self.has_room = True

    def end_first_step(self) -> None:
        """Leave less room for later steps: of a large model, the first says most."""
        self._left = MOST_BYTES

    def write(self, entry: Any, *, always: bool = False) -> None:
        """Write an entry, if there is room for it or if it is always written, as the ends of steps are."""
        data = pickle.dumps(entry, protocol=5)
        self.has_room = self.has_room and len(data) <= self._left
        if self.has_room or always:
            self._left -= len(data)
            self._file.write(data)


def read_entries(file: Path) -> Iterator[Any]:
    """Yield what was written into a file; an end in the middle of an entry is the end."""
    with open(file, "rb") as opened:
        while True:
            try:
                yield pickle.load(opened)
            except (EOFError, pickle.UnpicklingError):
                return


class RecordedStep:
    """The entries of one rank up to the end of one optimizer step."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.by_name: dict[tuple[Kind, str], list[Entry]] = {}
        for each in entries:
            self.by_name.setdefault((each.kind, each.name), []).append(each)

    @property
    def is_whole(self) -> bool:
        """False if not all of the step was recorded."""
        return all(each.value for each in self.of_kind(Kind.STEP))

    def of_kind(self, kind: Kind) -> list[Entry]:
        """Return the entries of a kind, in order of time."""
        return [each for each in self.entries if each.kind is kind]

    def array(self, kind: Kind, name: str) -> Array | None:
        """Return the latest value of this kind and name, in double precision; None if there is none."""
        found = self.by_name.get((kind, name))
        return None if not found else np.asarray(found[-1].value, dtype=np.float64)


def read_steps(folder: Path, rank: int) -> Iterator[RecordedStep]:
    """Yield the steps of a rank; what follows the last step and its evaluation is left out."""
    entries: list[Entry] = []
    has_ended = False
    for each in read_entries(folder / f"{rank}.records"):
        if has_ended and each.kind not in _AFTER_STEP:
            yield RecordedStep(entries)
            entries, has_ended = [], False
        entries.append(each)
        has_ended = has_ended or each.kind is Kind.STEP
    if has_ended:
        yield RecordedStep(entries)
