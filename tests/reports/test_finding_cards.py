"""What the page opens with: the line of code first, who is to blame told from who waits, nothing twice."""

import re
import time
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from markupsafe import escape
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial

from ddpsim.reports.document import Document, Site
from ddpsim.reports.forms.first_difference import first_difference_of
from ddpsim.reports.forms.html import finding_cards_of, to_html
from ddpsim.reports.forms.page_data import colours_of, source_excerpt
from ddpsim.reports.layout.folding import Fold, folds_of
from ddpsim.reports.layout.lanes import lanes_of
from ddpsim.reports.layout.mismatches import near_misses
from ddpsim.simulator.events import EventKind
from tests.reports.examples import MISSING, document, run_of
from tests.reports.made import Story, call, exploration, missing_rank, parted


def present(run, finding=0):
    """Who is at each line, as (the text of the line, [(role, who, what)])."""
    card = finding_cards_of(run)[finding]
    return [
        (marked(source_excerpt(run.sites[line.site])), [tuple(each) for each in line.present])
        for line in card.code_lines
    ]


def marked(source):
    """The line itself; what stands around it is not marked."""
    (line,) = (line.text for line in source if line.is_marked)
    return line.strip()


def returns_early(rank):
    for _ in range(1 if rank == 1 else 2):
        dist.all_reduce(torch.ones(2))  # the only line


def test_the_culprits_line_and_that_of_those_who_wait_come_first():
    assert present(run_of(returns_early, 3)) == [
        (
            "dist.all_reduce(torch.ones(2))  # the only line",
            [
                ("culprit", "rank 1", "last call all_reduce #0, then returned"),
                ("waits", "ranks 0, 2", "waiting in all_reduce #1"),
            ],
        )
    ]


def half_against_half(rank):
    if rank < 2:
        dist.all_reduce(torch.ones(2))
    else:
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX)


def test_in_a_tie_the_two_sides_are_told_apart_and_no_rank_is_to_blame():
    run = run_of(half_against_half, 4)
    assert present(run) == [
        ("dist.all_reduce(torch.ones(2))", [("side0", "ranks 0, 1", "all_reduce #0: SUM float32[2]")]),
        (
            "dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX)",
            [("side1", "ranks 2, 3", "all_reduce #0: MAX float32[2]")],
        ),
    ]
    assert run.findings[0].ranks == (0, 1, 2, 3)  # the finding names all of them, the picture accuses none
    assert [lane.is_culprit for lane in lanes_of(run).lanes] == [False] * 4
    assert "sides that differ: any may be wrong" in to_html(Document("tie", (run,))).decode()


