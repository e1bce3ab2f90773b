"""How far a reader has to walk: the files that one trip enters, and how often it changes from one to another.

    python -m benchmarks.ways [--files TRIP]

A profiler hook notes the file of ddpsim that runs at each call and at each return. `rooms` are the different files,
`moves` the changes from one file to another, and `returns` the moves to a file that was entered before. `--files` lists
the files of one trip, by how often they are entered. What torch and Python do in between is not counted.

Ranks are two. Each trip runs once before, so that nothing is imported or cached for the first time.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from ddpsim import simulate

HOME = str(Path(sys.modules["ddpsim"].__path__[0]).resolve()) + "/"
PARTS = tuple(f"{HOME}{part}/" for part in ("simulator", "ddp", "scenarios", "reports"))

Program = Callable[[int], object]


class Walk:
    """The files of one trip, in the order in which they run."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.is_open = False

    def begin(self) -> None:
        """Count from here on, on the calling thread and on those that have the hook already."""
        self.is_open = True
        sys.setprofile(self.see)

    def see(self, frame: FrameType, event: str, _: object) -> None:
        """The hook: which file of ddpsim runs now."""
        if not self.is_open or event not in ("call", "return") or not frame.f_code.co_filename.startswith(PARTS):
            return
        current: FrameType | None = frame if event == "call" else frame.f_back
        while current is not None and not current.f_code.co_filename.startswith(PARTS):
            current = current.f_back
        if current is not None and self.files[-1:] != [name := current.f_code.co_filename.removeprefix(HOME)]:
            self.files.append(name)

    def __str__(self) -> str:
        rooms, moves = len(set(self.files)), len(self.files) - 1
        return f"{rooms:>6} {moves:>7,} {moves + 1 - rooms:>8,}"


def agreed(walk: Walk, of: Sequence[int] = (0, 1)) -> None:
    """An all_reduce on which two ranks agree; ranks are threads. `of`: the ranks that are followed."""

    def program(rank: int) -> None:
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        if rank in of:
            walk.begin()
        dist.all_reduce(tensor)
        sys.setprofile(None)

    simulate(program, 2, isolation="thread")


def one_thread(walk: Walk) -> None:
    """The same, on the thread of rank 0 alone."""
    own = Walk()
    agreed(own, of=(0,))
    walk.files = own.files


def to_the_end(walk: Walk, call: Program) -> None:
    """A call of each rank, to the end of `simulate`."""

    def program(rank: int) -> None:
        dist.all_reduce(torch.ones(4))
        walk.begin()
        call(rank)

    sys.setprofile(walk.see)
    try:
        simulate(program, 2, isolation="thread")
    finally:
        sys.setprofile(None)


def mismatch(walk: Walk) -> None:
    """An all_reduce of two shapes."""
    to_the_end(walk, lambda rank: dist.all_reduce(torch.ones(4 + rank)))


def missing_rank(walk: Walk) -> None:
    """An all_reduce that rank 0 does not make."""
    to_the_end(walk, lambda rank: rank and dist.all_reduce(torch.ones(4)))


def join(walk: Walk) -> None:
    """A training of two and three batches inside `join()` of the engine `ddp`."""
    from ddpsim.ddp import DistributedDataParallel

    def program(rank: int) -> None:
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with model.join():
            walk.begin()
            for _ in range(2 + rank):
                optimizer.zero_grad()
                model(torch.ones(4, 2)).sum().backward()
                optimizer.step()
        sys.setprofile(None)

    simulate(program, 2, isolation="thread")


def side_of_rank(walk: Walk) -> None:
    """An agreed all_reduce of ranks that are processes, in the process of rank 0."""

    def program(rank: int) -> list[str]:
        tensor, own = torch.ones(4), Walk()
        dist.all_reduce(tensor)
        own.begin()
        dist.all_reduce(tensor)
        sys.setprofile(None)
        return own.files

    walk.files = simulate(program, 2, isolation="process").returns[0]


