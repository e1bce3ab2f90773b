"""Frameworks under `ddpsim run`, each once as it should be and once with a planted bug, as a table.

    python -m tests.systems                # all that are installed; the others with what installs them
    python -m tests.systems trl lightning  # those with one of the words in their name
    python -m tests.systems --gloo         # under torchrun, too: are the numbers equal?
    python -m tests.systems --gpus         # on virtual GPUs

Programs: tests/systems/programs, and examples/programs/frameworks with bugs of tests/compatibility/framework_bugs.py.
Exit status 1 if a program does not pass or has other numbers, or if its bug is not found with a line of it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.compatibility.comparison import difference
from tests.compatibility.framework_bugs import BUGS

TORCHRUN = "torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2 --redirects 1 --log-dir logs"
HEADER = "| system | version | ranks | result | s | planted bug | found | s |\n|---|---|---|---|---|---|---|---|"
LIMIT_SECONDS = 300
MODULES = {"pytorch-ignite": "ignite", "mosaicml": "composer"}


class System(NamedTuple):
    """A framework, and what pip installs for it; without a program here it is the first of BUGS with its name."""

    name: str
    packages: str
    program: str = ""
    needs_gpus: bool = False

    @property
    def version(self) -> str:
        try:
            return importlib.metadata.version(self.packages.split()[0])
        except importlib.metadata.PackageNotFoundError:
            return "?"  # a checkout on the path

    def sources(self) -> tuple[str, str, str, str]:
        """Return the program, and with its bug; what the bug is, and how its line begins."""
        if not self.program:
            bug = next(bug for bug in BUGS if self.name.lower() in bug.file)
            return bug.repaired, bug.source, bug.name, bug.line
        text = (Path(__file__).parent / "programs" / self.program).read_text()
        (line,) = (line.removesuffix("  # the bug").strip() for line in text.splitlines() if line.endswith("# the bug"))
        return text, f"import sys\nsys.argv.append('bug')\n{text}", re.split(r'Bug: (.*)\."""', text)[1], line


SYSTEMS = (
    System("transformers", "transformers accelerate"),
    System("accelerate", "accelerate"),
    System("Lightning", "lightning"),
    System("Fabric", "lightning"),
    System("ignite", "pytorch-ignite"),
    System("torchmetrics", "torchmetrics"),
    System("trl", "trl peft datasets", "trl_sft.py"),
    System("peft", "peft", "peft_lora.py"),
    System("timm", "timm", "timm_vit.py"),
    System("DeepSpeed", "deepspeed", "deepspeed_zero.py"),
    System("Composer", "mosaicml", "composer_trainer.py"),
    System("litgpt", "litgpt", "litgpt_pretrain.py", needs_gpus=True),
)


class Ran(NamedTuple):
    """What came of a program."""

    status: int | None  # None: it took too long
    text: str
    seconds: float

    @property
    def found(self) -> str:
        """The first finding's code, its ranks, and the lines of their calls."""
        found = re.search(r"^not as expected: found fail, (.*);", self.text, re.MULTILINE)
        places = re.findall(r"^  rank \d .*?(\w+\.py:\d+(?: from \S+)?)", self.text, re.MULTILINE)
        return ", ".join([found[1] if found else self.text[-200:], *dict.fromkeys(places)])


def run(source: str, module: list[str]) -> Ran:
    """Run a program in an empty folder by a module of Python; it, and what it has started, ends with the limit."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, tempfile.TemporaryFile("w+") as out:
        Path(folder, "program.py").write_text(source)
        begin, command = time.monotonic(), [sys.executable, "-m", *module, "program.py"]
        options = {"cwd": folder, "env": environment, "start_new_session": True}
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **options)
        try:
            status = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = None
        out.seek(0)
        texts = [path.read_text(errors="replace") for path in Path(folder).rglob("stdout.log")]
        return Ran(status, "".join([*texts, out.read()]), time.monotonic() - begin)


def row(system: System, options: argparse.Namespace) -> tuple[list[str], bool]:
    """Run the programs of a system; return the cells of its row, and whether all is as it should be."""
    if not all(importlib.util.find_spec(MODULES.get(name, name)) for name in system.packages.split()):
        return [f"not installed: pip install {system.packages}", *[""] * 6], True
    right, wrong, name, line = system.sources()
    simulated = f"ddpsim run --world-size 2 {'--gpus 2' if system.needs_gpus or options.gpus else ''}".split()
    clean, bug = (run(source, simulated) for source in (right, wrong))
    result = "PASS" if clean.status == 0 else f"fails: {clean.found}"
    if clean.status == 0 and options.gloo and not system.needs_gpus:
        real = run(right, TORCHRUN.split())
        printed = ([line for line in ran.text.splitlines() if line.startswith("rank ")] for ran in (real, clean))
        other = difference(*printed) if real.status == 0 else real.text[-200:]
        result = f"not as under torchrun: {other}" if other else "PASS, numbers of gloo"
    places = [f"program.py:{n}" for n, each in enumerate(wrong.splitlines(), 1) if each.strip().startswith(line)]
    is_told = bug.status == 1 and any(re.search(rf"{place}\b", bug.found) for place in places)
    cells = [system.version, "2", result, f"{clean.seconds:.0f}", name, bug.found, f"{bug.seconds:.0f}"]
    cells[5] += "" if is_told else " (NOT its line)"
    return cells, result.startswith("PASS") and is_told


def main() -> int:
    """Run and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.systems", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="run only what has one of these in its name")
    parser.add_argument("--gloo", action="store_true", help="compare the numbers with those of torchrun on gloo")
    parser.add_argument("--gpus", action="store_true", help="run on virtual GPUs")
    options = parser.parse_args()
    print(HEADER, flush=True)
    is_right = True
    for system in SYSTEMS:
        if options.words and not any(word.lower() in system.name.lower() for word in options.words):
            continue
        cells, is_good = row(system, options)
        is_right &= is_good
        print("|", " | ".join(re.sub(r"[\n|]+", " ", cell) for cell in [system.name, *cells]), "|", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
