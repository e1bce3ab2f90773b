"""torch's flight recorder: the last calls that a rank has made on gloo, without a wrapper of ours.

It records collectives of every group, with the Python stack at each; a message between two ranks is not recorded, so
there only the stack of the rank tells where it stands. Its reader is torch's own, and private: where there is none, the
report says so. Newer versions of torch have a recorder for each backend and name it by an argument that 2.13 has not.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

KEPT = 64
"""So many of the last calls does the recorder keep."""

_READER = "_dump_fr_trace"

_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"}
_DTYPES |= {"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}
"""The recorder writes the names of C++; others are shown as they are."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The last calls of a rank, from the earliest on."""

    calls: tuple[str, ...] = ()
    in_flight: bool = False
    """True if one of them has not completed."""


def switch_on() -> None:
    """Let this process record its calls. Has to come before its first group is made."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(KEPT)


def is_there() -> bool:
    """True if this torch has a recorder that can be read."""
    return hasattr(torch._C._distributed_c10d, _READER)


def recording() -> Recording:
    """What the recorder has now."""
    entries = _entries() or _entries(backend="gloo")
    return Recording(tuple(map(_text, entries)), any(not entry.get("retired", True) for entry in entries))


def _entries(**backend: str) -> Sequence[Mapping[str, Any]]:
    if not is_there():
        return ()
    try:
        dump = getattr(torch._C._distributed_c10d, _READER)(**backend)
    except TypeError:  # there is one recorder
        return ()
    entries: Sequence[Mapping[str, Any]] = pickle.loads(dump).get("entries", ())
    return entries


def _text(entry: Mapping[str, Any]) -> str:
    """A call in the words of other reports: `all_reduce #3  float32[110]  group "default"  in flight`."""
    operation = str(entry.get("profiling_name", "?")).removeprefix("gloo:")
    number = (
        entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id", 0) - 1
    )  # it counts from 1, we from 0
    name, description = (*entry.get("process_group", ()), "", "")[:2]
    group = "default" if description == "default_pg" else name
    parts = [f"{operation} #{number}", _tensors(entry), f'group "{group}"']
    parts += [] if entry.get("retired", True) else ["in flight"]
    return "  ".join(part for part in parts if part)


def _tensors(entry: Mapping[str, Any]) -> str:
    sizes: Sequence[Sequence[int]] = entry.get("input_sizes", ())
    dtypes = [_DTYPES.get(name, name) for name in entry.get("input_dtypes", ())]
    shown = [f"{dtype}{list(size)}" for dtype, size in zip(dtypes, sizes, strict=False)]
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")
