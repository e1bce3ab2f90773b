"""Origins: the DDP wrapper, phase, bucket and step to which a call belongs, or that the user's program made it.

The origin of every call is found when it is issued. For calls from Python it is read from the stack (phases.py). For
calls that the Reducer makes from C++, inside backward, it follows from the order of its buckets (wrapper_registry.py).
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ddpsim.simulator.attribution.parallelism import OptimizerStepCounter, PipelineMessages
from ddpsim.simulator.attribution.phases import (
    FrameReaders,
    read_backward_engine_frame,
    read_issuing_frame,
    read_nothing_from_frame,
    read_program_entry_frame,
    read_user_frame,
    traced_sites,
)
from ddpsim.simulator.attribution.stack_attribution import StackFacts
from ddpsim.simulator.attribution.tensor_names import NAMED, TensorNameFinder
from ddpsim.simulator.attribution.wrapper import PROGRESS, DdpWrapper
from ddpsim.simulator.attribution.wrapper_registry import WrapperRegistry
from ddpsim.simulator.calls import USER_ORIGIN, Origin, Phase, Signature, Site
from ddpsim.simulator.diagnosis.hazards import TensorName
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.joins import joined_note_text
from ddpsim.simulator.kernel.requests import WriteNote
from ddpsim.simulator.runtime.call_sites import caller_to_show, frames_outwards, site_of_user_frame
from ddpsim.simulator.runtime.host import Host

_OWN_FRAMES = 3
"""The number of innermost stack frames that are skipped, because they are always the simulator's own."""

_USER_SHADOW = Origin(shadow=True)
_RECOMPUTED = Origin(is_recomputed=True)
_STEPLESS = frozenset({Phase.PARAMETER_CHECK, Phase.STATE_BROADCAST, Phase.REBUILD})
"""The phases of DDP whose calls need no step number: they happen once, or on all ranks at the end of join."""

Located = tuple[Origin, Site, Site | None, tuple[TensorName, ...]]
"""Where a call comes from: its origin (wrapper, phase, bucket, step), its program line, that line's caller, and the
names of the call's tensors."""


