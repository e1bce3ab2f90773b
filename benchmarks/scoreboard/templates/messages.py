"""Messages from rank to rank."""

from benchmarks.scoreboard.draw import Draw
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.template import template, templates_of


@template(Kind.MISSING)
def one_message_too_few(draw: Draw) -> str:
    """The receiver expects more than is sent."""
    count = draw.random.randint(1, 3)
    return f"""
    value = {draw.value}
    if rank == 0:
-       for _ in range({count}):  # here
+       for _ in range({count + 1}):
            dist.send(value, dst=1)
    elif rank == 1:
        for _ in range({count + 1}):
            dist.recv(value, src=0)  # here
    """


@template(Kind.MISSING)
def message_that_nobody_receives(draw: Draw) -> str:
    """A send without its receive."""
    return f"""
    value = {draw.value}
    if rank == 0:
        dist.send(value, dst=1)
        dist.send(value, dst=1)  # here
    elif rank == 1:
        dist.recv(value, src=0)
+       dist.recv(value, src=0)
    """


@template(Kind.PEER, smallest=3)
def to_the_wrong_rank(draw: Draw) -> str:
    """A ring in which one rank sends two places on."""
    return f"""
    mine, theirs = {draw.value}, {draw.value}
-   target = (rank + (2 if rank == {draw.odd} else 1)) % size
+   target = (rank + 1) % size
    sent = dist.isend(mine, dst=target)  # here
    dist.recv(theirs, src=(rank - 1) % size)  # here
    sent.wait()
    """


@template(Kind.PEER, smallest=3)
def from_the_wrong_rank(draw: Draw) -> str:
    """Two senders, and a receiver that asks one of them twice."""
    return f"""
    value = {draw.value}
    if rank == 0:
        for source in range(1, size):
-           dist.recv(value, src=1)  # here
+           dist.recv(value, src=source)
    else:
        dist.send(value, dst=0)  # here
    """


@template(Kind.TAG)
def another_tag(draw: Draw) -> str:
    """The tag is the rank's on one side, the peer's on the other."""
    return f"""
    value = {draw.value}
    if rank == 0:
        dist.send(value, dst=1, tag=7)  # here
    elif rank == 1:
-       dist.recv(value, src=0, tag=8)  # here
+       dist.recv(value, src=0, tag=7)
    """


@template(Kind.TAG)
def tags_in_another_order(draw: Draw) -> str:
    """Two messages, received the other way round by calls that block."""
    return f"""
    value = {draw.value}
    if rank == 0:
        dist.send(value, dst=1, tag=1)  # here
        dist.send(value, dst=1, tag=2)
    elif rank == 1:
-       for tag in (2, 1):
+       for tag in (1, 2):
            dist.recv(value, src=0, tag=tag)  # here
    """


@template(Kind.COUNT)
def longer_than_its_room(draw: Draw) -> str:
    """More is sent than there is room for."""
    return f"""
    if rank == 0:
        dist.send(torch.ones({draw.numel + 1}), dst=1)  # here
    elif rank == 1:
-       dist.recv(torch.ones({draw.numel}), src=0)  # here
+       dist.recv(torch.ones({draw.numel + 1}), src=0)
    """


@template(Kind.TYPE)
def of_another_type(draw: Draw) -> str:
    """Bytes of one type are read as another."""
    return f"""
    if rank == 0:
        dist.send(torch.ones({draw.numel}), dst=1)  # here
    elif rank == 1:
-       dist.recv(torch.ones({draw.numel}, dtype=torch.int32), src=0)  # here
+       dist.recv(torch.ones({draw.numel}), src=0)
    """


@template(Kind.MISPLACED)
def all_receive_first(draw: Draw) -> str:
    """A ring in which nobody begins."""
    return f"""
    mine, theirs = {draw.value}, {draw.value}
-   dist.recv(theirs, src=(rank - 1) % size)  # here
-   dist.send(mine, dst=(rank + 1) % size)
+   sent = dist.isend(mine, dst=(rank + 1) % size)
+   dist.recv(theirs, src=(rank - 1) % size)
+   sent.wait()
    """


@template(Kind.MISPLACED)
def all_send_first(draw: Draw) -> str:
    """A ring in which nobody listens."""
    return f"""
    mine, theirs = {draw.value}, {draw.value}
-   dist.send(mine, dst=(rank + 1) % size)  # here
-   dist.recv(theirs, src=(rank - 1) % size)
+   messages = [
+       dist.P2POp(dist.isend, mine, (rank + 1) % size),
+       dist.P2POp(dist.irecv, theirs, (rank - 1) % size),
+   ]
+   for work in dist.batch_isend_irecv(messages):
+       work.wait()
    """


@template(Kind.MISPLACED)
def collective_before_the_message(draw: Draw) -> str:
    """One side sends before the barrier, the other receives behind it."""
    return f"""
    value = {draw.value}
    if rank == 0:
        dist.send(value, dst=1)  # here
-   dist.barrier()  # here
    if rank == 1:
        dist.recv(value, src=0)
+   dist.barrier()
    """


@template(Kind.MISSING)
def half_of_an_exchange(draw: Draw) -> str:
    """A batch of messages in which one rank does not send."""
    return f"""
    mine, theirs = {draw.value}, {draw.value}
    messages = [dist.P2POp(dist.irecv, theirs, (rank - 1) % size)]
-   if rank != {draw.odd}:
-       messages.append(dist.P2POp(dist.isend, mine, (rank + 1) % size))
+   messages.append(dist.P2POp(dist.isend, mine, (rank + 1) % size))
    for work in dist.batch_isend_irecv(messages):  # here
        work.wait()  # here
    """


TEMPLATES = templates_of(globals())
