"""Where the paths of ranks part, found by a repetition of the failed run with a tracer: both kinds of ranks."""

import contextlib
import functools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddpsim import Code, Verdict, simulate
from ddpsim.simulator.api import name_parting
from ddpsim.simulator.calls import Site
from ddpsim.simulator.diagnosis.partings import END, PathStep, find_parting
from ddpsim.simulator.wording import LabelledLine
from tests.kit.rows import rows


def reduce_one(group=None):
    dist.all_reduce(torch.ones(1), group=group)


def caught(rank, shares=False):
    for step in range(3):
        is_bad = rank == 1 and step == 1
        if shares:
            bad = torch.tensor(float(is_bad))
            dist.all_reduce(bad)
            is_bad = bool(bad)
        try:
            if is_bad:
                raise torch.OutOfMemoryError("out of memory")
            reduce_one()
        except torch.OutOfMemoryError:
            continue
        reduce_one()


def suppressed(rank, shares=False):
    for step in range(4):
        with contextlib.suppress(TypeError):
            sample = {"x": 1} if rank == 1 and step == 1 and not shares else 1.0
            torch.ones(1) * sample  # type: ignore[operator]
            reduce_one()


def began_elsewhere(rank, shares=False):
    start = 2 if rank == 0 and not shares else 0
    for epoch in range(start, 4):
        reduce_one()
        assert epoch < 4


def lost_in_pool(rank, shares=False):
    group = dist.new_group()

    def report(index):
        values = {"loss": 1.0} if rank == 0 or index == 0 or shares else {}
        values["loss"]
        reduce_one(group)

    with ThreadPoolExecutor(1) as pool:
        for index in range(2):
            pool.submit(report, index)
    dist.barrier()


def decided_by_reduce(rank, shares=False):
    best = 2.6
    for epoch in range(3):
        loss = torch.tensor([3.0 - epoch + 0.5 * rank])
        if shares:
            dist.all_reduce(loss)
        else:
            dist.reduce(loss, dst=0)
        mean = loss.item() / 3
        if mean < best:
            dist.all_gather_object([None] * 3, epoch)
        dist.barrier()


def left_by_break(rank, shares=False):
    patience = 0
    for _ in range(6):
        if rank == 2 or shares:
            patience += 1
        else:
            patience = 0
        if patience >= 2:
            break
        reduce_one()
    dist.barrier()


def branch_in_a_callback(rank, shares=False):
    def callback():
        if rank == 0 or shares:
            dist.barrier()

    reduction = functools.partial(dist.all_reduce, torch.ones(1))
    calls = [reduction, functools.partial(callback), reduction]
    list(map(functools.partial.__call__, calls))  # between the two calls it runs no line


def caught_on_all(rank):
    for _ in range(4 - (rank == 1)):
        with contextlib.suppress(KeyError):
            {}["x"]
        reduce_one()


def accumulated(rank, shares=False, what=""):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    count = 0
    for step in range(6):
        is_odd = rank == 1 and step == 3 and not shares
        if what == "misses" and is_odd:
            continue
        count += 1
        is_last = count % 2 == 0 and not (what == "flags" and is_odd)
        model.require_backward_grad_sync = is_last
        model(torch.ones(1, 2)).sum().backward()
        if what == "saves" and rank == 1 and step == 2 and not shares:
            dist.barrier()
    dist.barrier()


def skips_a_backward(rank, shares=False):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    for step in range(4):
        loss = model(torch.ones(1, 2)).sum()
        if rank == 1 and step > 1 and not shares:
            continue
        loss.backward()


def raises_on_much(batch):
    if len(batch) > 2:
        raise MemoryError(f"no room for {len(batch)}")
    return batch


def skips_a_batch(rank, shares=False, where="loss"):
    """The exception comes from a loss or from the forward before it, or it is another one, and not the reason."""
    inner = torch.nn.Linear(2, 1)
    model = DistributedDataParallel(inner)
    if where == "forward":
        inner.register_forward_pre_hook(lambda module, inputs: (raises_on_much(*inputs),))
    for step in range(5):
        is_much = (rank, step) == (1, 2) and not shares
        try:
            with contextlib.suppress(KeyError):
                assert rank == 0 or {}["cached"]
            outputs = model(torch.ones(3 if is_much else 2, 2))
            if where == "branch" and is_much:
                continue
            loss = raises_on_much(outputs).sum()
            loss.backward()
        except MemoryError:
            continue
        inner.zero_grad()