def one_row_logs(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    loss = DTensor.from_local(torch.ones(()), mesh["tp"], [Partial()])
    if rank == 2:
        loss.full_tensor()
    dist.barrier(group=mesh.get_group("tp"))


def test_who_is_at_a_line_is_told_with_its_place_in_the_mesh_and_what_its_call_is_for():
    run = run_of(one_row_logs, 4)
    assert present(run) == [
        (
            "loss.full_tensor()",
            [
                (
                    "side0",
                    "rank 2 (dp 1, tp 0)",
                    'all_reduce #1, group "tp (dp 1)": DTensor Partial(sum) -> Replicate, on "tp", for full_tensor',
                )
            ],
        ),
        (
            'dist.barrier(group=mesh.get_group("tp"))',
            [("side1", "rank 3 (dp 1, tp 1)", 'barrier #1, group "tp (dp 1)"')],
        ),
    ]


def one_row_is_slow(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    if rank == 0:
        time.sleep(60)
    dist.all_reduce(torch.ones(max(rank, 1)), group=mesh.get_group("tp"))


def test_who_has_only_not_come_yet_where_others_disagree_is_not_marked_as_the_cause():
    run = run_of(one_row_is_slow, 4)
    assert [(finding.code, finding.ranks) for finding in run.findings] == [("mismatch.shape", (2, 3))]
    assert [run.slots[index].missing for index in colours_of(run)] == [(0,)]
    assert set(colours_of(run).values()) == {1}
    page = to_html(Document("rows", (run,))).decode()
    assert "not matched yet, still missing" in page
    assert "never matched, missing" not in page
    assert "never matched, missing" in to_html(Document("missing", (run_of(returns_early, 3),))).decode()


def stage_stops(rank):
    stage = PipelineStage(torch.nn.Linear(2, 2), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=1)
    for _ in range(2 - rank):
        schedule.step(*[torch.ones(1, 2)] * (rank == 0))


def test_a_message_of_a_pipeline_is_told_with_its_stages_where_a_rank_waits_in_it():
    (_, present_), *_ = present(run_of(stage_stops, 2))
    ((culprit, *_), (waits, _, told)) = present_
    assert (culprit, waits) == ("culprit", "waits")
    assert told.endswith("to rank 1: pipeline activations of micro-batch 0, stage 0 to stage 1")


def sent_with_tag_7(rank, *, received_from):
    number = torch.ones(1)
    if rank == 0:
        dist.send(number, 1, tag=7)
    if rank == 1:
        dist.recv(number, received_from, tag=8)


def test_a_message_and_a_receive_with_another_tag_are_told_with_what_keeps_them_apart():
    run = run_of(partial(sent_with_tag_7, received_from=0), 2)
    assert [what for _, who in present(run) for _, _, what in who] == [
        "waiting in send #0 to rank 1, tag 7",
        "waiting in recv #0 from rank 0, tag 8",
    ]
    (near,) = near_misses(run)
    assert near.text == "tag 7 \N{NOT EQUAL TO} tag 8"
    assert [run.issued_call(issue).operation for issue in (near.send, near.receive)] == ["send", "recv"]
    assert near_misses(run_of(partial(sent_with_tag_7, received_from=2), 3)) == ()


def raises(rank):
    if rank == 1:
        raise ValueError("broken sample")
    dist.barrier()


def test_an_error_opens_with_the_line_that_raised_and_what_follows_repeats_no_line():
    run = run_of(raises, 3)
    assert present(run) == [
        ('raise ValueError("broken sample")', [("culprit", "rank 1", "raised ValueError: broken sample")]),
        ("dist.barrier()", [("waits", "ranks 0, 2", "waiting in barrier #0")]),
    ]
    assert [str(each.finding.code) for each in finding_cards_of(run)] == ["rank_error", "deadlock.dead_rank"]
    assert present(run, 1) == []


def test_a_file_that_is_not_there_is_no_error():
    run = replace(missing_rank(), sites=(Site("gone.py", 7, "train"),))
    page = to_html(Document("story", (run,))).decode()
    assert '<p class="at"><bdi>gone.py:7</bdi> in <bdi>train</bdi></p>' in page
    assert 'class="excerpt"' not in page


def test_no_sentence_of_a_finding_stands_twice_but_in_the_text_that_is_folded():
    shown = document(MISSING)
    page, _, _ = to_html(shown).decode().partition('<details class="whole">')
    finding = shown.runs[0].findings[0]
    for sentence in (finding.summary, *(line.text for line in finding.lines)):
        assert len(re.findall(re.escape(escape(sentence)), page)) == 1, sentence


def test_of_replicas_that_differ_the_values_stand_in_the_opening_view():
    (card, *_) = finding_cards_of(document("loss-scale-differs").runs[0])
    assert len(card.values) == 4
    assert card.values[1].startswith("rank 1  weight[0, 0] = ")


def test_where_two_runs_part_each_side_has_its_line_and_what_follows():
    shown = exploration()
    difference = first_difference_of(shown)
    assert difference.shared == shown.exploration.difference.failing
    assert difference.before == "rank 3 continues after all_reduce #1" or difference.before.startswith("rank ")
    assert [side.line.label for side in difference.sides] == ["failing", "passing"]
    assert [len(side.following) for side in difference.sides] == [3, 3]
    # The call of made.py has no source of its own in the run that passed: a name and a line are enough.
    assert [side.site and side.site.short for side in difference.sides] == [None, "train.py:2"]
    assert first_difference_of(document(MISSING)) is None


def test_the_choices_before_the_one_that_differs_are_folded_away_and_it_opens_each_side():
    page = to_html(parted()).decode()
    assert page.count('<details class="choices"><summary>the 16 choices before it, equal in both runs</summary>') == 1
    assert "A passing run is identical until choice 17, after " in page
    for label, chosen, event in [
        ("failing", "rank 1 goes on", "rank 1 returns"),
        ("passing", "rank 0 runs", "rank 0 issues all_reduce"),
    ]:
        lines = [
            f'<p class="line-of"><span>{word}</span> <bdi>{text}</bdi></p>'
            for word, text in ((label, chosen), ("then", event))
        ]
        assert re.search(r"\s*".join(map(re.escape, lines)), page), label
    assert '"mark":"runs diverge here, choice 17"' in page
    plain = to_html(exploration()).decode()
    assert 'class="choices"' not in plain
    assert "The first difference between a failing and a passing run comes after" in plain
    assert '"mark":"runs diverge here"' in plain


def long_run(steps):
    """Two ranks meet so often, finish a step each time, and then rank 1 does not come."""
    story = Story(2)
    for step in range(steps):
        story.meet(call(step), (0, 1))
        for rank in (0, 1):
            story.happen("step", rank, text=str(step + 1))
    story.hang(call(steps), [0], [1])
    return story.run()


def test_columns_that_tell_nothing_are_folded_far_from_what_does():
    run = long_run(60)
    # A step ends behind its column, counted from 1. Of 61 columns, the last of which has the call that is missing,
    # 4 stay at the beginning and 10 before it.
    assert folds_of(run, lanes_of(run)) == (Fold(4, 49, "steps 5 to 50", "the same on all ranks"),)
    assert folds_of(long_run(39), lanes_of(long_run(39))) == ()  # so many are shown


def test_calls_that_make_groups_and_wrap_the_model_are_folded_where_all_ranks_make_them():
    story = Story(2)
    story.meet(call(0, operation="new_group", group="a"), (0, 1))
    for number, phase in enumerate(["parameter check", "state broadcast"]):
        story.meet(call(number, phase=phase, origin="DDP"), (0, 1))
    story.meet(call(2), (0, 1))
    run = story.run()
    assert folds_of(run, lanes_of(run)) == (Fold(0, 2, "setup: 3 calls", "the same on all ranks"),)
    issues = [index for index, event in enumerate(run.events) if event.kind is EventKind.ISSUE]
    assert folds_of(run, lanes_of(run), marked=issues[2]) == ()  # a picture that points at one of them shows it
    story = Story(3)
    for number in range(3):
        story.meet(call(number, phase="state broadcast", origin="DDP"), (0, 1))
    run = story.run()
    assert folds_of(run, lanes_of(run)) == ()  # rank 2 makes none


def test_folded_columns_in_which_not_all_ranks_meet_are_not_called_alike():
    story = Story(4)
    for step in range(60):
        story.meet(call(step, group="a"), (0, 1))
        story.meet(call(step, group="b"), (2, 3))
    run = story.run()
    assert [fold.why for fold in folds_of(run, lanes_of(run))] == ["all calls matched"]


def test_around_what_an_exploration_points_at_nothing_is_folded():
    run = long_run(100)
    issues = [index for index, event in enumerate(run.events) if event.kind is EventKind.ISSUE]
    marked = issues[2 * 50]  # column 50
    assert [(fold.first, fold.last) for fold in folds_of(run, lanes_of(run), marked)] == [(4, 39), (55, 89)]
