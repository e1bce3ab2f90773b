"""Phases: the functions of a DDP engine that make calls, by phase, and how they are read from the stack of a call.

torch's functions are listed here by module and name. Another engine declares its functions in their modules:

    __ddp_phases__ = {"_launch_bucket": "bucket", "_sync_buffers": "buffers", "_announce": "join control"}

maps names of functions to values of `Phase`. The function's `self` may have a method `__ddp_call__()` that returns a
dict with any of the keys `wrapper` (the object that has the `process_group`; by default `self`), `bucket`, `step`,
`shadow`, `parameters`, `hook` (true if a communication hook reduces the buckets), and, in the first call after the rank
ran out of input, `joined`: the models of the join.
"""

import re
from types import CodeType, FrameType
from typing import Any

from ddpsim.simulator.attribution.parallelism import OPTIMIZERS, PARALLELISM
from ddpsim.simulator.attribution.stack_attribution import Reader, StackFacts
from ddpsim.simulator.calls import Phase, Site
from ddpsim.simulator.runtime.call_sites import is_user_code, is_user_file, site_of_line, site_of_user_frame
from ddpsim.simulator.runtime.rank_body import RankMain

DECLARATION = "__ddp_phases__"


class FrameReaders:
    """Finds and keeps a reader for each frame of a stack: a function that reads what the frame says about a call."""

    def __init__(self) -> None:
        self.known: dict[int, Reader] = {}
        """By the id of a function's code object, its reader (hashing the code object itself is slow)."""
        self.compiled: set[int] = set()
        """The ids of the functions of the user's program that torch's compiler has rewritten."""
        self._sites: dict[tuple[int, int], Site] = {}
        """By the ids of code object and instruction, the program line, because it is slow to find."""
        self._codes: list[CodeType] = []
        # Kept, so that no other code object gets the id of one of them.

    def find_reader(self, frame: FrameType) -> Reader:
        """Return the reader for a frame: a function that reads what the frame says about the call."""
        self._codes.append(frame.f_code)
        reader = self.known[id(frame.f_code)] = _reader_of_function(frame)
        if reader is read_user_frame and any(name.startswith(_COMPILED) for name in frame.f_code.co_names):
            self.compiled.add(id(frame.f_code))
        return reader

    def known_site_at(self, frame: FrameType) -> Site:
        """Return the current program line of a frame of the user's program, if the frame's reader is known already."""
        place = id(frame.f_code), frame.f_lasti
        site = self._sites.get(place)
        if site is None:
            site = self._sites[place] = site_of_user_frame(frame)
        return site


def read_nothing_from_frame(reading: StackFacts, frame: FrameType) -> None:
    """Read nothing from a frame: its function says nothing about the call."""


def read_backward_engine_frame(reading: StackFacts, frame: FrameType) -> None:
    """Read a frame of autograd's engine: the Reducer makes the calls directly below it, the user those from Python."""
    reading.is_complete = True


def read_issuing_frame(reading: StackFacts, frame: FrameType) -> None:
    """Read a frame of the simulator, which lies between the caller of an operation and the operation's call."""


def read_user_frame(reading: StackFacts, frame: FrameType) -> None:
    """Read a frame of the user's program."""


def read_program_entry_frame(reading: StackFacts, frame: FrameType) -> None:
    """Read the frame that runs a rank's program: it is the last frame that is read."""


def _reader_of_function(frame: FrameType) -> Reader:
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "")
    if module in _ISSUING:
        return read_issuing_frame
    if module == RankMain.__module__:
        return read_program_entry_frame
    phase = frame.f_globals.get(DECLARATION, {}).get(name)
    if phase is not None:
        return _reader_of_declared_phase(Phase(phase))
    if frame.f_code.co_filename.startswith(_GRAPH):
        return _read_compiled_graph
    reader = _TORCH.get((module, name)) or PARALLELISM.get((module, name)) or OPTIMIZERS.get((module, name))
    return reader or (read_user_frame if is_user_code(frame.f_code) else read_nothing_from_frame)


def _reader_of_declared_phase(phase: Phase) -> Reader:
    def read(reading: StackFacts, frame: FrameType) -> None:
        if reading.phase is None:
            reading.phase = phase
            reading.owner = frame.f_locals.get("self")
            reading.declared = getattr(reading.owner, "__ddp_call__", dict)()
            reading.owner = reading.declared.get("wrapper", reading.owner)
            reading.joining = reading.declared.get("joined")
            reading.is_hooks = phase is Phase.BUCKET and reading.declared.get("hook", False)
        reading.is_complete = True

    return read


def _reader_of_phase(phase: Phase) -> Reader:
    """Return a frame reader for a function that sets a call's DDP phase; a frame further out may give the wrapper."""

    def read(reading: StackFacts, frame: FrameType) -> None:
        if reading.phase is None:
            reading.phase = phase
            reading.innermost = frame

    return read


def _find_reader_of_wrapper_method(name: str, phase: Phase) -> Reader:
    """Return a frame reader that takes the variable `name` as the DDP wrapper, and sets `phase` if none is set yet."""

    def read(reading: StackFacts, frame: FrameType) -> None:
        reading.phase = reading.phase or phase
        reading.owner = frame.f_locals.get(name)
        reading.is_complete = True

    return read


def _read_matched_bucket(reading: StackFacts, frame: FrameType) -> None:
    if reading.phase is None:
        reading.phase = Phase.BUCKET
        reading.bucket = frame.f_locals["grad_bucket"].index()


def _read_communication_hook(reading: StackFacts, frame: FrameType) -> None:
    reading.phase = Phase.BUCKET
    reading.is_hooks = True
    reading.bucket = frame.f_locals["bucket"].index()
    reading.owner = frame.f_locals["wrapper"].module


