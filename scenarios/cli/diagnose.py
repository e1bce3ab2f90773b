"""`ddpsim diagnose`: find the bug of a real job that hung or crashed, from the records that its ranks wrote."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.scenarios.cli import output
from ddpsim.scenarios.cli.options import Opens, ReportFolder
from ddpsim.scenarios.cli.status import ExitStatus
from ddpsim.simulator.errors import UsageError
from ddpsim.simulator.wording import count_with_noun, join_names

if TYPE_CHECKING:
    from ddpsim.scenarios.records.found_records import FoundRecords
    from ddpsim.simulator.records.record_diagnosis import JobDiagnosis
    from ddpsim.simulator.result import Result

_MOST_NOTES = 12


def diagnose(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Records: files, folders, patterns, tar or zip archives. With --torchrun: the command to run.",
        ),
    ],
    world_size: Annotated[
        int | None, typer.Option(help="World size of the job, if the records do not have it.", min=2)
    ] = None,
    write_test: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a test that repeats the last calls of the records in the same order: "
            "test_hang.py for pytest, hang.toml for run and shrink.",
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Simulate the program of the job, and show where its calls first differ from the records: "
            "--program 'train.py --epochs 2'",
        ),
    ] = None,
    torchrun: Annotated[
        bool,
        typer.Option(
            "--torchrun",
            help="Run a job here with the flight recorder on, end it when it hangs, and diagnose its records: "
            "--torchrun -- torchrun --nproc-per-node 4 train.py",
        ),
    ] = False,
    quiet: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="With --torchrun: end the job after so long without progress.", min=1),
    ] = 10.0,
    limit: Annotated[
        float, typer.Option(metavar="SECONDS", help="With --torchrun: end the job after so long.", min=1)
    ] = 600.0,
    report: ReportFolder = None,
    opens: Opens = False,
) -> int:
    """Find the bug of a job that hung or crashed, from its records.

    Records are dumps of torch's flight recorder, or torchcomms' clogs, one per rank. Nothing in them is executed.
    Exit status: 0 nothing found, 1 findings, 2 no readable records, 3 unknown.
    """
    from ddpsim.scenarios.cli.reporting import report_writer
    from ddpsim.scenarios.records.failing_test import check_test_file_name, write_failing_test
    from ddpsim.scenarios.records.found_records import find_records
    from ddpsim.simulator.records.job import combine_records
    from ddpsim.simulator.records.rank_record import RecordError
    from ddpsim.simulator.records.record_diagnosis import diagnose_job

    if write_test is not None:
        from ddpsim.scenarios.fuzzing.shrinking.saved import check_file_is_new

        check_test_file_name(write_test)
        check_file_is_new(write_test, "--write-test")
    found, ended = _run_watched_job(paths, quiet, limit) if torchrun else (find_records(paths), [])
    try:
        job = combine_records(found.records, world_size)
    except RecordError as error:
        raise RecordError("; left out ".join([str(error), *found.left_out[:1]])) from error
    diagnosis = diagnose_job(job)
    result = _result_of_diagnosis(diagnosis, with_trace=report is not None or opens)
    name = " ".join(paths)
    notes = [*ended, *(f"left out {each}" for each in found.left_out), *diagnosis.notes]
    with report_writer(report, opens=opens) as reported:
        output.print_text(f"{name}  {_head_line(diagnosis)}\n\n{_findings_text(result, diagnosis)}")
        if notes:
            shown = notes if len(notes) <= _MOST_NOTES else [*notes[:_MOST_NOTES], "..."]
            output.print_text("\n" + "\n".join(f"note  {note}" for note in shown))
        if write_test is not None:
            output.print_text(f"\n{write_failing_test(diagnosis, paths, write_test)}")
        if program is not None:
            from ddpsim.scenarios.records.own_program import run_and_compare

            with redirect_stdout(sys.stderr):  # the program's own output
                comparison = run_and_compare(diagnosis.job, program)
            output.print_text(f"\n{comparison}")
        reported.add_records(result, name, _head_line(diagnosis).partition("  ")[2].replace("  ", ", "), notes)
    statuses = {"pass": ExitStatus.AS_EXPECTED, "fail": ExitStatus.OTHERWISE, "unknown": ExitStatus.UNKNOWN}
    return statuses[diagnosis.verdict.value]


def _run_watched_job(words: list[str], quiet_seconds: float, limit_seconds: float) -> tuple[FoundRecords, list[str]]:
    """Run a job with the flight recorder on; return its records, and why it ended."""
    from ddpsim.scenarios.jobs.watched_job import run_watched_job
    from ddpsim.scenarios.records.found_records import find_records
    from ddpsim.simulator.records.rank_record import RecordError

    with TemporaryDirectory() as folder:
        ended = run_watched_job(words, Path(folder), quiet_seconds=quiet_seconds, limit_seconds=limit_seconds)
        try:
            return find_records([f"{folder}/rank_*"]), [ended.why]
        except RecordError as error:
            raise UsageError(
                f"{ended.why}, and wrote no record, expected ranks that create a process group: give torchrun such a "
                "program"
            ) from error


def _head_line(diagnosis: JobDiagnosis) -> str:
    """Return the head line: the world size, and how many records and calls were read."""
    records = diagnosis.job.records.values()
    calls = count_with_noun(sum(len(record.call_log.steps) for record in records), "call")
    forms = ", ".join(dict.fromkeys(record.form for record in records))
    return f"world size {diagnosis.job.world_size}  {count_with_noun(len(records), 'record')} of {forms}  {calls}"


def _findings_text(result: Result, diagnosis: JobDiagnosis) -> str:
    if result.findings:
        return "\n\n".join(finding.body for finding in result.findings)
    matched = {"collective": diagnosis.compared, "message": diagnosis.messages}
    counts = [count_with_noun(count, noun) for noun, count in matched.items() if count]
    return f"PASS  the matched calls agree in everything that the records contain: {join_names(counts) or 'no call'}"


def _result_of_diagnosis(diagnosis: JobDiagnosis, *, with_trace: bool) -> Result:
    from ddpsim.simulator.choices import Schedule
    from ddpsim.simulator.records.record_diagnosis import make_trace
    from ddpsim.simulator.result import Result
    from ddpsim.simulator.trace import Trace

    size = diagnosis.job.world_size
    trace = make_trace(diagnosis) if with_trace else Trace()
    return Result(size, diagnosis.findings, (None,) * size, {}, Schedule(), trace, waiting=diagnosis.waiting)