def tries_again(rank, shares=False):
    size = 2
    for step in range(3):
        while True:
            try:
                if rank == 1 and step == 1 and size == 2 and not shares:
                    raise torch.OutOfMemoryError("out of memory")
                for _ in range(0, 2, size):
                    reduce_one()
                break
            except torch.OutOfMemoryError:
                size = 1


def skips_where_not_finite(rank, shares=False):
    for step in range(3):
        gradients = [torch.ones(2), torch.full((2,), float("inf") if (rank, step) == (1, 1) else 1.0)]
        finite = torch.tensor(float(all(each.isfinite().all() for each in gradients)))
        if shares:
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        if finite:
            for each in gradients:
                dist.all_reduce(each)
    dist.barrier()


def is_over(step):
    return step > 1


def caught_before_the_first_of_two_alike(rank, shares=False):
    for size in (1, 2, 3):
        try:
            if size > 2 or (size == 2 and rank == 1 and not shares):
                raise MemoryError(f"no room for {size}")
            reduce_one()
        except MemoryError:
            size = 0
        reduce_one()
    dist.barrier()


def left_by_a_call(rank, shares=False):
    for step in range(4):
        if is_over(step + (rank == 1 and not shares)):
            break
        reduce_one()
    dist.barrier()


def reduce_each(count):
    for _ in range(count):
        reduce_one()


def read_in_loop_and_after(rank, read):
    for _ in range(2 + (rank == 0)):
        read()
    read()
    dist.barrier()


def prepared_by_rank_0(rank, shares=False):
    if rank == 0:
        prepared = [1]
        if shares:
            dist.barrier()
    else:
        dist.barrier()
        prepared = []
    DistributedDataParallel(torch.nn.Linear(2, len(prepared or [1])))


def gathers_after_validation(rank, shares=False):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    for _epoch in range(2):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
        end_epoch(shares)


def end_epoch(shares):
    outputs = [torch.ones(2)]
    if dist.get_rank() == 0 or shares:
        dist.all_gather([torch.empty(2) for _ in range(dist.get_world_size())], outputs[0])
    outputs.clear()


def saved_by_a_thread(rank, shares=False):
    group = dist.new_group() if shares else None
    threading.Thread(target=reduce_one, args=(group,), name="saver").start()
    dist.barrier()
    dist.barrier()


def reduces_gradients_that_are_there(rank, shares=False):
    for iteration in range(3):
        for name in ("p0", "p1"):
            grad = None if rank == 1 and iteration == 1 and name == "p1" and not shares else torch.ones(2)
            if grad is None:
                continue
            dist.all_reduce(grad)
    dist.destroy_process_group()


class Counter:
    def __init__(self):
        self.count = 0

    def reduce_if_due(self):
        if self.count % 3 == 0:
            reduce_one()


def counts_its_own_steps(rank, shares=False):
    counter = Counter()
    for step in range(9):
        counter.count += shares or (rank, step) != (2, 4)
        counter.reduce_if_due()
        if rank == 0:
            assert step < 9
    dist.barrier()


def log(value):
    dist.all_reduce(value)


def logs_where_there_are_boxes(rank, shares=False):
    for step in range(3):
        boxes = torch.ones(0 if (rank, step) == (2, 1) and not shares else 2, 4)
        if len(boxes):
            log(torch.tensor(1.0))
        log(torch.tensor(2.0))
        dist.broadcast(boxes.new_ones(1), 0)


def fills_its_batch(rank, shares=False):
    batch: list[int] = []
    slots = 2 if rank == 2 and not shares else 3
    for request in range(4):
        if len(batch) >= slots:
            break
        log(torch.tensor(request))
        batch.append(request)
    reduce_one()


def prepares_in_a_comprehension(rank, shares=False):
    answers = [each * each for each in range(5 - (rank > 0))]
    if rank == 0 or shares:
        dist.all_gather_object([None] * 3, answers)
    dist.barrier()


