"""Correct programs that are no repair of a wrong one: what a tool may take for a mistake."""

from benchmarks.scoreboard.draw import Draw
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.template import template, templates_of


@template(Kind.CORRECT)
def called_from_other_lines(draw: Draw) -> str:
    """The same call from two branches."""
    call = draw.collective("all_reduce", "barrier", "all_gather")
    return f"""
    value = {draw.value}
    if rank == {draw.odd}:
        value.mul_(2)
        {call}
    else:
        {call}
    """


@template(Kind.CORRECT)
def waited_for_in_another_order(draw: Draw) -> str:
    """Works of one order, waited for in another."""
    return f"""
    values = [torch.full(({draw.numel},), float(index)) for index in range(4)]
    works = [dist.all_reduce(value, async_op=True) for value in values]
    for work in works if rank != {draw.odd} else reversed(works):
        work.wait()
    assert [value[0].item() for value in values] == [0, size, 2 * size, 3 * size]
    """


@template(Kind.CORRECT, smallest=3)
def added_in_order_of_arrival(draw: Draw) -> str:
    """A sum of whole numbers is the same in any order."""
    return f"""
    value = torch.full(({draw.numel},), float(rank))
    if rank > 0:
        dist.send(value, dst=0)
    else:
        total = value.clone()
        for _ in range(1, size):
            dist.recv(value)
            total += value
        assert total[0] == size * (size - 1) / 2
    """


@template(Kind.CORRECT)
def even_ranks_send_first(draw: Draw) -> str:
    """An exchange of neighbours by calls that block."""
    return f"""
    mine, theirs = {draw.value}, {draw.value}
    peer = rank ^ 1
    if peer < size:
        if rank % 2 == 0:
            dist.send(mine, dst=peer)
            dist.recv(theirs, src=peer)
        else:
            dist.recv(theirs, src=peer)
            dist.send(mine, dst=peer)
        assert torch.equal(mine, theirs)
    """


@template(Kind.CORRECT, smallest=4)
def groups_of_their_own(draw: Draw) -> str:
    """Two groups that do different things at a time."""
    return f"""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    value = {draw.value}
    if rank < 2:
        dist.all_reduce(value, group=halves[0])
    elif rank < 4:
        dist.broadcast(value, src=2, group=halves[1])
        dist.barrier(group=halves[1])
    dist.barrier()
    """


@template(Kind.CORRECT)
def tree_of_messages(draw: Draw) -> str:
    """A reduction made by hand."""
    return f"""
    value = torch.full(({draw.numel},), 1.0)
    step = 1
    while step < size:
        if rank % (2 * step) == step:
            dist.send(value, dst=rank - step)
            break
        if rank + step < size:
            theirs = torch.empty_like(value)
            dist.recv(theirs, src=rank + step)
            value += theirs
        step *= 2
    if rank == 0:
        assert value[0] == size
    """


@template(Kind.CORRECT)
def pipeline_of_messages(draw: Draw) -> str:
    """Stages that hand on micro-batches."""
    return f"""
    works, kept = [], []
    for batch in range({draw.random.randint(2, 4)}):
        value = torch.full(({draw.numel},), float(batch))
        if rank > 0:
            dist.recv(value, src=rank - 1, tag=batch)
        if rank + 1 < size:
            kept.append(value + 1)
            works.append(dist.isend(kept[-1], dst=rank + 1, tag=batch))
        assert value[0] == batch + rank
    for work in works:
        work.wait()
    """


@template(Kind.CORRECT)
def agreed_stop(draw: Draw) -> str:
    """Ranks have other numbers of batches, and agree on when to stop."""
    return f"""
    batches = 2 + (rank == {draw.odd})
    while True:
        more = torch.tensor(int(batches > 0))
        dist.all_reduce(more, op=dist.ReduceOp.MIN)
        if not more:
            break
        dist.all_reduce({draw.value})
        batches -= 1
    """


@template(Kind.CORRECT)
def master_and_workers(draw: Draw) -> str:
    """Work that is handed out to whoever asks."""
    return f"""
    task = torch.zeros(1)
    if rank == 0:
        for number in range({draw.random.randint(1, 3)} + size):
            who = dist.recv(task, tag=1)
            dist.send(torch.tensor([float(number)]), dst=who, tag=2)
        for _ in range(1, size):
            who = dist.recv(task, tag=1)
            dist.send(torch.tensor([-1.0]), dst=who, tag=2)
    else:
        while task[0] >= 0:
            dist.send(task, dst=0, tag=1)
            dist.recv(task, src=0, tag=2)
    """


@template(Kind.CORRECT)
def waits_on_the_store(draw: Draw) -> str:
    """One rank prepares, the others wait for its word."""
    return f"""
    store = dist.distributed_c10d._get_default_store()
    if rank == {draw.odd}:
        store.set("prepared", "yes")
    else:
        store.wait(["prepared"], timedelta(seconds=5))
    dist.all_reduce({draw.value})
    """


TEMPLATES = templates_of(globals())
