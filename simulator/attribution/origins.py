"""Origins: the DDP wrapper, phase, bucket and step to which a call belongs, or that the user's program made it.

The origin of every call is found when it is issued. For calls from Python it is read from the stack (phases.py); for
calls that the Reducer makes from C++, inside backward, it follows from the order of its buckets (wrapper_registry.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ddpsim.simulator.attribution.parallelism import Messages, OptimizerSteps, UnitSteps
from ddpsim.simulator.attribution.phases import (
    PhaseTable,
    backward_runs,
    issues,
    program_begins,
    says_nothing,
    traced_from,
    user_runs,
)
from ddpsim.simulator.attribution.stack_attribution import Reading
from ddpsim.simulator.attribution.tensor_names import NAMED, TensorNames
from ddpsim.simulator.attribution.wrapper import PROGRESS, Wrapper
from ddpsim.simulator.attribution.wrapper_registry import WrapperRegistry
from ddpsim.simulator.calls import USER_ORIGIN, Origin, Phase, Signature, Site
from ddpsim.simulator.diagnosis.tensor_names import TensorName
from ddpsim.simulator.events import EventKind
from ddpsim.simulator.joins import joined_note
from ddpsim.simulator.kernel.requests import Note
from ddpsim.simulator.runtime.call_sites import calls_into, site_at
from ddpsim.simulator.runtime.host import Host

_OWN_FRAMES = 3
"""The number of innermost frames that are skipped, because they are always the simulator's."""

_USER_SHADOW = Origin(shadow=True)
_STEPLESS = frozenset({Phase.PARAMETER_CHECK, Phase.STATE_BROADCAST, Phase.REBUILD})
"""Phases that happen once, or on all ranks at the end of join, so that their calls need no step."""

Located = tuple[Origin, Site, Site | None, tuple[TensorName, ...]]
"""A call's origin, the line of the user's program that makes it, the line that called that, and the tensors' names."""