def predict(batch):
    dist.all_gather([torch.empty(1) for _ in range(3)], torch.ones(1))
    return batch


def predicts_in_a_comprehension(rank, shares=False):
    batches = range(2 + (rank == 1 and not shares))
    predictions = [predict(batch) for batch in batches]
    assert predictions
    reduce_one()


def reads_each_third(rank, shares=False):
    for number in range(rank, 9 if shares or rank < 2 else 6, 3):
        dist.all_reduce(torch.tensor(float(number)))
    dist.barrier()


def reduces_what_has_a_gradient(rank, shares=False):
    adapter, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    hidden = torch.ones(2, 4) if rank == 2 and not shares else adapter(torch.ones(2, 3))
    head(hidden).sum().backward()
    for parameter in (*adapter.parameters(), *head.parameters()):
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def keeps_one_entry_more(rank, shares=False):
    for entry in range(2 + (rank == 1 and not shares)):
        dist.broadcast(torch.tensor(entry), 0)
    reduce_one()


def found_by(program, isolation="thread", world_size=3):
    result = simulate(program, world_size, isolation=isolation)
    finding, *_ = name_parting(result, program, world_size, isolation=isolation).findings
    return finding


def cause_of(finding):
    return "\n".join(line.text for line in finding.lines if isinstance(line, LabelledLine) and line.label == "cause")


PROGRAMS = {
    caught: ("rank 1 raised OutOfMemoryError: out of memory", "without the all_reduce #2 that the others made"),
    suppressed: ("rank 1 raised TypeError", "without the all_reduce #1 that the others made"),
    began_elsewhere: (
        "finished different rounds",
        "epoch was 3 on rank 0 against 1 on ranks 1, 2; start is 2 on rank 0",
    ),
    lost_in_pool: ("raised KeyError: 'loss'", 'thread "ThreadPoolExecutor-0_0", which ended the thread\'s function'),
    decided_by_reduce: ("the paths of the ranks part", "mean is"),
    partial(accumulated, what="flags"): ("in the same backward ranks 0, 2 made the all_reduce", "others did not"),
    partial(accumulated, what="misses"): (
        "the paths of the ranks part",
        "is_odd is False on ranks 0, 2 against True on",
    ),
    partial(accumulated, what="saves"): ("rank 1 took a branch that no other rank took", "rank 1 went on at"),
    skips_a_batch: (
        "rank 1 raised MemoryError: no room for 3 at test_partings.py:",
        "without the backward of step 3: gradients of different steps are averaged from then on, unless",
    ),
    partial(skips_a_batch, where="forward"): ("rank 1 raised MemoryError: no room for 3", "without the all_reduce #7"),
    partial(skips_a_batch, where="branch"): ("rank 1 ran more synchronising forwards than the others",),
    skips_a_backward: ("rank 1 took a branch that no other rank took", "rank 1 went on at"),
    skips_where_not_finite: ("the paths of the ranks part", "finite is 1.0 on ranks 0, 2 against 0.0 on rank 1"),
    branch_in_a_callback: ("rank 0 took a branch that no other rank took", "ranks 1, 2 went on to all_reduce #1"),
    tries_again: ("rank 1 raised OutOfMemoryError: out of memory", "with other calls than those that the others made"),
    caught_before_the_first_of_two_alike: ("rank 1 raised MemoryError: no room for 2", "without the all_reduce #2"),
    left_by_a_call: ("rank 1 took a branch that no other rank took", "rank 1 went on at"),
    prepared_by_rank_0: ("rank 0 took a branch that no other rank took", "rank 0 went on at"),
    gathers_after_validation: ("rank 0 took a branch that no other rank took", "ranks 1, 2 went on at"),
    saved_by_a_thread: (
        'and thread "saver" (test_partings.py:25) were in collectives of group "default" at the same time',
    ),
    reduces_gradients_that_are_there: ("rank 1 took a branch that no other rank took", "rank 1 went on at"),
    counts_its_own_steps: ("the paths of the ranks part", "self.count is 6 on ranks 0, 1 against 5 on rank 2"),
    logs_where_there_are_boxes: ("a tensor of shape [2, 4] on ranks 0, 1 against a tensor of shape [0, 4] on rank 2",),
    fills_its_batch: ("the paths of the ranks part", "slots is 3 on ranks 0, 1 against 2 on rank 2"),
    prepares_in_a_comprehension: ("rank 0 took a branch that no other rank took", "ranks 1, 2 went on at"),
    predicts_in_a_comprehension: ("ranks 0, 2 left the loop at test_partings.py:", "and rank 1 went on in it"),
    reads_each_third: ("rank 2 left the loop at test_partings.py:", "and ranks 0, 1 went on in it"),
    reduces_what_has_a_gradient: ("the paths of the ranks part: from test_partings.py:", "rank 2 went on at"),
    keeps_one_entry_more: ("ranks 0, 2 left the loop at test_partings.py:", "and rank 1 went on in it"),
    left_by_break: ("the paths of the ranks part", "patience is 0 on ranks 0, 1 against 2 on rank 2"),
}


