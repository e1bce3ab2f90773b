"""The classes of a scenario: a program, its world size and options, and its expected outcome.

    @scenario(expected=finds(Code.DEADLOCK_MISSING_RANK, ranks=1), reports=["pytorch/pytorch#38174"])
    def uneven_inputs_without_join(rank: int) -> None:
        ...
            model(batch).sum().backward()  # found here

    @repairs(uneven_inputs_without_join)
    def repaired(rank: int) -> None:
        ...

The program uses torch's DistributedDataParallel and runs on every engine. The finding must name a line that ends in
`# found here`; `# found here by torch` and `# found here by ddp` apply to one engine only. The repaired twin must pass
without any finding.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpsim import Code as Code  # the zoo takes all that declares a scenario from here
from ddpsim import Finding, Result, UsageError, Verdict
from ddpsim.scenarios.engines import Engine
from ddpsim.scenarios.ranks.function import as_rank_function
from ddpsim.simulator.backend_semantics import GLOO
from ddpsim.simulator.calls import Site
from ddpsim.simulator.faults import Fault
from ddpsim.simulator.launching.script import Script
from ddpsim.simulator.run_options import REPLICAS_IF_ANY, RunOptions
from ddpsim.simulator.wording import rank_list

if TYPE_CHECKING:
    from ddpsim.scenarios.training.reference import TrainingReference
    from ddpsim.scenarios.training.snapshot import Snapshot

Ranks = tuple[int, ...]

TWIN = "-repaired"
"""The suffix that a repaired twin adds to the name of the bug's scenario."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected outcome of a run: its verdict and, if `code` is given, the code of its first finding."""

    verdict: Verdict = Verdict.PASS
    code: Code | None = None
    ranks: Ranks | Callable[[int], Ranks] = ()
    """The ranks that the finding must blame, or a function that computes them from the world size."""
    is_clean: bool = False
    """True if no finding at all is expected, not even a hazard, which would let the run pass."""
    lines: tuple[int, ...] = ()
    """Lines of `file`. The first line that the finding names must be one of them. () allows any line."""
    file: str = ""
    """The name of the program's file, without folders."""
    otherwise: Expectation | None = None
    """A second expected outcome, which other interleavings of the ranks may have; None if all have the same outcome."""
    shows: int | None = None
    """If the outcome depends on the interleaving: how many of ten random schedules (seeds 0 to 9) have this outcome."""

    def is_met_by(self, result: Result) -> bool:
        """Return True if a simulated run has the expected outcome."""
        other = self.otherwise
        return self._is_met_without_alternative(result) or (other is not None and other.is_met_by(result))

    def _is_met_without_alternative(self, result: Result) -> bool:
        if self.is_clean or self.code is None:
            return result.verdict is self.verdict and not (self.is_clean and result.findings)
        if self.text(result.world_size) != outcome_text(result):
            return False
        site = _first_site(result)
        return not self.lines or (site is not None and site.file == self.file and site.line in self.lines)

    def is_met_on_processes(self, result: Result) -> bool:
        """Return True if a run on real processes passes or fails as expected.

        Code, ranks and line are not compared, because a deadlock shows as a time-out there and a mismatch may show as
        anything. If a hazard is expected, the run may pass or fail.
        """
        is_hazard = self.code is not None and self.code.verdict is Verdict.PASS
        own = is_hazard or result.verdict is self.verdict
        return own or (self.otherwise is not None and self.otherwise.is_met_on_processes(result))

    def text(self, world_size: int) -> str:
        """Return the expectation in words, in the same form as `outcome_text` describes a run."""
        ranks = self.ranks(world_size) if callable(self.ranks) else self.ranks
        return _outcome_text(self.verdict, self.code, ranks)


PASSES = Expectation()
CLEAN = Expectation(is_clean=True)
"""Expects a pass without any finding, hazards included."""


def every_rank(world_size: int) -> Ranks:
    """Return all ranks. Use it as `ranks` of an expectation in which the finding blames every rank."""
    return tuple(range(world_size))


def odd_one_out(rank: int) -> Callable[[int], Ranks]:
    """Return a function that computes, from the world size, the ranks to blame if `rank` differs from the others:
    `rank` alone, but both ranks in a world of two."""
    return lambda world_size: (rank,) if world_size > 2 else (0, 1)


def finds(
    code: Code,
    ranks: int | Ranks | Callable[[int], Ranks] = (),
    *,
    shows: int | None = None,
    otherwise: Expectation | None = None,
) -> Expectation:
    """Return the expectation of a finding `code` that blames `ranks`.

    If the outcome depends on the interleaving, `shows` is the number of ten random schedules (seeds 0 to 9) that have
    the finding, and `otherwise` is the outcome of the others.
    """
    blamed = (ranks,) if isinstance(ranks, int) else ranks
    return Expectation(code.verdict, code, blamed, shows=shows, otherwise=otherwise)


