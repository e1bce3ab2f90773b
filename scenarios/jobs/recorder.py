"""Reads torch's flight recorder: the last collectives of a rank on gloo, without messages between two ranks.

The torch function that dumps the recorder is private. If it is missing, the report says so. Newer torch versions have
one recorder per backend, and the function has an argument for the backend that torch 2.13 lacks.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

KEPT = 64
"""How many of the last calls of a rank the recorder keeps."""

_READER = "_dump_fr_trace"

_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"}
_DTYPES |= {"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}
"""torch's dtype names by the recorder's C++ names; others are shown unchanged."""


@dataclass(frozen=True, slots=True)
class LastCalls:
    """The last calls of a rank, the earliest call first."""

    calls: tuple[str, ...] = ()
    in_flight: bool = False
    """True if one of the calls has not completed."""


def enable_recorder() -> None:
    """Make this process record its calls. Call it before the first group is made."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(KEPT)


def has_recorder() -> bool:
    """Return True if this torch has a recorder that can be read."""
    return hasattr(torch._C._distributed_c10d, _READER)


def read_recorder() -> LastCalls:
    """Return the calls that the recorder holds now."""
    entries = _recorder_entries() or _recorder_entries(backend="gloo")
    return LastCalls(tuple(map(_entry_text, entries)), any(not entry.get("retired", True) for entry in entries))


def _recorder_entries(**backend: str) -> Sequence[Mapping[str, Any]]:
    if not has_recorder():
        return ()
    try:
        dump = getattr(torch._C._distributed_c10d, _READER)(**backend)
    except TypeError:  # there is one recorder for all backends
        return ()
    entries: Sequence[Mapping[str, Any]] = pickle.loads(dump).get("entries", ())
    return entries


def _entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry of the recorder as text, in the form of other reports: `all_reduce #3 float32[110] group
    "default" in flight`."""
    operation = str(entry.get("profiling_name", "?")).removeprefix("gloo:")
    key = "p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"
    number = entry.get(key, 0) - 1  # the recorder counts from 1, ddpsim from 0
    name, description = (*entry.get("process_group", ()), "", "")[:2]
    group = "default" if description == "default_pg" else name
    parts = [f"{operation} #{number}", _tensors_text(entry), f'group "{group}"']
    parts += [] if entry.get("retired", True) else ["in flight"]
    return "  ".join(part for part in parts if part)


def _tensors_text(entry: Mapping[str, Any]) -> str:
    sizes: Sequence[Sequence[int]] = entry.get("input_sizes", ())
    dtypes = [_DTYPES.get(name, name) for name in entry.get("input_dtypes", ())]
    shown = [f"{dtype}{list(size)}" for dtype, size in zip(dtypes, sizes, strict=False)]
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")