@pytest.mark.parametrize(("program", "words"), PROGRAMS.items(), ids=map(str, range(len(PROGRAMS))))
def test_the_cause_is_where_the_paths_part(program, words):
    finding = found_by(program)
    for each in words:
        assert each in cause_of(finding)
    assert simulate(program, 3, args=(True,)).verdict is Verdict.PASS


def test_of_two_ranks_the_one_in_the_branch_is_named():
    result = simulate(gathers_after_validation, 2)
    (finding,) = name_parting(result, gathers_after_validation, 2).findings
    assert cause_of(finding).startswith("rank 0 took a branch that no other rank took: from test_partings.py:")


def test_a_repetition_that_took_another_way_says_that_alone(tmp_path):
    """The summaries of both are equal, and the second makes fewer calls: it has found what the first has saved."""
    mark = tmp_path / "epoch"

    def resumes(rank):
        for _ in range(1 if mark.exists() else 2):
            dist.barrier()
        if rank == 0:
            mark.touch()
            return
        dist.barrier()

    result = simulate(resumes, 2)
    (finding,) = name_parting(result, resumes, 2).findings
    *lines, note = finding.lines
    assert (tuple(lines), finding.summary) == (result.findings[0].lines, simulate(resumes, 2).findings[0].summary)
    assert str(note).strip() == (
        "note    a second run, with a tracer, went another way, so it shows no cause: something else than the schedule "
        "decides, such as a file that the first run left, or a clock"
    )


def draws_whether_to_train_both(rank, shares=False):
    generator, discriminator = (DistributedDataParallel(torch.nn.Linear(2, 2)) for _ in range(2))
    for step in range(3):
        if step > 0 and (shares or step % 2 == rank % 2):
            fake = generator(torch.ones(1, 2)).detach()
            (discriminator(torch.ones(1, 2)) + discriminator(fake)).sum().backward()
        discriminator(generator(torch.ones(1, 2))).sum().backward()


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_ddp_misses_comes_with_the_line_where_the_paths_part(world_size):
    """The cause says what the wrappers did; the ranks wait or are matched in later calls than that of the line."""
    text = found_by(draws_whether_to_train_both, world_size=world_size).text
    first, rest = draws_whether_to_train_both.__code__.co_firstlineno, "rank 0" if world_size == 2 else "ranks 0, 2"
    assert "rank 1 ran more synchronising forwards than the others before this reduction" in text
    assert (
        f"note    a second run, with a tracer, shows: from test_partings.py:{first + 3} rank 1 went on at "
        f"test_partings.py:{first + 4}, {rest} went on at test_partings.py:{first + 6}"
    ) in text
    assert not simulate(partial(draws_whether_to_train_both, shares=True), world_size).findings


class Interrupted:
    def __init__(self, at):
        self.at = at

    def is_over(self, step):
        return self.at == step


def stops_where_it_is_told(rank, shares=False):
    model, told = DistributedDataParallel(torch.nn.Linear(2, 1)), Interrupted(1 if rank == 1 and not shares else 3)
    for step in range(4):
        model(torch.ones(1, 2)).sum().backward()
        if told.is_over(step):
            break


def has_fewer_batches(rank):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    for batch in torch.ones(2 if rank == 1 else 3, 1, 2):
        model(batch).sum().backward()


