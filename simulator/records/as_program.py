"""Make a program of the last calls in a job's records: a test that makes the same calls in the same order.

Calls that completed long ago are left out. A rank issues all its calls and then waits for them in order, because no
record says where it waited. Details that a record lacks get the same default on all ranks: SUM, the first member as the
root, no tag. Sizes too large for a test are made smaller so that different sizes stay different.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from math import prod

from ddpsim.simulator.calls import ANY_SOURCE, Call, Shape, Site, Splits
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.operations import IN_PROGRAMS, Operation, RowRequirement, ShapeCount, SplitRule
from ddpsim.simulator.programs.program import DEFAULT, DTYPES, Group, Issue, Program, Step, Wait, reductions_of_dtype
from ddpsim.simulator.records.job import RecordedJob
from ddpsim.simulator.records.rank_record import CallProgress
from ddpsim.simulator.records.record_diagnosis import JobDiagnosis
from ddpsim.simulator.wording import values_by_key

KEPT = 20
"""The number of last collectives of each group that the program has; if a rank has no record, only incomplete ones."""
_MOST_ELEMENTS = 1024
_NAMES = {
    "monitored_barrier": "barrier",
    "all_to_all": "all_to_all_single",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
}
"""For each operation that programs cannot have, the nearest operation that they can have."""


def make_program(diagnosis: JobDiagnosis, *, folder: str = "") -> Program:
    """Return a program with a job's last calls. Raises UsageError for a call that no program can make.

    Each call keeps the line of the job's code that made it. Paths of files in `folder` become relative to it.
    """
    return _ProgramWriter(diagnosis, folder).write_program()


class _ProgramWriter:
    def __init__(self, diagnosis: JobDiagnosis, folder: str) -> None:
        self._folder = os.path.join(folder, "") if folder else ""
        self._job: RecordedJob = diagnosis.job
        kept = {id(call) for call in diagnosis.open_calls}
        cuts = _first_kept_collectives(self._job, diagnosis)
        self._calls = {rank: list(_calls_of_program(self._job, rank, cuts, kept)) for rank in self._job.records}
        shapes = sorted({_element_count(call) for calls in self._calls.values() for call in calls})
        self._elements = shapes if shapes and shapes[-1] > _MOST_ELEMENTS else ()

    def write_program(self) -> Program:
        used = {call.group for calls in self._calls.values() for call in calls}
        groups = tuple(
            Group(group, tuple(sorted(members)))
            for group, members in self._job.members.items()
            if group in used and self._group_name(group) != DEFAULT
        )
        ranks = tuple(tuple(self._steps_of_rank(rank)) for rank in range(self._job.world_size))
        return Program(self._job.world_size, groups, ranks)

    def _group_name(self, group: str) -> str:
        """Return a group's name in the program. A group of all ranks, which clogs name differently, is the default."""
        is_of_all = self._job.members[group] == tuple(range(self._job.world_size))
        return DEFAULT if is_of_all and DEFAULT not in self._job.members else group

    def _steps_of_rank(self, rank: int) -> Iterator[Step]:
        names: Counter[str] = Counter()
        issues = []
        for call in self._calls.get(rank, ()):
            name = f"{call.title} on {call.group}"
            names[name] += 1
            issues.append(self._issue_step(call, name if names[name] == 1 else f"{name}, {names[name]}"))
        yield from issues
        yield from (Wait(issue.name) for issue in issues)

    def _issue_step(self, call: Call, name: str) -> Issue:
        operation = _NAMES.get(call.operation, call.operation)
        if operation not in IN_PROGRAMS:
            raise UsageError(
                f"the records have the call {call.operation!r}, which no test can make: leave --write-test out"
            )
        row = IN_PROGRAMS[operation]
        members = self._job.members[call.group]
        dtype = reduction = root = None
        if row.shapes is not ShapeCount.NONE:
            dtype = call.signature.dtype if call.signature.dtype in DTYPES else DTYPES[0]
        if row.reduces:
            known = reductions_of_dtype(str(dtype))
            reduction = call.signature.reduction if call.signature.reduction in known else known[0]
        if row.has_root:
            root = call.signature.root if call.signature.root in members else min(members)
        shapes, splits = self._shapes_and_splits(call, row, len(members))
        group, at = self._group_name(call.group), self._site_text(call.site)
        return Issue(name, operation, group, shapes, dtype, reduction, root, splits, call.peer, call.tag, at)

    def _site_text(self, site: Site) -> str:
        """Return the line that made the call, in the form that programs use; "" if the record has no line."""
        if not site.path or site.line < 1:
            return ""
        function = f" in {site.function}" if site.function else ""
        return f"{site.path.removeprefix(self._folder)}:{site.line}{function}"

    def _shapes_and_splits(self, call: Call, row: Operation, size: int) -> tuple[tuple[Shape, ...], Splits | None]:
        """Return a call's shapes and splits, made smaller if they are too large for a test."""
        elements = _element_count(call)
        count = self._elements.index(elements) + 1 if self._elements else elements  # its place among too large sizes
        if row.shapes is ShapeCount.NONE:
            return (), None
        if row.splits is not SplitRule.NONE:
            splits = call.signature.splits
            if splits is None or any(len(side) != size or sum(side) > _MOST_ELEMENTS for side in splits):
                splits = (1,) * size, (1,) * size
            return ((sum(splits[0]),), (sum(splits[1]),)), splits
        if row.shapes is ShapeCount.PER_MEMBER:
            return ((count,),) * size, None
        shapes = call.signature.shapes
        if row.rows is RowRequirement.DIVISIBLE:
            return ((count * size,),), None
        is_as_it_was = not self._elements and len(shapes) == 1 and (shapes[0] or row.rows is RowRequirement.ANY)
        return (shapes if is_as_it_was else ((count,),)), None


def _element_count(call: Call) -> int:
    return sum(prod(shape) for shape in call.signature.shapes)


def _first_kept_collectives(job: RecordedJob, diagnosis: JobDiagnosis) -> Mapping[str, int]:
    """Return, for each group, its first collective that the program has."""
    first: dict[str, int] = {}
    records = job.records.values()
    lanes = [(each.groups[n], lane) for each in records for n, lane in each.call_log.collectives_by_group.items()]
    for group, lasts in values_by_key((group, lane.last) for group, lane in lanes).items():
        number = min(lasts)
        has_all = all(rank in job.records for rank in job.members[group])
        first[group] = max(0, number - KEPT + 1) if has_all else number + 1
    for call in diagnosis.open_calls:
        if not call.is_point_to_point:
            first[call.group] = min(first[call.group], call.sequence)
    return first


def _calls_of_program(job: RecordedJob, rank: int, cuts: Mapping[str, int], kept: Set[int]) -> Iterator[Call]:
    """Yield a rank's calls that the program has, in order; if group numbers restart, those after the last restart."""
    record = job.records[rank]
    call_log = record.call_log
    first = {number: cuts[record.groups[number]] for number in call_log.collectives_by_group}
    for index, step in enumerate(call_log.steps):
        if step.is_collective:
            if step.sequence >= first[step.group] and index >= call_log.collectives_by_group[step.group].begin:
                yield record.calls[index].call
        elif step.peer is not None:
            call = record.calls[index].call
            if id(call) in kept or (step.progress is CallProgress.UNFINISHED and call.peer != ANY_SOURCE):
                yield call
