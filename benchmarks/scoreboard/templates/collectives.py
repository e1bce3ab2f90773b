"""Collectives that a rank leaves out, makes elsewhere, or makes otherwise."""

from benchmarks.scoreboard.draw import REDUCING, SYNCHRONISING, Draw
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.template import template, templates_of


@template(Kind.MISSING)
def left_out_by_a_branch(draw: Draw) -> str:
    """One rank's condition differs."""
    call = draw.collective()
    return f"""
    value = {draw.value}
-   if rank != {draw.odd}:
-       {call}  # here
+   {call}
    """


@template(Kind.MISSING)
def made_by_one_rank_only(draw: Draw) -> str:
    """As in a checkpoint that rank 0 writes."""
    call = draw.collective()
    return f"""
    value = {draw.value}
    if rank == {draw.odd}:
        value = value * 2
-       {call}  # here
+   {call}
    """


@template(Kind.MISSING)
def one_round_more(draw: Draw) -> str:
    """A rank has one batch more."""
    call = draw.collective(*SYNCHRONISING)
    rounds = draw.random.randint(1, 4)
    return f"""
    value = {draw.value}
-   for _ in range({rounds} + (rank == {draw.odd})):
-       {call}  # here
+   for _ in range({rounds}):
+       {call}
    """


@template(Kind.MISSING)
def returns_early(draw: Draw) -> str:
    """A rank thinks that it is done."""
    call = draw.collective()
    return f"""
    value = {draw.value}
-   if value.sum() > 0 and rank == {draw.odd}:
-       return  # here
    {call}  # here
    """


@template(Kind.CRASH)
def raises_before(draw: Draw) -> str:
    """A rank fails, and the others wait for it."""
    call = draw.collective(*SYNCHRONISING)
    return f"""
    value = {draw.value}
-   if rank == {draw.odd}:
-       raise ValueError("this batch cannot be divided")  # here
    {call}
    """


@template(Kind.MISPLACED)
def in_another_order(draw: Draw) -> str:
    """Two calls change places on one rank."""
    first, second = draw.two_collectives()
    return f"""
    value = {draw.value}
-   if rank == {draw.odd}:
-       {first}  # here
-       {second}  # here
-   else:
-       {second}  # here
-       {first}  # here
+   {second}
+   {first}
    """


@template(Kind.MISPLACED)
def tensors_in_another_order(draw: Draw) -> str:
    """One call at one line, for tensors that come in an order of the rank's own."""
    return f"""
    values = [torch.ones({draw.numel}), torch.ones({draw.numel + 3})]
-   for value in values if rank != {draw.odd} else reversed(values):
-       {draw.collective(*REDUCING, "broadcast")}  # here
+   for value in values:
+       {draw.collective(*REDUCING, "broadcast")}
    """


@template(Kind.MISPLACED)
def another_collective(draw: Draw) -> str:
    """One rank makes another call than the others."""
    first, second = draw.two_collectives()
    return f"""
    value = {draw.value}
-   if rank == {draw.odd}:
-       {first}  # here
-   else:
-       {second}  # here
+   {second}
    """


@template(Kind.ROOT, smallest=3)
def root_of_its_own(draw: Draw) -> str:
    """A root that is computed from the rank."""
    other = (draw.odd + 1) % draw.size
    call = draw.one_of("dist.broadcast(value, src=root)", "dist.reduce(value, dst=root)")
    return f"""
    value = {draw.value}
-   root = {other} if rank == {draw.odd} else {draw.odd}
-   {call}  # here
+   root = {draw.odd}
+   {call}
    """


@template(Kind.REDUCTION)
def another_reduction(draw: Draw) -> str:
    """The maximum on one rank, the sum on the others."""
    other = draw.one_of("MAX", "MIN", "PRODUCT")
    call = draw.one_of("dist.all_reduce(value, op=op)", "dist.reduce(value, 0, op=op)")
    return f"""
    value = {draw.value}
-   op = dist.ReduceOp.{other} if rank == {draw.odd} else dist.ReduceOp.SUM
-   {call}  # here
+   op = dist.ReduceOp.SUM
+   {call}
    """


@template(Kind.COUNT)
def another_count(draw: Draw) -> str:
    """A tensor that is longer on one rank."""
    call = draw.collective(*REDUCING, "broadcast", "all_gather")
    return f"""
-   value = torch.ones({draw.numel} + (rank == {draw.odd}))
-   {call}  # here
+   value = torch.ones({draw.numel})
+   {call}
    """


@template(Kind.COUNT)
def another_share(draw: Draw) -> str:
    """What a rank sends to its peers is not what they expect."""
    return f"""
-   mine = [{draw.numel} + (rank == {draw.odd})] * size
+   mine = [{draw.numel}] * size
    theirs = [{draw.numel}] * size
    out = torch.empty(sum(theirs))
    dist.all_to_all_single(out, torch.ones(sum(mine)), theirs, mine)  # here
    """


@template(Kind.TYPE)
def another_type(draw: Draw) -> str:
    """One rank computes in another precision."""
    wide, narrow = draw.random.choice((("float64", "float32"), ("float32", "int32"), ("int64", "float64")))
    call = draw.collective(*REDUCING, "broadcast", "all_gather")
    return f"""
-   value = torch.ones({draw.numel}, dtype=torch.{wide} if rank == {draw.odd} else torch.{narrow})
-   {call}  # here
+   value = torch.ones({draw.numel}, dtype=torch.{wide})
+   {call}
    """


TEMPLATES = templates_of(globals())