def test_a_rank_that_stopped_by_a_branch_comes_with_its_line():
    finding, first = found_by(stops_where_it_is_told), stops_where_it_is_told.__code__.co_firstlineno
    assert "rank 1 ran out of input, or stopped, before the others" in cause_of(finding)
    assert finding.text.rstrip().endswith(
        f"note    a second run, with a tracer, shows: from test_partings.py:{first + 4} rank 1 went on at "
        f"test_partings.py:{first + 5}, ranks 0, 2 went on at test_partings.py:{first + 2}"
    )
    assert simulate(stops_where_it_is_told, 3, args=(True,)).verdict is Verdict.PASS


def test_a_rank_that_ran_out_of_input_has_no_such_line():
    finding = found_by(has_fewer_batches)
    assert "rank 1 ran out of input, or stopped, before the others" in cause_of(finding)
    assert "second run" not in finding.text


def calls_back_as_often_as_it_needs(rank, shares=False):
    def reduce_another(number):
        dist.all_reduce(torch.ones(1))

    list(map(reduce_another, range(2 + (rank == 1 and not shares))))
    dist.barrier()


def test_paths_that_part_within_a_library_come_with_the_last_line_before():
    """What decided there, such as how often an optimizer calls its closure, no line of the program shows."""
    text, first = (
        found_by(calls_back_as_often_as_it_needs).text,
        calls_back_as_often_as_it_needs.__code__.co_firstlineno,
    )
    assert "rank 1 took another branch, left a loop earlier or later, or made one call more or fewer" in text
    assert text.rstrip().endswith(
        f"note    a second run, with a tracer, shows: after test_partings.py:{first + 2} rank 1 went on at "
        f"test_partings.py:{first + 2}, ranks 0, 2 went on at test_partings.py:{first + 5}"
    )
    assert simulate(calls_back_as_often_as_it_needs, 3, args=(True,)).verdict is Verdict.PASS


def stacks_what_it_has(rank, shares=False):
    for step in range(2):
        losses = [torch.ones(())]
        if step == 0 or rank != 1 or shares:
            losses.append(torch.ones(()))
        dist.all_reduce(torch.stack(losses))


def test_unequal_tensors_come_with_the_lines_where_the_paths_part_and_meet_again():
    """A line before the calls may have decided, and what it decided on is not known: so it is no cause, but a note."""
    text, first = found_by(stacks_what_it_has).text, stacks_what_it_has.__code__.co_firstlineno
    assert (
        "rank 1 passed a different shape to the same call, as where entries of a stack or a batch are missing" in text
    )
    assert text.rstrip().endswith(
        "note    a second run, with a tracer, shows: since the calls before, the paths of the ranks part at "
        f"test_partings.py:{first + 3} and meet again"
    )
    assert simulate(stacks_what_it_has, 3, args=(True,)).verdict is Verdict.PASS


