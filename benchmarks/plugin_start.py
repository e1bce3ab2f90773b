"""What the pytest plugin costs a session without marked tests: the start of pytest, with and without it.

    python benchmarks/plugin_start.py

Sessions of 100 plain tests, in processes of their own, with the plugin and without in turns; the medians of their wall
times and of their CPU times. The goal is 20 ms.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 40
TESTS = 100
GOAL_MS = 20.0
WITHOUT: tuple[str, ...] = ()
WITH = ("-p", "ddpsim.scenarios.pytest_plugin")


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        tests = "".join(f"def test_{number}():\n    pass\n\n" for number in range(TESTS))
        Path(folder, "test_plain.py").write_text(tests, encoding="utf-8")
        for options in (WITHOUT, WITH):
            _session(folder, options)  # Python writes its caches
        times: dict[tuple[str, ...], list[tuple[float, float]]] = {WITHOUT: [], WITH: []}
        for number in range(ROUNDS):
            for options in (WITHOUT, WITH) if number % 2 else (WITH, WITHOUT):
                times[options].append(_session(folder, options))
    _show(times)


def _session(folder: str, options: tuple[str, ...]) -> tuple[float, float]:
    """Wall and CPU seconds of a session."""
    root = str(Path(__file__).parents[1] / "src")
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": root}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_plain.py"]
    start, cpu = time.perf_counter(), _cpu_of_children()
    subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start, _cpu_of_children() - cpu


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _show(times: dict[tuple[str, ...], list[tuple[float, float]]]) -> None:
    print(f"{ROUNDS} sessions each of {TESTS} plain tests, medians in ms")
    for index, kind in enumerate(("wall", "cpu")):
        without, with_it = (
            1000 * statistics.median(each[index] for each in times[options]) for options in (WITHOUT, WITH)
        )
        print(f"  {kind:4}  without {without:6.1f}  with {with_it:6.1f}  the plugin {with_it - without:5.1f}", end="")
        print(f"  (goal: at most {GOAL_MS:g})")


if __name__ == "__main__":
    main()
