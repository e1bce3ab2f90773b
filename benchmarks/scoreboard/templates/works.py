"""The life of a work: never waited for, its tensors used too early."""

from benchmarks.scoreboard.draw import Draw
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.template import template, templates_of


@template(Kind.MISSING_WAIT)
def reduction_not_waited_for(draw: Draw) -> str:
    """The sum is read, and nobody made sure that it is there."""
    return f"""
    value = {draw.value}
    work = dist.all_reduce(value, async_op=True)  # here
+   work.wait()
    total = value.sum().item()  # here
    assert total >= 0
    """


@template(Kind.MISSING_WAIT)
def message_not_waited_for(draw: Draw) -> str:
    """A receive that is begun, and read at once."""
    return f"""
    value = {draw.value}
    if rank == 0:
        dist.send(value, dst=1)
    elif rank == 1:
        work = dist.irecv(value, src=0)  # here
+       work.wait()
        assert value.sum() >= 0  # here
    """


@template(Kind.MISSING_WAIT)
def last_work_forgotten(draw: Draw) -> str:
    """Only the last of several works is waited for."""
    return f"""
    values = [torch.ones({draw.numel}) for _ in range(3)]
    works = [dist.all_reduce(value, async_op=True) for value in values]  # here
-   works[-1].wait()
+   for work in works:
+       work.wait()
    """


@template(Kind.BUFFER)
def changed_while_it_is_reduced(draw: Draw) -> str:
    """The tensor of a reduction is written before the wait."""
    change = draw.one_of("value.add_(1)", "value.zero_()", "value[0] = 5", "value.mul_(2)")
    return f"""
    value = {draw.value}
    work = dist.all_reduce(value, async_op=True)  # here
-   {change}  # here
    work.wait()
+   {change}
    """


@template(Kind.BUFFER)
def changed_while_it_is_sent(draw: Draw) -> str:
    """What is to be sent is overwritten."""
    return f"""
    value = {draw.value}
    if rank == 0:
        work = dist.isend(value, dst=1)  # here
-       value.zero_()  # here
        work.wait()
+       value.zero_()
    elif rank == 1:
        dist.recv(value, src=0)
    """


@template(Kind.BUFFER)
def one_buffer_for_two(draw: Draw) -> str:
    """Two reductions that are under way share their memory."""
    return f"""
    buffer = torch.ones({2 * draw.numel})
-   first, second = buffer[: {draw.numel + 1}], buffer[{draw.numel - 1} :]
+   first, second = buffer[: {draw.numel}], buffer[{draw.numel} :]
    works = [dist.all_reduce(first, async_op=True)]  # here
    works.append(dist.all_reduce(second, async_op=True))  # here
    for work in works:
        work.wait()
    """


@template(Kind.BUFFER)
def gathered_too_early(draw: Draw) -> str:
    """The room of a gather is written to before the wait."""
    return f"""
    value = {draw.value}
    room = [torch.empty_like(value) for _ in range(size)]
    work = dist.all_gather(room, value, async_op=True)  # here
-   room[0].zero_()  # here
    work.wait()
    """


TEMPLATES = templates_of(globals())
