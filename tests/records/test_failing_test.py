"""Tests that are written of records: which lines they tell, and what the form for pytest says and finds."""

from dataclasses import replace

import pytest

from ddpsim import Code, simulate
from ddpsim.scenarios.files.value_scenarios import scenario_of_program
from ddpsim.scenarios.ranks.interpreter import run_placed_steps, run_rank_steps, source_of_call
from ddpsim.scenarios.records.failing_test import source_of_test as text_of_test
from ddpsim.simulator.programs.program import Group, Issue
from ddpsim.simulator.records.as_program import make_program
from tests.kit.rows import rows
from tests.records.dumps import call
from tests.records.test_as_program import DONE, FAULTS, HUNG, every_operation, found, in_pairs


def run(program):
    """What comes of a scenario of a program, with the finding that leads."""
    result = simulate(scenario_of_program(program, name="hang").program, program.world_size, args=(program,))
    return result, result.findings[0] if result.findings else None


@rows("name", FAULTS)
def test_a_run_tells_the_lines_of_the_job_and_none_of_ours(name):
    diagnosis = found(*FAULTS[name][0](8))
    result, finding = run(make_program(diagnosis))
    assert (finding.code, finding.ranks) == (FAULTS[name][1], (6,))
    (recorded,) = diagnosis.findings
    assert {(site.path, site.line, site.function) for site in finding.sites} == {
        (site.path, site.line, site.function) for site in recorded.sites
    }
    assert "train.py:" in str(result)
    assert "interpreter" not in str(result)
    assert {event.call.site.file for event in result.trace if event.call} == {"train.py"}


def test_of_groups_that_are_made_no_line_of_ours_is_told_either():
    result, _ = run(make_program(found(*in_pairs(4))))
    made = [event.call.site.file for event in result.trace if event.call and event.call.operation == "new_group"]
    assert set(made) == {"train.py"}
    assert "interpreter" not in str(result)


def test_a_record_without_lines_has_none_to_tell():
    without = {"frames": []}
    program = make_program(found([[call(**without), call(state="started", **without)], [call(**without)]]))
    assert {step.at for steps in program.ranks for step in steps if isinstance(step, Issue)} == {""}
    assert scenario_of_program(program, name="hang").program is run_rank_steps
    _, finding = run(program)
    assert (finding.code, finding.ranks) == (Code.DEADLOCK_MISSING_RANK, (1,))


def test_what_tells_the_lines_is_found_by_its_name_in_another_process():
    assert getattr(__import__(run_placed_steps.__module__, fromlist=["_"]), run_placed_steps.__qualname__) is (
        run_placed_steps
    )


def written_and_run(program):
    """The text of the test that is written, and the finding that leads when it runs."""
    text, names = text_of_test(program, function="test_it", summary="a 'cause'", command="ddpsim diagnose dumps"), {}
    exec(compile(text, "test_it.py", "exec"), names)
    result = simulate(names["test_it"], program.world_size)
    return text, result.findings[0] if result.findings else None


@rows("name", FAULTS)
def test_the_test_for_pytest_fails_alike(name):
    text, finding = written_and_run(make_program(found(*FAULTS[name][0](8))))
    assert (finding.code, finding.ranks) == (FAULTS[name][1], (6,))
    assert "@pytest.mark.ranks(8)\n" in text
    assert "  # /job/train.py:20 in train\n" in text


def test_the_test_of_calls_that_meet_passes():
    assert written_and_run(make_program(found([[DONE] * 3] * 2)))[1] is None


@pytest.mark.filterwarnings("ignore:.*will be deprecated")
def test_every_operation_of_a_recorder_can_be_written():
    text, finding = written_and_run(make_program(found(every_operation())))
    assert (finding.code, finding.ranks) == (Code.DEADLOCK_MISSING_RANK, (0,))
    assert text.count("works.append(") == 11 + 1


def test_messages_are_written_with_their_peers():
    sent, received = call("send", to=1), call("recv", to=0, state="started")
    text, finding = written_and_run(make_program(found([[DONE], [DONE, received]])))
    assert finding.code is Code.DEADLOCK_MISSING_RANK
    assert "    if rank == 1:\n        works.append(dist.irecv(torch.zeros(11), 0))  #" in text
    open_send = call("send", to=1, state="started")
    text, _ = written_and_run(make_program(found([[DONE, sent, open_send], [DONE, call("recv", to=0)]])))
    assert "works.append(dist.isend(torch.ones(11), 1))  #" in text


def test_what_ranks_do_alike_stands_once_and_what_repeats_is_a_loop():
    common = [DONE, call("broadcast", (4,), line=30)] * 3
    text, _ = written_and_run(make_program(found([[*common, HUNG], common, [*common, HUNG]])))
    body = [line.partition("  #")[0] for line in text.partition("def test_it(rank):\n")[2].splitlines()]
    assert body == [
        "    works = []",
        "    for _ in range(3):",
        "        works.append(dist.all_reduce(torch.ones(11), async_op=True))",
        "        works.append(dist.broadcast(torch.ones(4), src=0, async_op=True))",
        "    if rank != 1:",
        "        works.append(dist.all_reduce(torch.ones(11), async_op=True))",
        "    for work in works:",
        "        work.wait()",
    ]


def test_what_repeats_is_a_loop_whatever_follows_and_any_ranks_are_named():
    common = [DONE, DONE, *(call("broadcast", (size,), line=30) for size in range(4, 8))]
    text, _ = written_and_run(make_program(found([[*common, HUNG], common] * 2)))
    assert "    for _ in range(2):\n        works.append(dist.all_reduce(" in text
    assert "    if rank in (0, 2):\n        works.append(dist.all_reduce(" in text


def test_tensors_of_other_shapes_are_written_one_by_one():
    issue = Issue("sum", "all_reduce_coalesced", shapes=((2,), (3,)), dtype="float32", reduction="SUM")
    assert "[torch.ones(2), torch.ones(3)]" in source_of_call(issue, 2)


@pytest.mark.parametrize("evil", ['x"""\nraise SystemExit\n#', "x'''\\\nraise SystemExit", "']\nraise SystemExit\n["])
def test_what_stands_in_a_record_is_no_code_in_the_test(evil):
    frames = [{"name": evil, "filename": f"/job/{evil}.py", "line": 5}]
    own = [call(frames=frames), call(state="started", frames=frames)]
    program = make_program(found([own, own[:1]]))
    text, finding = written_and_run(replace(program, groups=(Group(evil, (0, 1)),)))
    assert finding.code is Code.DEADLOCK_MISSING_RANK
    assert not [line for line in text.splitlines() if line.strip().startswith("raise")]