class OriginTracker:
    """Finds the origin of each call of one rank."""

    __slots__ = (
        "_host",
        "_names",
        "_phases",
        "_rank",
        "_wrappers",
        "coordinates",
        "messages",
        "optimizer_steps",
        "unit_steps",
    )

    def __init__(self, host: Host, wrappers: WrapperRegistry, phases: PhaseTable, rank: int) -> None:
        self._host = host
        self._wrappers = wrappers
        self._phases = phases
        self._rank = rank
        self._names = TensorNames()
        self.messages = Messages()
        self.unit_steps = UnitSteps()
        self.optimizer_steps = OptimizerSteps()
        self.coordinates = ""
        """The coordinates of the rank in the program's device mesh."""

    def locate(self, signature: Signature, tensors: Sequence[Tensor], start: FrameType | None = None) -> Located:
        """Return where a call that is being issued with `tensors` comes from.

        The stack is read from the frame `start` outwards, by default from the method of the process group.
        """
        known, learn = self._phases.known.get, self._phases.learn
        frame: FrameType | None = start or sys._getframe(_OWN_FRAMES)
        reading: Reading | None = None
        innermost: FrameType | None = None
        is_direct = is_read = is_reduction = has_callers = False
        while frame is not None:
            reader = known(id(frame.f_code)) or learn(frame)
            if reader is says_nothing:  # first, because it is the most frequent case
                is_direct = False
            elif reader is issues:
                is_direct = True
            elif reader is user_runs:
                is_direct = False
                has_callers = innermost is not None
                innermost = innermost or frame
                if is_read:
                    break
            elif reader is program_begins:
                break
            elif not is_read:
                if is_direct and reader is backward_runs:
                    is_reduction = is_read = True
                else:
                    reading = reading or Reading(signature.operation)
                    reader(reading, frame)
                    is_read = reading.is_complete
                if is_read and innermost is not None:
                    break
                is_direct = False
            frame = frame.f_back
        if is_reduction:
            origin = self._issued_by_reducer(self._wrappers.reducing(self._rank), signature)
        else:
            origin = USER_ORIGIN if reading is None else self._origin(reading, signature)
        if innermost is None:
            return origin, self._host.me.started_at, None, ()
        names: tuple[TensorName, ...] = ()
        if signature.operation in NAMED and (origin is USER_ORIGIN or origin.is_programs):
            names = self._names.of(signature.operation, tensors, innermost)
        if id(innermost.f_code) in self._phases.compiled:
            return origin, *self._compiled(innermost, reading), names
        is_alone = not (is_read or has_callers)  # a complete reading ended the search early
        caller = None if is_alone else self._caller(innermost, innermost.f_code.co_filename)
        return origin, self._phases.site_at(innermost), caller, names

    def _compiled(self, frame: FrameType, reading: Reading | None) -> tuple[Site, Site | None]:
        """Return the program line that a compiled function was traced from, and the line that called it."""
        traced = traced_from(reading.graph) if reading is not None and reading.graph is not None else []
        if not traced:
            return site_at(frame), self._caller(frame, "")
        path = traced[0].path
        within = next((site for site in traced if calls_into(site.path, path)), None)
        return traced[0], within or self._caller(frame, path)

    def _caller(self, frame: FrameType, path: str) -> Site | None:
        """Return the innermost line of the user's program, outwards of a frame, that is not in the file `path`."""
        known, learn = self._phases.known.get, self._phases.learn
        outer = frame.f_back
        while outer is not None:
            reader = known(id(outer.f_code)) or learn(outer)
            if reader is user_runs and calls_into(outer.f_code.co_filename, path):
                return site_at(outer)
            if reader is program_begins:
                return None
            outer = outer.f_back
        return None

    def _origin(self, reading: Reading, signature: Signature) -> Origin:
        if reading.continues is not None:
            continued: Origin = reading.continues.call.origin
            return continued._replace(is_chained=continued.by_hook)
        if reading.reducer is not None:
            return self._issued_by_reducer(self._wrappers.of_reducer(reading.reducer), signature)
        if reading.joining is not None:
            self._notice_join(reading.joining)
        if reading.phase is None and reading.part is not None:
            shadow = reading.has_joined is not None
            return Origin(step=self._step_of(reading), shadow=shadow, parameters=reading.parameters, part=reading.part)
        if reading.phase is None:
            return USER_ORIGIN if reading.has_joined is None else _USER_SHADOW
        if reading.owner is None and reading.innermost is not None:
            reading.owner = reading.innermost.f_locals.get("self")
        wrapper = self._wrappers.of(reading.owner)
        if wrapper is None:
            return Origin(reading.phase, shadow=reading.has_joined is not None)
        if reading.ends_join:
            for each in self._wrappers_in(reading.has_joined._joinables if reading.has_joined else [reading.owner]):
                each.align(self._wrappers.latest_step(*each.key))
        if reading.phase is Phase.REBUILD:
            wrapper.rebuilds()
        if reading.declared is not None:
            origin = _declared(reading, reading.declared, wrapper)
        else:
            origin = _origin_of(wrapper, reading.phase, reading.bucket, shadow=reading.has_joined is not None)
        return origin._replace(by_hook=True) if reading.is_hooks else origin

    def _step_of(self, reading: Reading) -> int | None:
        stepped = reading.stepped
        if isinstance(stepped, Optimizer):
            return self.optimizer_steps.of(stepped)
        return self.unit_steps.of(stepped) if reading.step is None else reading.step

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Count the step for the optimizer, and for the units that it has updated."""
        self.optimizer_steps.optimizer_stepped(optimizer)
        self.unit_steps.optimizer_stepped(optimizer)

    def _issued_by_reducer(self, wrapper: Wrapper | None, signature: Signature) -> Origin:
        """Return the origin of a call of the Reducer, which reduces its buckets and then the map of used parameters."""
        if wrapper is None or wrapper.module is None:
            return USER_ORIGIN
        if signature.dtype == "int32":
            return _origin_of(wrapper, Phase.USED_MAP, None, shadow=False)
        bucket = wrapper.bucket_for(signature)
        return USER_ORIGIN if bucket is None else _origin_of(wrapper, Phase.BUCKET, bucket, shadow=False)

    def _notice_join(self, members: Iterable[Any]) -> None:
        """Note that the rank ran out of input.

        Note [Step of joining]. A rank joins at the step of its wrapper, see Note [Steps] in wrapper.py. So
        micro-batches under no_sync do not count, and a second epoch continues from the step of all ranks at the end of
        the first. Of several wrappers in a join, the one with the most steps counts.
        """
        wrappers = self._wrappers_in(members)
        for wrapper in wrappers:
            wrapper.join()
        self._host.ask(Note(EventKind.NOTE, joined_note(max(map(_step_of, wrappers), default=None))))

    def _wrappers_in(self, members: Iterable[Any]) -> list[Wrapper]:
        """Return the wrappers among the members of a join, which may also be optimizers."""
        wrappers = [self._wrappers.of(member) for member in members if isinstance(member, Module)]
        return [wrapper for wrapper in wrappers if wrapper is not None]


def _step_of(wrapper: Wrapper) -> int:
    """Return the step of a wrapper, as the engine reports it if it is not torch's."""
    progress: Mapping[str, Any] = getattr(wrapper.module, PROGRESS, dict)()
    step: int = progress.get("step", wrapper.step)
    return step


def _origin_of(wrapper: Wrapper, phase: Phase, bucket: int | None, *, shadow: bool) -> Origin:
    if shadow and bucket is not None:
        wrapper.learn_buckets()
    step = None if shadow or phase in _STEPLESS or wrapper.reports_steps else wrapper.step
    parameters = () if bucket is None else wrapper.parameters(bucket)
    return Origin(phase, wrapper.number, bucket, step, shadow, parameters)


def _declared(reading: Reading, declared: Mapping[str, Any], wrapper: Wrapper) -> Origin:
    """Return the origin that another engine declares."""
    wrapper.reports_steps = True
    assert reading.phase is not None
    step: int | None = None
    if reading.phase not in _STEPLESS:
        step = declared.get("step")
        wrapper.look(step or 0)
    return Origin(
        reading.phase,
        wrapper.number,
        declared.get("bucket"),
        step,
        declared.get("shadow", False),
        tuple(declared.get("parameters", ())),
    )
