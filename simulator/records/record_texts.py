"""Texts in record files: names of operations, text that is safe to show, a path's rank, the user's lines in a stack."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from ddpsim.simulator.calls import INSTALLED, NOWHERE, Site

OPERATIONS = {
    "_all_gather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "all_reduce_barrier": "barrier",
    "all_to_all_v_single": "all_to_all_single",
    "ALLGATHER_coalesced": "all_gather_coalesced",
    "REDUCE_SCATTER_coalesced": "reduce_scatter_coalesced",
    "gather_single": "gather",
}
"""For a recorder's name of an operation, the name in torch.distributed, which ddpsim uses."""

CPP_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2": "float8_e5m2",
}
"""For a dtype's name in torch's flight recorder, its torch name."""

SHORT_DTYPES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "fp8e4m3": "float8_e4m3fn",
    "fp8e5m2": "float8_e5m2",
}
"""For a dtype's name in clogs, its torch name."""

_LONGEST = 300
_AFTER_RANK = re.compile(r"(?:^|[^a-z])(?:global)?[_.-]?rank[_.=-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_AT_END = re.compile(r"(\d{1,7})(?:[.][A-Za-z][\w]*)*$")
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python3[.]\d+[/\\]|[/\\]torch[/\\]|[/\\]ddpsim[/\\]|^<frozen|[.]so$|^$"
)
"""Folders of installed packages and of Python itself, as they appear in paths of a stack."""
_IN_TORCH = re.compile(r"[/\\]torch[/\\]|[.](?:so|cpp|h)(?:$|[.])|^<frozen|^$|\?\?")


@lru_cache(maxsize=65536)
def printable_text(text: str) -> str:
    """Return the text in a form that is safe to show: unprintable characters become "?", and a long text is cut.

    Record files are not trusted, and a terminal obeys control characters.
    """
    if text.isprintable() and len(text) <= _LONGEST:
        return text
    shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def rank_in_path(name: str) -> int | None:
    """Return the rank that a path contains: `rank_3`, `nccl_trace_rank_3.json`, `host7-rank3.log`, or a last number."""
    file = name.replace("\\", "/").rsplit("/", 1)[-1]
    found = _AFTER_RANK.findall(file)
    if found:
        return int(found[-1])
    at_end = _AT_END.search(file)
    return int(at_end[1]) if at_end else None


def user_lines(frames: Sequence[Any]) -> tuple[Site, Site | None]:
    """Return the innermost line of a stack outside installed packages, and its nearest caller in another such file.

    If no line is outside, return the innermost line outside torch, or else NOWHERE. `frames` are dicts with name,
    filename and line, the innermost first.
    """
    innermost = outside_torch = None
    for frame in frames:
        if not isinstance(frame, dict):
            continue
        path, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
        if not isinstance(path, str) or not isinstance(line, int) or not isinstance(name, str):
            continue
        is_library, is_in_torch = _is_in_library_or_torch(path)
        if not is_library and innermost is None:
            innermost = _make_site(path, line, name)
        elif innermost is not None:
            if not is_library and not path.startswith("<") and printable_text(path) != innermost.path:
                return innermost, _make_site(path, line, name)
        elif outside_torch is None and not is_in_torch:
            outside_torch = _make_site(path, line, name)
    return innermost or outside_torch or NOWHERE, None


@lru_cache(maxsize=4096)
def _is_in_library_or_torch(path: str) -> tuple[bool, bool]:
    """Return two values: whether a file is in an installed package, and whether it is torch's."""
    return _LIBRARY.search(path) is not None, _IN_TORCH.search(path) is not None


@lru_cache(maxsize=4096)
def _make_site(path: str, line: int, function: str) -> Site:
    return Site(printable_text(path), line, printable_text(function), INSTALLED.search(path) is not None)


def number_names(names: Iterable[str]) -> dict[str, int]:
    """Return each name with its number, in order of first appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}