def _read_join_main_hook(reading: StackFacts, frame: FrameType) -> None:
    reading.phase = reading.phase or Phase.REBUILD
    reading.owner = frame.f_locals["self"].ddp


def _read_join_exit(reading: StackFacts, frame: FrameType) -> None:
    reading.has_joined = frame.f_locals["self"]
    reading.is_complete = True


def _read_join_count(reading: StackFacts, frame: FrameType) -> None:
    _read_join_control(reading, frame)
    join_exit = frame.f_back
    # A rank assumes that it joins last until its first count shows otherwise.
    if join_exit is not None and join_exit.f_locals.get("is_last_joiner"):
        reading.joining = reading.has_joined._joinables


def _read_join_control(reading: StackFacts, frame: FrameType) -> None:
    _read_join_exit(reading, frame)
    reading.phase = Phase.JOIN_CONTROL
    reading.owner = reading.has_joined._joinables[0]


def _read_join_termination(reading: StackFacts, frame: FrameType) -> None:
    _read_join_control(reading, frame)
    reading.ends_join = True


def _read_final_model_sync(reading: StackFacts, frame: FrameType) -> None:
    _find_reader_of_wrapper_method("self", Phase.STATE_BROADCAST)(reading, frame)
    reading.ends_join = True


def _read_delayed_all_reduce(reading: StackFacts, frame: FrameType) -> None:
    if reading.phase is None:
        reading.reducer = frame.f_locals["reducer"]
    reading.is_complete = True


def _read_recomputation(reading: StackFacts, frame: FrameType) -> None:
    reading.is_recomputed = True


def _read_compiled_graph(reading: StackFacts, frame: FrameType) -> None:
    reading.graph = reading.graph or frame


def _read_completion_callback(reading: StackFacts, frame: FrameType) -> None:
    reading.continues = frame.f_locals["self"].pending
    reading.is_complete = True


_ISSUING = frozenset(
    f"ddpsim.simulator.process_group.{module}"
    for module in ("group", "issuing", "monitored_barrier", "parameter_check", "through_torch")
)

_UTILS = "torch.distributed.utils"
_DDP = "torch.nn.parallel.distributed"
_JOIN = "torch.distributed.algorithms.join"

_TORCH: dict[tuple[str, str], Reader] = {
    (_UTILS, "_verify_param_shape_across_processes"): _reader_of_phase(Phase.PARAMETER_CHECK),
    (_UTILS, "_sync_module_states"): _reader_of_phase(Phase.STATE_BROADCAST),
    (_DDP, "_sync_module_buffers"): _reader_of_phase(Phase.BUFFERS),
    (_DDP, "_check_global_requires_backward_grad_sync"): _reader_of_phase(Phase.JOIN_CONTROL),
    (_DDP, "_find_common_rank"): _reader_of_phase(Phase.JOIN_CONTROL),
    (_DDP, "_match_unused_params_allreduce"): _reader_of_phase(Phase.USED_MAP),
    (_DDP, "_match_all_reduce_for_bwd_pass"): _read_matched_bucket,
    (_DDP, "_delayed_all_reduce_hook"): _find_reader_of_wrapper_method("self", Phase.BUCKET),
    (_DDP, "__init__"): _find_reader_of_wrapper_method("self", Phase.STATE_BROADCAST),
    (_DDP, "_pre_forward"): _find_reader_of_wrapper_method("self", Phase.REBUILD),
    (_DDP, "_post_forward"): _find_reader_of_wrapper_method("self", Phase.REBUILD),
    (_DDP, "_sync_final_model"): _read_final_model_sync,
    (_DDP, "main_hook"): _read_join_main_hook,
    (_JOIN, "notify_join_context"): _find_reader_of_wrapper_method("joinable", Phase.JOIN_CONTROL),
    (_JOIN, "_get_num_nonjoined_procs"): _read_join_count,
    (_JOIN, "_notify_procs_to_terminate"): _read_join_termination,
    (_JOIN, "__exit__"): _read_join_exit,
    ("torch.autograd.graph", "_engine_run_backward"): read_backward_engine_frame,
    ("torch.utils.checkpoint", "recompute_fn"): _read_recomputation,
    ("torch.utils.checkpoint", "backward"): _read_recomputation,
    ("ddpsim.simulator.attribution.wrapper_registry", "communication_hook"): _read_communication_hook,
    ("ddpsim.simulator.process_group.reducer_patches", "delay_all_reduce"): _read_delayed_all_reduce,
    ("ddpsim.simulator.process_group.work", "_set_future"): _read_completion_callback,
}
"""Functions of torch and their frame readers, by module and name. Calls of a renamed one would count as the user's."""

_GRAPH = "<eval_with_key>"
"""The beginning of the file names that torch.fx gives functions made from a graph."""
_COMPILED = "__compiled_fn"
"""The beginning of the names under which a function rewritten by torch.compile calls its graph."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (\S+)$', re.MULTILINE)


def traced_sites(graph: FrameType) -> list[Site]:
    """Return the lines of the program from which the current node of a graph was traced, innermost first.

    A compiled function stays at its first line while its graph runs, but each node keeps the stack of its tracing. Code
    from inductor keeps nothing: then the result is [].
    """
    module: Any = graph.f_locals.get("self")
    index = getattr(module, "_lineno_map", {}).get(graph.f_lineno - getattr(module, "_prologue_start", 0))
    if index is None:
        return []
    node = list(module.graph.nodes)[index]
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return [site_of_line(path, int(line), function) for path, line, function in frames[::-1] if is_user_file(path)]
