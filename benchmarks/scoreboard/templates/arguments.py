"""Arguments that are wrong by themselves, on all ranks alike."""

from benchmarks.scoreboard.draw import Draw
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.template import template, templates_of


@template(Kind.ARGUMENT)
def root_outside(draw: Draw) -> str:
    """There is no such rank."""
    call = draw.one_of("dist.broadcast(value, src=root)", "dist.reduce(value, dst=root)")
    return f"""
    value = {draw.value}
-   root = size
-   {call}  # here
+   root = size - 1
+   {call}
    """


@template(Kind.ARGUMENT)
def room_for_too_few(draw: Draw) -> str:
    """A list that is too short."""
    return f"""
    value = {draw.value}
-   room = [torch.empty_like(value) for _ in range(size - 1)]
+   room = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(room, value)  # here
    """


@template(Kind.ARGUMENT)
def not_divisible(draw: Draw) -> str:
    """A tensor that cannot be shared out."""
    return f"""
-   value = torch.ones({draw.numel} * size + 1)
+   value = torch.ones({draw.numel} * size)
    share = torch.empty({draw.numel})
    dist.reduce_scatter_tensor(share, value)  # here
    """


@template(Kind.ARGUMENT)
def splits_that_do_not_add_up(draw: Draw) -> str:
    """The shares are more than there is."""
    return f"""
    value = torch.ones({draw.numel} * size)
    out = torch.empty({draw.numel} * size)
-   shares = [{draw.numel} + 1] * size
+   shares = [{draw.numel}] * size
    dist.all_to_all_single(out, value, shares, shares)  # here
    """


@template(Kind.ARGUMENT)
def message_to_oneself(draw: Draw) -> str:
    """The peer is the rank itself."""
    return f"""
    value = {draw.value}
    if rank == {draw.odd}:
-       dist.send(value, dst=rank)  # here
+       dist.send(value, dst=(rank + 1) % size)
+   elif rank == {(draw.odd + 1) % draw.size}:
+       dist.recv(value, src={draw.odd})
    """


@template(Kind.ARGUMENT)
def peer_outside(draw: Draw) -> str:
    """The last rank's neighbour."""
    return f"""
    value = {draw.value}
    if rank > 0:
        dist.recv(value, src=rank - 1)
-   dist.send(value, dst=rank + 1)  # here
+   if rank + 1 < size:
+       dist.send(value, dst=rank + 1)
    """


@template(Kind.ARGUMENT)
def not_a_tensor(draw: Draw) -> str:
    """A number is no tensor."""
    return """
-   value = float(rank)
+   value = torch.tensor(float(rank))
    dist.all_reduce(value)  # here
    """


TEMPLATES = templates_of(globals())