def side_of_coordinator(walk: Walk) -> None:
    """The same in the process that runs the kernel: what each of ten more all_reduces adds."""
    few, many = _coordinated(5), _coordinated(15)
    added = Counter(many.files)
    added.subtract(few.files)
    # As one walk of so many rooms and moves: the order among ten calls is of no use here.
    walk.files = [name for name, count in added.items() for _ in range(round(count / 10)) if count > 0]


def _coordinated(calls: int) -> Walk:
    walk = Walk()

    def program(rank: int) -> None:
        for _ in range(calls):
            dist.all_reduce(torch.ones(4))

    walk.begin()
    try:
        simulate(program, 2, isolation="process")
    finally:
        sys.setprofile(None)
    return walk


def diagnose(walk: Walk) -> None:
    """`ddpsim diagnose` of two logs of torchcomms, argv to text."""
    call = "C1|sig|all_reduce|in_count=8|out_count=8|dtype=f32|red_op={}|async_op=f|comm=world\nC1|Q|work_id=1|+0.1\n"
    with tempfile.TemporaryDirectory() as folder:
        for rank, reduction in enumerate(("sum", "max")):
            head = f"V|1|base_timestamp=1714234567.890\nnew_comm|comm=world|rank={rank}|world_size=2\n"
            Path(folder, f"rank{rank}.log").write_text(head + call.format(reduction))
        _command(walk, ["diagnose", folder], expected=1)


def run_script(walk: Walk) -> None:
    """`ddpsim run x.py`, argv to text: a script of two ranks that prints a sum."""
    lines = ["import torch, torch.distributed as dist", "dist.init_process_group('gloo')"]
    lines += ["t = torch.ones(2)", "dist.all_reduce(t)", "print(t)"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.py").write_text("\n".join(lines))
        _command(walk, ["run", "--world-size", "2", str(Path(folder, "x.py"))], expected=0)


def _command(walk: Walk, argv: Sequence[str], expected: int) -> None:
    """A command in an interpreter of its own, as a shell starts it."""
    begin = f"from benchmarks.ways import in_command; in_command({list(argv)!r})"
    done = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, check=True)
    status, files = json.loads(done.stdout.splitlines()[-1])
    assert status == expected, done.stderr
    walk.files = files


def in_command(argv: list[str]) -> None:
    """Run a command of the console, and print its exit status and its files as JSON."""
    from ddpsim.scenarios.cli import main as command

    for _ in range(2):
        walk, status = Walk(), 0
        with redirect_stdout(io.StringIO()):
            walk.begin()
            try:
                status = command(argv)
            except SystemExit as end:
                status = int(end.code or 0)
            finally:
                sys.setprofile(None)
    print(json.dumps([status, walk.files]))


TRIPS: dict[str, Callable[[Walk], None]] = {
    "all_reduce agreed, two ranks as threads": agreed,
    "one rank's own thread": one_thread,
    "mismatch, to the end of simulate": mismatch,
    "missing rank, to the end of simulate": missing_rank,
    "a ddp join, two ranks": join,
    "all_reduce of processes, the rank's side": side_of_rank,
    "all_reduce of processes, the coordinator's side": side_of_coordinator,
    "run x.py, argv to text": run_script,
    "diagnose of two clogs": diagnose,
}


def walked(trip: Callable[[Walk], None]) -> Walk:
    """A trip, after it was made once (a command is made twice in its own interpreter)."""
    if trip not in (run_script, diagnose):
        trip(Walk())
    walk = Walk()
    trip(walk)
    return walk


def main() -> None:
    """Print the table, or the files of one trip."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", metavar="TRIP", help="list the files of the trip that begins so")
    options = parser.parse_args()
    if options.files is not None:
        for name, trip in TRIPS.items():
            if name.startswith(options.files):
                counts = Counter(walked(trip).files)
                print(*(f"{count:6,}  {file}" for file, count in counts.most_common()), sep="\n")
        return
    print(f"{'':<48} {'rooms':>6} {'moves':>7} {'returns':>8}")
    for name, trip in TRIPS.items():
        print(f"{name:<48} {walked(trip)}", flush=True)


if __name__ == "__main__":
    main()
