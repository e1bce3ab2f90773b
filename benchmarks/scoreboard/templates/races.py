"""What goes well in one order of events, and not in another."""

from benchmarks.scoreboard.draw import Draw
from benchmarks.scoreboard.kinds import Kind
from benchmarks.scoreboard.template import template, templates_of


@template(Kind.RACE, smallest=3)
def first_to_come(draw: Draw) -> str:
    """A receive from whoever sends, taken for the next rank's."""
    return f"""
    value = torch.full(({draw.numel},), float(rank))
    if rank > 0:
        dist.send(value, dst=0)
    else:
        for expected in range(1, size):
-           source = dist.recv(value)  # here
-           assert source == expected, f"this came from another rank: {{source}}"  # here
+           source = dist.recv(value, src=expected)
+           assert source == expected
    """


@template(Kind.RACE, smallest=3)
def directed_after_any(draw: Draw) -> str:
    """A receive from anybody may take the message that the next one waits for."""
    return f"""
    value = torch.full(({draw.numel},), float(rank))
    if rank in (1, 2):
        dist.send(value, dst=0)  # here
    elif rank == 0:
-       dist.recv(value)  # here
+       dist.recv(value, src=2)
        dist.recv(value, src=1)  # here
    """


@template(Kind.RACE)
def two_threads_one_group(draw: Draw) -> str:
    """Who of two threads calls first is another thing on each rank."""
    return f"""
    def report():
        dist.all_reduce(torch.ones({draw.numel}))  # here

    reporter = threading.Thread(target=report)
    reporter.start()
+   reporter.join()
    dist.all_reduce(torch.ones({draw.numel + 1}))  # here
    reporter.join()
    """


@template(Kind.RACE)
def asks_the_store(draw: Draw) -> str:
    """A key that is there or not decides who comes to a collective."""
    call = draw.collective("all_reduce", "barrier")
    return f"""
    value = {draw.value}
    store = dist.distributed_c10d._get_default_store()
    if rank == {draw.odd}:
        store.set("ready", "yes")
-       {call}  # here
-   elif store.check(["ready"]):
-       {call}  # here
+   else:
+       store.wait(["ready"], timedelta(seconds=5))
+   {call}
    """


TEMPLATES = templates_of(globals())