def updates_by_its_own_loss(rank, shares=False):
    """Each round trains one wrapper, and another where the rank's loss is low: a step too few is no other order."""
    generator, discriminator = (DistributedDataParallel(torch.nn.Linear(2, size)) for size in (2, 1))
    for step in range(3):
        generator(torch.ones(1, 2)).sum().backward()
        loss = 0.9 if rank == 0 and step == 1 and not shares else 0.5
        if loss < 0.7:
            discriminator(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_wrapper_that_a_rank_left_out_comes_with_the_line_where_the_paths_part(world_size):
    """Of one rank the wrapper rebuilds its buckets, in the second forward: that call is where the paths part."""
    text = found_by(updates_by_its_own_loss, world_size=world_size).text
    first, who = updates_by_its_own_loss.__code__.co_firstlineno, "some ranks" if world_size == 2 else "rank 0"
    rest = "rank 1" if world_size == 2 else "ranks 1, 2"
    assert (
        f"cause   {who} used the wrappers in another order than the others, or left out a forward or backward of one "
        "of them, or made one more: calls of two models are matched, or wait for each other"
    ) in text
    (note,) = (line for line in text.splitlines() if f"shows: from test_partings.py:{first + 6} " in line)
    assert f"{rest} went on at test_partings.py:{first + 7}" in note
    assert note.endswith("there loss is 0.9 on rank 0 against 0.5 on " + rest)
    assert not simulate(partial(updates_by_its_own_loss, shares=True), world_size).findings


def test_a_result_of_reduce_is_on_its_root_only():
    assert "reduce #0" in found_by(decided_by_reduce).text
    assert "has its result on rank 0 only" in found_by(decided_by_reduce).text


def test_a_branch_is_at_the_line_that_asked_not_at_the_return_of_the_answer():
    assert found_by(left_by_a_call).sites[1].line == left_by_a_call.__code__.co_firstlineno + 2


@pytest.mark.parametrize("read", [reduce_one, partial(reduce_each, 1)], ids=["return", "loop"])
def test_the_end_of_a_function_that_two_lines_call_is_no_branch(read):
    finding = found_by(partial(read_in_loop_and_after, read=read))
    assert finding.ranks == (0,)
    assert "took a branch that no other" not in finding.text


def reduce_four(size):
    for _ in range(4):
        dist.all_reduce(torch.ones(size))


def two_threads(rank):
    sizes = {"metrics": 1, "gradients": 8}
    threads = [threading.Thread(target=reduce_four, args=(size,), name=name) for name, size in sizes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_run_the_same_lines_share_a_group():
    findings = (simulate(two_threads, 3, policy="random", seed=seed).findings for seed in range(9))
    finding = next(found[0] for found in findings if found)
    assert finding.ranks == (0, 1, 2)
    assert 'were in collectives of group "default" at the same time' in cause_of(finding)


def reports_late(rank):
    thread = threading.Thread(target=reduce_one, name="reporter")
    if rank == 0:
        thread.start()
    time.sleep(1 + rank)
    dist.all_reduce(torch.zeros(1))
    if rank == 1:
        thread.start()
    thread.join()


def test_hazards_of_threads_that_share_a_group_have_that_cause():
    (finding,) = simulate(reports_late, 2).findings
    assert finding.code is Code.HAZARD_CALL_SITE
    assert "the program (test_partings.py:" in cause_of(finding)


def asserts_what_threads_mix(rank):
    reports_late(rank)
    assert rank == 0


def test_errors_of_ranks_whose_threads_share_a_group_have_a_note():
    finding = simulate(asserts_what_threads_mix, 2).findings[0]
    assert finding.code is Code.RANK_ERROR
    assert re.search(r'thread "reporter" \S+ and the program \S+ were in collectives of group "default"', finding.text)


def test_threads_that_wait_for_each_other_are_no_cause():
    def program(rank):
        for step in range(3):
            if rank != 1 or step == 0:
                saver = threading.Thread(target=reduce_one, name="saver")
                saver.start()
                saver.join()
            dist.barrier()

    assert 'thread "saver"' not in cause_of(found_by(program))


def test_the_line_that_left_the_loop_comes_after_that_of_the_unlike_call():
    call, left, *_ = found_by(left_by_break).sites
    assert {call.function, left.function} == {"left_by_break"}
    assert left.line == left_by_break.__code__.co_firstlineno + 7


@pytest.mark.tier("ci")
@pytest.mark.parametrize("program", [caught, lost_in_pool])
def test_in_processes_as_in_threads(program):
    assert cause_of(found_by(program, "process")) == cause_of(found_by(program))


def test_an_exception_that_all_ranks_catch_is_no_cause():
    finding = found_by(caught_on_all)
    assert "KeyError" not in finding.text
    assert cause_of(finding).endswith(", and ranks 0, 2 went on in it")


def path(text):
    """A path of lines; "!" is an exception, "$" the program's end."""
    return [
        END if each == "$" else PathStep("", Site("a.py", ord(each), "main"), "KeyError: 'a'" if each == "!" else "")
        for each in text
    ]


@rows(
    ("mine", "other"),
    [("abc$", "abc$"), ("abxc$", "abc$"), ("ab", "abcd"), ("a" * 9 + "b$", "a" * 2 + "b$"), ("a!xb$", "ab$")],
)
def test_paths_without_calls_do_not_part(mine, other):
    assert find_parting(path(mine), path(other)) is None
