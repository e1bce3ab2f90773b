"""How long a wrong program takes from `simulate` to its diagnosis: the seven cases that torch's own tools miss.

    python -m benchmarks.diagnosis [--world-size 8] [--rounds 20]

What people wait for today (PEERS.md, measured on torch 2.13): a time-out of 300 s for each stuck rank in the threaded
group, 30 minutes by default on gloo; four of the seven end there with wrong numbers and no error at all.
"""

from __future__ import annotations

import argparse
import statistics
import time

from ddpsim import simulate
from tests.silent_cases.programs import SILENT_CASES


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    times: dict[str, list[float]] = {case.name: [] for case in SILENT_CASES}
    for number in range(options.rounds + 1):
        for case in SILENT_CASES:
            start = time.perf_counter()
            result = simulate(case.wrong, options.world_size)
            text = str(result)
            elapsed = time.perf_counter() - start
            assert case.code in text, text
            if number:  # the first round imports and warms up
                times[case.name].append(elapsed * 1e3)
    print(f"{options.world_size} ranks, {options.rounds} rounds: milliseconds from simulate() to the text")
    print(f"{'case':<32}{'median':>8}{'most':>8}")
    for name, values in times.items():
        print(f"{name:<32}{statistics.median(values):8.1f}{max(values):8.1f}")


if __name__ == "__main__":
    main()
