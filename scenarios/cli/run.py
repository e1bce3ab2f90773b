"""`ddpsim run`: run one scenario and print its whole report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpsim.scenarios.cli import options as cli_options
from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.option_sets import OptionsOfRun, expand_option_sets
from ddpsim.scenarios.cli.program_words import importing_simulator, note_trailing_options
from ddpsim.scenarios.cli.recording import Records, check_record_folders, write_and_show_records
from ddpsim.scenarios.cli.reporting import report_writer, show_lanes
from ddpsim.scenarios.cli.status import ExitStatus, worst_status
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.policies.named import DEFAULT_DRAWING, DRAWING, join_names, uses_seed

if TYPE_CHECKING:
    from ddpsim import Result
    from ddpsim.scenarios.cli.judgement import Judgement
    from ddpsim.scenarios.cli.reporting import ReportWriter
    from ddpsim.scenarios.engines import Engine
    from ddpsim.scenarios.model import Scenario


@expand_option_sets
def run(
    name: cli_options.Name,
    *,
    engine: cli_options.OwnOrEngines = None,
    world_size: cli_options.WorldSize = None,
    policy: cli_options.OwnOrPolicy = None,
    seed: cli_options.Seed = 0,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="A..B",
            help=f"Run once with each seed from A to B, and count the outcomes; without --policy, the policy is "
            f"{DEFAULT_DRAWING}.",
        ),
    ] = None,
    transport: cli_options.TransportName = "memory",
    options: OptionsOfRun,
    timeout: cli_options.Timeout = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after so many real seconds, as unknown.  [default: 600]")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Stop after so many steps, as unknown.  [default: 10000000]")
    ] = None,
    lanes: Annotated[
        bool, typer.Option("--lanes", help="Draw a lane for each rank, one letter per call, below the report.")
    ] = False,
    report: cli_options.ReportFolder = None,
    opens: cli_options.Opens = False,
    records: Records,
) -> int:
    """Run a script, a function or a scenario, and report its outcome."""
    with importing_simulator():
        from ddpsim import Budget
        from ddpsim.scenarios.files.loader import load
        from ddpsim.scenarios.running.run_as import with_run_options
        from ddpsim.scenarios.running.runner import PROCESSES, run_scenario

    limits: dict[str, Any] = {"seconds": seconds, "steps": steps}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    budget = output.ShownBudget(**given) if transport != PROCESSES else Budget(**given) if given else None

    def run_once(scenario: Scenario, engine: Engine, seed: int = seed) -> Result:
        return run_scenario(
            scenario,
            engine,
            transport=transport,
            world_size=world_size,
            policy=policy,
            seed=seed,
            timeout_seconds=timeout,
            budget=budget,
            names_parting=seeds is None,
        )

    policy = DEFAULT_DRAWING if seeds is not None and policy is None else policy
    drawn = None if seeds is None else parse_seeds(seeds, str(policy), seed)
    own = load(name)
    backends = cli_options.backends_named(options.get("backend_semantics"), own.backend_semantics)
    scenario = with_run_options(own, options)
    engines = (scenario.engine,) if engine is None else cli_options.engines_named(engine)
    how = cli_options.schedule_source_text(transport, policy, seed if drawn is None else drawn, scenario.choices)
    runs = len(engines) * len(backends)
    check_record_folders(records, runs=runs * len(drawn or (seed,)), transport=transport)
    with report_writer(report, opens=opens, title=name if runs > 1 else "") as reported:
        cases = [(each, replace(scenario, backend_semantics=backend)) for backend in backends for each in engines]
        leave = partial(write_and_show_records, records)
        return _run_cases(cases, transport, how, run_once, drawn, reported, leave, with_lanes=lanes)


def _run_cases(
    cases: Sequence[tuple[Engine, Scenario]],
    transport: str,
    how: str,
    run_once: Callable[..., Result],
    seeds: range | None,
    report: ReportWriter,
    leave: Callable[[Result], None],
    *,
    with_lanes: bool,
) -> int:
    """Run the scenario on each engine and backend, print and report each outcome, and return the worst exit status."""
    from ddpsim.scenarios.cli.judgement import judge_interrupted, judge_result
    from ddpsim.simulator.result import RunInterrupted

    statuses = []
    found: dict[str, list[Result]] = {}
    with cli_options.keep_servers_for(transport):
        for number, (engine, scenario) in enumerate(cases):
            start = time.perf_counter()
            judged = partial(judge_result, scenario.expected_by(engine), transport=transport)
            one = partial(run_once, scenario, engine)
            outcomes = None if seeds is None else SeedOutcomes()
            try:
                result = one() if outcomes is None or seeds is None else run_seeds(outcomes, seeds, one, judged)
                judgement = judged(result) if outcomes is None else outcomes.judgement
            except RunInterrupted as cut:
                if outcomes is not None and outcomes.statuses:
                    output.print_text(outcomes.text)
                result, outcomes = cut.result, None
                judgement = judge_interrupted(scenario.expected_by(engine), result)
            seconds = time.perf_counter() - start
            if len(cases) > 1:
                output.print_text(f"{'' if number == 0 else chr(10)}--- {_case_heading(engine, scenario, cases)}")
            found.setdefault(scenario.backend_semantics, []).append(result)
            output.print_text(f"{head_line(scenario, result, engine, how)}  {output.time_since_start(start)}\n")
            output.print_text(f"{result}\n" if outcomes is None else outcomes.text)
            if with_lanes:
                show_lanes(result)
            output.print_text(judgement.line)
            leave(result)
            statuses.append(judgement.status)
            report.add_run(scenario, engine, result, *judgement, how=how, seconds=seconds, transport=transport)
            if judgement.status is ExitStatus.INTERRUPTED:
                break
    note_trailing_options(scenario, run, result)
    if len(found) > 1:
        output.print_text(f"\n{outcomes_by_backend(found)}")
    return worst_status(statuses)


def _case_heading(engine: Engine, scenario: Scenario, cases: Sequence[tuple[Engine, Scenario]]) -> str:
    """Return the heading of one of several runs: the backend or the engine in which the runs differ."""
    backends = {each.backend_semantics for _, each in cases}
    engines = {each for each, _ in cases}
    named = [scenario.backend_semantics] if len(backends) > 1 else []
    return ", ".join([*named, engine.value] if len(engines) > 1 or not named else named)


def outcomes_by_backend(found: Mapping[str, Sequence[Result]]) -> str:
    """Return one line with the outcome on each backend, the worst of its runs: "passes on gloo; can hang on nccl"."""
    from ddpsim import Verdict

    sides: dict[str, list[str]] = {}
    for backend, results in found.items():
        worst_of = max(results, key=lambda result: list(Verdict).index(result.verdict))
        sides.setdefault(_outcome_verb(worst_of, backend), []).append(backend)
    return "; ".join(f"{what} on {', '.join(names)}" for what, names in sides.items())


def _outcome_verb(result: Result, backend: str) -> str:
    """Return the outcome as a verb.

    For other backends than gloo it is "can hang", because the simulator applies the strictest rules that such a backend
    may follow.
    """
    from ddpsim import Verdict
    from ddpsim.simulator.backend_semantics import GLOO

    if result.verdict is Verdict.PASS:
        return "passes"
    if result.verdict is Verdict.UNKNOWN:
        return "is not decided"
    verb = "hang" if result.findings[0].code.value.startswith("deadlock.") else "fail"
    return f"{verb}s" if backend == GLOO.name else f"can {verb}"


def head_line(scenario: Scenario, result: Result, engine: Engine, how: str) -> str:
    """Return the head line of a run: its name, world size and policy; its engine unless torch; its backend unless
    gloo."""
    rules = "" if scenario.backend_semantics == "gloo" else f"  by the rules of {scenario.backend_semantics}"
    return f"{scenario.name}  world size {result.world_size}  {cli_options.engine_text(engine)}{how}{rules}"


_MOST_SEEDS = 1_000_000


def parse_seeds(text: str, policy: str, seed: int) -> range:
    """Return the seeds of a text like "0..99", both ends included.

    Raises UsageError for any other text, for a policy that uses no seed, and if option `seed` is given as well.
    """
    if seed:
        raise UsageError(f"found --seed {seed} and --seeds {text}, expected only one: leave one of them out")
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
    if not first <= last < first + _MOST_SEEDS:
        raise UsageError(f"seeds are {text!r}, expected FIRST..LAST, such as 0..99: correct it")
    if not uses_seed(policy):
        raise UsageError(
            f"policy is {policy!r}, which uses no seed, expected {join_names(DRAWING)} with --seeds: "
            "leave one of them out"
        )
    return range(first, last + 1)


@dataclass
class SeedOutcomes:
    """The outcomes of runs with many seeds: their counts, and the one run to show in full."""

    seeds: dict[str, list[int]] = field(default_factory=dict)
    """For each outcome, the seeds whose runs had this outcome."""
    statuses: list[ExitStatus] = field(default_factory=list)
    run_to_show: Result = field(init=False)
    """The first unexpected run; if there is none, the first that did not pass; otherwise the first run."""
    unchecked: dict[str, str] = field(default_factory=dict)
    """What runs that passed did not check, by kind."""
    _line: str = field(init=False)
    _priority: int = -1
    """The line that judges `run_to_show`, and its priority: highest for an unexpected outcome, then for a failure."""

    def add_run(self, seed: int, result: Result, judgement: Judgement) -> None:
        """Count a run. Keep the run if it is the most interesting to show so far."""
        from ddpsim import Verdict
        from ddpsim.scenarios.model import outcome_text

        self.seeds.setdefault(outcome_text(result), []).append(seed)
        self.statuses.append(judgement.status)
        self.unchecked = result.unchecked | self.unchecked
        priority = 2 * (judgement.status is not ExitStatus.AS_EXPECTED) + (result.verdict is not Verdict.PASS)
        if priority > self._priority:
            self._priority, self.run_to_show, self._line = priority, result, judgement.line

    @property
    def judgement(self) -> Judgement:
        """The exit status over all seeds, and a line with the first unexpected outcome and how many seeds had one."""
        from ddpsim.scenarios.cli.judgement import Judgement

        count, others = len(self.statuses), sum(status is not ExitStatus.AS_EXPECTED for status in self.statuses)
        if not others:
            which = f"each of {count} seeds" if count > 1 else f"seed {min(map(min, self.seeds.values()))}"
            return Judgement(ExitStatus.AS_EXPECTED, f"as expected with {which}")
        return Judgement(worst_status(self.statuses), f"{self._line}; with {others} of {count} seeds")

    @property
    def text(self) -> str:
        """A table of the outcomes with their counts and first seeds; below it the run to show, unless it passed."""
        from ddpsim import Verdict

        rows = sorted(self.seeds.items(), key=lambda row: (-len(row[1]), row[1][0]))
        width = len(str(len(rows[0][1])))
        table = [f"{len(seeds):>{width}}  {found}  (first with seed {seeds[0]})" for found, seeds in rows]
        table += [f"note  {note}" for note in self.unchecked.values()]
        if self.run_to_show.verdict is not Verdict.PASS:
            table += ["", str(self.run_to_show)]
        elif self.run_to_show.not_struck:
            table.append(f"note  in the first passing run {self.run_to_show.not_struck}")
        return "\n".join([*table, ""])


def run_seeds(
    outcomes: SeedOutcomes, seeds: range, run: Callable[[int], Result], judge: Callable[[Result], Judgement]
) -> Result:
    """Run the scenario with each seed, count the outcomes, and return the run to show; a terminal shows a progress
    bar."""
    results = ((seed, run(seed)) for seed in seeds)
    for seed, result in output.with_progress_bar(results, len(seeds)):
        outcomes.add_run(seed, result, judge(result))
    return outcomes.run_to_show