@dataclass(frozen=True, slots=True)
class Scenario(RunOptions):
    """A program with its world size, the options of its runs, and its expected outcome."""

    name: str
    about: str
    """A text on the scenario. The first line says what goes wrong, or what the scenario shows; the rest says why."""
    program: Callable[..., Any]
    """The function that every rank runs, called as `program(rank, *args)`."""
    expected: Expectation = PASSES
    expected_under_ddp: Expectation | None = None
    """The expected outcome on engine "ddp"; None if it is the same as on torch's engine."""
    world_size: int = 4
    """The default number of ranks."""
    min_world_size: int = 2
    max_world_size: int | None = None
    added_faults: tuple[Fault, ...] = ()
    """The faults that a caller or a file has added to the scenario's own faults; a replay line must repeat them."""
    tags: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    """Public reports of the bug that the scenario shows: issues, pull requests, threads."""
    reference: Callable[[int], TrainingReference | Snapshot] | None = None
    """Trains in one process and returns, for a world size, the value expected of each rank's program."""
    repairs: str = ""
    """For a repaired twin, the name of the scenario that shows the bug; else ""."""
    engine: Engine = Engine.TORCH
    """The default engine."""
    hash_seed: int | None = None
    """The PYTHONHASHSEED of all ranks of a program; None for ddpsim's default hash seeds."""
    check: str | None = field(default=REPLICAS_IF_ANY, kw_only=True)
    choices: tuple[int, ...] = ()
    """The schedule without a policy, a number per choice. An impossible choice is not used. () is round robin."""

    @property
    def summary(self) -> str:
        """Return the first line of `about`, which says what goes wrong."""
        return self.about.strip().partition("\n")[0]

    @property
    def cause(self) -> str:
        """Return why the scenario fails, in one paragraph; "" if `about` has only one line."""
        return " ".join(self.about.strip().partition("\n")[2].split())

    def engine_named(self, name: str | Engine | None) -> Engine:
        """Return the engine of that name; for None, the scenario's own. Raises UsageError for an unknown name."""
        return self.engine if name is None else Engine.parse_name(name)

    def expected_by(self, engine: Engine) -> Expectation:
        """Return the outcome that is expected on an engine."""
        return self.expected_under_ddp or self.expected if engine is Engine.DDP else self.expected

    def with_world_size(self, world_size: int | None) -> Scenario:
        """Return the scenario with another world size. Raises UsageError for a size that it does not support."""
        if world_size is None:
            return self
        if isinstance(self.program, Script) and self.program.counts_ranks:
            return replace(self, program=replace(self.program, counts_ranks=False)).with_world_size(world_size)
        if world_size == self.world_size:
            return self
        least, most = self.min_world_size, self.max_world_size
        if least == most:
            raise UsageError(f"world size is {world_size}, {self.name} runs only on {least}: leave it out")
        if isinstance(world_size, int) and world_size < least:
            raise UsageError(f"world size is {world_size}, {self.name} expects {least} or more: give it more ranks")
        if isinstance(world_size, int) and most is not None and world_size > most:
            raise UsageError(f"world size is {world_size}, {self.name} expects {most} or fewer: give it fewer ranks")
        return replace(self, world_size=world_size)


def scenario(
    *,
    about: str | None = None,
    name: str | None = None,
    expected: Expectation = PASSES,
    under_ddp: Expectation | None = None,
    reports: Sequence[str] = (),
    tags: Sequence[str] = (),
    world_size: int = 4,
    min_world_size: int = 2,
    max_world_size: int | None = None,
    faults: Sequence[Fault] = (),
    reference: Callable[[int], TrainingReference | Snapshot] | None = None,
    check: str | None = REPLICAS_IF_ANY,
    poison: bool | None = None,
    backend_semantics: str = GLOO.name,
) -> Callable[[Callable[..., Any]], Scenario]:
    """Decorate a function `program(rank)`, or one without arguments, as a scenario.

    The first line of `about` says what goes wrong, the rest why; the default is the docstring of a file that has the
    function's name, or else of the function. The default name is the function's with dashes. `under_ddp` is what is
    expected on engine "ddp", if it differs. `check`, `poison` and `backend_semantics` are options of `simulate`.
    """

    def make_scenario(program: Callable[..., Any]) -> Scenario:
        return Scenario(
            name or program.__name__.replace("_", "-"),
            about or _docstring_of(program),
            as_rank_function(program),
            _with_marked_lines(expected, program, Engine.TORCH),
            _with_marked_lines(under_ddp or expected, program, Engine.DDP),
            world_size,
            min_world_size,
            max_world_size,
            faults=tuple(faults),
            tags=tuple(tags),
            reports=tuple(reports),
            reference=reference,
            check=check,
            poison=poison,
            backend_semantics=backend_semantics,
        )

    return make_scenario