class OriginTracker:
    """Finds the origin (wrapper, phase, bucket and step) of each call of one rank."""

    def __init__(self, host: Host, wrappers: WrapperRegistry, phases: FrameReaders, rank: int) -> None:
        self._host = host
        self._wrappers = wrappers
        self._phases = phases
        self._rank = rank
        self._names = TensorNameFinder()
        self.messages = PipelineMessages()
        self.steps = OptimizerStepCounter()
        self.coordinates = ""
        """The coordinates of the rank in the program's device mesh, as text."""

    def locate_call(self, signature: Signature, tensors: Sequence[Tensor], start: FrameType | None = None) -> Located:
        """Return where a call with `tensors` comes from. The stack is read from `start`, else the group's method."""
        known, learn = self._phases.known.get, self._phases.find_reader
        frame: FrameType | None = start or sys._getframe(_OWN_FRAMES)
        reading: StackFacts | None = None
        innermost: FrameType | None = None
        is_direct = is_read = is_reduction = has_callers = False
        while frame is not None:
            reader = known(id(frame.f_code)) or learn(frame)
            if reader is read_nothing_from_frame:  # first, because it is the most frequent case
                is_direct = False
            elif reader is read_issuing_frame:
                is_direct = True
            elif reader is read_user_frame:
                is_direct = False
                has_callers = innermost is not None
                innermost = innermost or frame
                if is_read:
                    break
            elif reader is read_program_entry_frame:
                break
            elif not is_read:
                if is_direct and reader is read_backward_engine_frame:
                    is_reduction = is_read = True
                else:
                    reading = reading or StackFacts(signature.operation)
                    reader(reading, frame)
                    is_read = reading.is_complete
                if is_read and innermost is not None:
                    break
                is_direct = False
            frame = frame.f_back
        if is_reduction:
            origin = self._origin_in_reducer(self._wrappers.reducing_wrapper(self._rank), signature)
        else:
            origin = USER_ORIGIN if reading is None else self._origin_of_reading(reading, signature)
        if innermost is None:
            frames = frames_outwards(start or sys._getframe(_OWN_FRAMES))
            owners = (getattr(each.f_locals.get("self"), "__dict__", {}) for each in frames)
            sites = (own["submitted_at"] for own in owners if "submitted_at" in own)
            return origin, next(sites, self._host.running_thread.started_at), None, ()
        names: tuple[TensorName, ...] = ()
        if signature.operation in NAMED and (origin is USER_ORIGIN or origin.is_of_program):
            names = self._names.names_of_tensors(signature.operation, tensors, innermost)
        if id(innermost.f_code) in self._phases.compiled:
            return origin, *self._compiled_sites(innermost, reading), names
        is_alone = not (is_read or has_callers)  # a complete reading ended the search early
        caller = None if is_alone else self._caller_site(innermost, innermost.f_code.co_filename)
        return origin, self._phases.known_site_at(innermost), caller, names

    def _compiled_sites(self, frame: FrameType, reading: StackFacts | None) -> tuple[Site, Site | None]:
        """Return the program line at which torch.compile traced the current call, and the caller of its function."""
        traced = traced_sites(reading.graph) if reading is not None and reading.graph is not None else []
        if not traced:
            return site_of_user_frame(frame), self._caller_site(frame, "")
        return traced[0], self._caller_site(frame, traced[0].path, traced)

    def _caller_site(self, frame: FrameType, path: str, within: Iterable[Site] = ()) -> Site | None:
        """Return the line to show as the caller of one in file `path`, from lines `within` a frame and further out."""
        lines: Iterable[tuple[str, Site | FrameType]] = ((site.path, site) for site in within)
        found = caller_to_show(chain(lines, self._user_frames_outside(frame)), path)
        return site_of_user_frame(found) if isinstance(found, FrameType) else found

    def _user_frames_outside(self, frame: FrameType) -> Iterator[tuple[str, FrameType]]:
        known, learn = self._phases.known.get, self._phases.find_reader
        outer = frame.f_back
        while outer is not None:
            reader = known(id(outer.f_code)) or learn(outer)
            if reader is read_program_entry_frame:
                return
            if reader is read_user_frame:
                yield outer.f_code.co_filename, outer
            outer = outer.f_back

    def _origin_of_reading(self, reading: StackFacts, signature: Signature) -> Origin:
        if reading.continues is not None:
            continued: Origin = reading.continues.call.origin
            return continued._replace(is_chained=continued.by_hook)
        if reading.reducer is not None:
            return self._origin_in_reducer(self._wrappers.of_reducer.get(reading.reducer), signature)
        if reading.joining is not None:
            self._report_join(reading.joining)
        if reading.phase is None and reading.part is not None:
            step, shadow = self._step_of_optimizer_or_unit(reading), reading.has_joined is not None
            return Origin(step=step, shadow=shadow, parameters=reading.parameters, part=reading.part)
        if reading.phase is None:
            own = _RECOMPUTED if reading.is_recomputed else USER_ORIGIN
            return own if reading.has_joined is None else _USER_SHADOW
        if reading.owner is None and reading.innermost is not None:
            reading.owner = reading.innermost.f_locals.get("self")
        wrapper = self._wrappers.wrapper_of(reading.owner)
        if wrapper is None:
            return Origin(reading.phase, shadow=reading.has_joined is not None)
        if reading.ends_join:
            for each in self._wrappers_among_joined(
                reading.has_joined._joinables if reading.has_joined else [reading.owner]
            ):
                each.align_step(self._wrappers.latest_step(*each.key))
        if reading.phase is Phase.REBUILD:
            wrapper.forget_buckets()
        if reading.declared is not None:
            origin = _declared_origin(reading, reading.declared, wrapper)
        else:
            origin = _origin_in_wrapper(wrapper, reading.phase, reading.bucket, shadow=reading.has_joined is not None)
        return origin._replace(by_hook=True) if reading.is_hooks else origin

    def _step_of_optimizer_or_unit(self, reading: StackFacts) -> int | None:
        is_counted_here = reading.step is None or isinstance(reading.stepped, Optimizer)
        return self.steps.current_step(reading.stepped) if is_counted_here else reading.step

    def _origin_in_reducer(self, wrapper: DdpWrapper | None, signature: Signature) -> Origin:
        """Return the origin of a call of the Reducer, which reduces its buckets and then the map of used parameters."""
        if wrapper is None or wrapper.module is None:
            return USER_ORIGIN
        if signature.dtype == "int32":
            return _origin_in_wrapper(wrapper, Phase.USED_MAP, None, shadow=False)
        bucket = wrapper.take_bucket_for(signature)
        return USER_ORIGIN if bucket is None else _origin_in_wrapper(wrapper, Phase.BUCKET, bucket, shadow=False)

    def _report_join(self, members: Iterable[Any]) -> None:
        """Note that the rank ran out of input.

        Note [Step of joining]. A rank joins at the step of its wrapper, see Note [Steps] in wrapper.py. So
        micro-batches under no_sync do not count, and a second epoch continues from the step of all ranks at the end of
        the first. Of several wrappers in a join, the one with the most steps counts.
        """
        wrappers = self._wrappers_among_joined(members)
        for wrapper in wrappers:
            wrapper.note_join()
        step = max(map(_step_of_wrapper, wrappers), default=None)
        self._host.send_request(WriteNote(EventKind.NOTE, joined_note_text(step)))

    def _wrappers_among_joined(self, members: Iterable[Any]) -> list[DdpWrapper]:
        """Return the DDP wrappers among the members of a join, which may also contain optimizers."""
        wrappers = [self._wrappers.wrapper_of(member) for member in members if isinstance(member, Module)]
        return [wrapper for wrapper in wrappers if wrapper is not None]


def _step_of_wrapper(wrapper: DdpWrapper) -> int:
    """Return the current step of a wrapper; for one of another DDP engine, the step that the engine reports."""
    progress: Mapping[str, Any] = getattr(wrapper.module, PROGRESS, dict)()
    step: int = progress.get("step", wrapper.step)
    return step


def _origin_in_wrapper(wrapper: DdpWrapper, phase: Phase, bucket: int | None, *, shadow: bool) -> Origin:
    wrapper.note_own_call()
    if shadow and bucket is not None:
        wrapper.read_bucket_contents()
    step = None if shadow or phase in _STEPLESS or wrapper.reports_steps else wrapper.step
    parameters = () if bucket is None else wrapper.bucket_parameters(bucket)
    return Origin(phase, wrapper.number_in_group, bucket, step, shadow, parameters)


def _declared_origin(reading: StackFacts, declared: Mapping[str, Any], wrapper: DdpWrapper) -> Origin:
    """Return the origin that a DDP engine other than torch's declares for its call (see phases.py)."""
    wrapper.reports_steps = True
    assert reading.phase is not None
    step: int | None = None
    if reading.phase not in _STEPLESS:
        step = declared.get("step")
        wrapper.update_progress(step or 0)
    where = reading.phase, wrapper.number_in_group, declared.get("bucket"), step
    return Origin(*where, declared.get("shadow", False), tuple(declared.get("parameters", ())))
