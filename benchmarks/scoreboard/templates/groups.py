"""Groups of ranks: made by some, used by others, used in another order."""

from benchmarks.scoreboard.draw import Draw
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.template import template, templates_of


@template(Kind.MISSING, smallest=3)
def made_by_its_members(draw: Draw) -> str:
    """All ranks have to make a group, also those that are not in it."""
    return f"""
    members = [0, 1]
-   if rank in members:
-       dist.new_group(members)  # here
+   dist.new_group(members)
    everybody = dist.new_group(list(range(size)))  # here
    dist.all_reduce({draw.value}, group=everybody)
    """


@template(Kind.MISPLACED, smallest=4)
def made_in_another_order(draw: Draw) -> str:
    """Groups get their names by the order in which they are made."""
    return f"""
    sets = [[0, 1], [2, 3]]
-   groups = [dist.new_group(each) for each in (sets if rank != {draw.odd % 4} else sets[::-1])]  # here
-   dist.all_reduce({draw.value}, group=groups[0] if rank < 2 else groups[1])  # here
+   groups = [dist.new_group(each) for each in sets]
+   if rank < 4:
+       dist.all_reduce({draw.value}, group=groups[rank // 2])
    """


@template(Kind.MISPLACED)
def used_in_another_order(draw: Draw) -> str:
    """Each rank waits in the group that the other comes to later."""
    return f"""
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
-   for group in groups if rank != {draw.odd} else reversed(groups):
-       dist.all_reduce({draw.value}, group=group)  # here
+   for group in groups:
+       dist.all_reduce({draw.value}, group=group)
    """


@template(Kind.GROUP)
def another_group(draw: Draw) -> str:
    """One rank reduces in the world, the others in a group of as many ranks."""
    return f"""
    same = dist.new_group(list(range(size)))
-   group = None if rank == {draw.odd} else same
-   dist.all_reduce({draw.value}, group=group)  # here
+   dist.all_reduce({draw.value}, group=same)
    """


@template(Kind.MISSING, smallest=3)
def member_that_does_not_come(draw: Draw) -> str:
    """A group of all but one rank, of which one stays away."""
    absent = 0
    return f"""
    members = list(range(size - 1))
    group = dist.new_group(members)
-   if rank in members and rank != {absent}:
+   if rank in members:
        dist.all_reduce({draw.value}, group=group)  # here
    """


TEMPLATES = templates_of(globals())