def _docstring_of(program: Callable[..., Any]) -> str:
    source = inspect.getsourcefile(program)
    has_own_file = source is not None and Path(source).stem == program.__name__
    return (inspect.unwrap(program).__globals__["__doc__"] if has_own_file else None) or inspect.getdoc(program) or ""


def repairs(bug: Scenario) -> Callable[[Callable[..., Any]], Scenario]:
    """Decorate a function as the repaired twin of a scenario: same world size, no faults, and no finding expected."""

    def make_repaired_scenario(program: Callable[..., Any]) -> Scenario:
        return replace(
            bug,
            name=bug.name + TWIN,
            about=inspect.getdoc(program) or "",
            program=as_rank_function(program),
            expected=CLEAN,
            expected_under_ddp=None,
            faults=(),
            repairs=bug.name,
        )

    return make_repaired_scenario


_MARKER = re.compile(r"# found here(?: by (?P<engine>\w+))?\s*$")


def marked_lines_of_file(path: Path, engine: Engine) -> tuple[int, ...]:
    """Return the lines of a file that a comment marks `# found here` for an engine.

    Raises UsageError if a mark names an unknown engine.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if match := _MARKER.search(line):
            try:
                named = Engine.parse_name(match["engine"] or engine)
            except UsageError as error:
                raise UsageError(f"{path}:{number} {error}") from error
            found += [number] * (named is engine)
    return tuple(found)


def _own_marked_lines(program: Callable[..., Any], path: Path, engine: Engine) -> tuple[int, ...]:
    """Return the marked lines of a scenario's file, except those that only other scenarios use."""
    first = inspect.getsourcelines(program)[1]
    statements = _statements_of(path.read_text(encoding="utf-8"))
    decorated = [node for node in statements if isinstance(node, ast.FunctionDef) and node.decorator_list]
    starts: dict[ast.stmt, int] = {node: node.decorator_list[0].lineno for node in decorated}
    own = [node for node in statements if starts.get(node, node.lineno) <= first <= (node.end_lineno or first)]
    others = [node for node in decorated if node not in own]
    elsewhere = lines_used_by(others, statements) - lines_used_by(own, statements)
    return tuple(line for line in marked_lines_of_file(path, engine) if line not in elsewhere)


@lru_cache(maxsize=1)  # a file may have several scenarios
def _statements_of(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def lines_used_by(roots: Sequence[ast.stmt], statements: Sequence[ast.stmt]) -> set[int]:
    """Return the lines of some statements of a module, and of the statements that bind what they name, and so on."""
    binding = {name: node for node in statements for name in _names_bound_by(node)}
    used: set[ast.stmt] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node not in used:
            used.add(node)
            waiting += [
                binding[each.id] for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in binding
            ]
    return {line for node in used for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _names_bound_by(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]


def outcome_text(result: Result) -> str:
    """Return the outcome of a run in a few words: verdict of the run, code and ranks of its first finding."""
    leading = _first_finding(result)
    return _outcome_text(result.verdict, leading.code if leading else None, leading.ranks if leading else ())


def outcome_text_on_processes(result: Result) -> str:
    """Return the outcome of a run on real processes: `pass`, `hung`, `rank_error, rank 1` or `died, rank 1`."""
    leading = _first_finding(result)
    if leading is None or leading.code.verdict is Verdict.PASS:
        return Verdict.PASS.value
    if leading.code is Code.STUCK:
        return "hung"
    has_died = leading.code is Code.RANK_ERROR and not leading.sites and not set(leading.ranks) & set(result.errors)
    how = "died" if has_died else str(leading.code)
    return f"{how}, {rank_list(leading.ranks)}" if leading.ranks else how


def location_of_first_finding(result: Result) -> str:
    """Return the first source line that the first finding names, such as `train.py:12`; "nowhere" if there is none."""
    return str(_first_site(result) or "nowhere")


def _first_finding(result: Result) -> Finding | None:
    return next(iter(result.findings), None)


def _first_site(result: Result) -> Site | None:
    leading = _first_finding(result)
    return next(iter(leading.sites), None) if leading else None


def _with_marked_lines(expected: Expectation, program: Callable[..., Any], engine: Engine) -> Expectation:
    """Return the expectation with the lines of the program's file marked `# found here`; also in its `otherwise`."""
    source = inspect.getsourcefile(program)
    otherwise = expected.otherwise and _with_marked_lines(expected.otherwise, program, engine)
    if expected.code is None or source is None:
        return replace(expected, otherwise=otherwise)
    path = Path(source)
    return replace(expected, lines=_own_marked_lines(program, path, engine), file=path.name, otherwise=otherwise)


def _outcome_text(verdict: Verdict, code: Code | None, ranks: Ranks) -> str:
    return ", ".join([verdict.value, *([str(code)] if code else []), *([rank_list(ranks)] if ranks else [])])
