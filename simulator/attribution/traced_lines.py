"""Lines of the program behind a compiled function: which one a collective of its graph was traced from.

torch's compiler rewrites a function to call a graph, and the function then stands at its first line. The nodes of the
graph remember the stack that they were traced in. What inductor generates from it remembers nothing.
"""

from __future__ import annotations

import re
from types import CodeType, FrameType
from typing import Any

from ddpsim.simulator.calls import Site
from ddpsim.simulator.runtime.call_sites import is_users_file, site_in

_GRAPH = "<eval_with_key>"
_COMPILED = "__compiled_fn"
"""How a name begins under which a rewritten function finds its graph."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (\S+)$', re.MULTILINE)


def is_graph(code: CodeType) -> bool:
    """True for the function that torch.fx has made of a graph."""
    return code.co_filename.startswith(_GRAPH)


def is_compiled(code: CodeType) -> bool:
    """True for a function that torch's compiler has rewritten to call a graph."""
    return any(name.startswith(_COMPILED) for name in code.co_names)


def traced_from(graph: FrameType) -> list[Site]:
    """The lines of the program that a graph was traced from where it is now, innermost first; [] if none are known."""
    module: Any = graph.f_locals.get("self")
    index = getattr(module, "_lineno_map", {}).get(graph.f_lineno - getattr(module, "_prologue_start", 0))
    if index is None:
        return []
    node = list(module.graph.nodes)[index]
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return [site_in(path, int(line), function) for path, line, function in frames[::-1] if is_users_file(path)]
