"""What a run came to, as plain values; and the other process that replays saved ones: `python -m ... FOLDER`."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ddpsim import Result
from ddpsim.ddp.bucket import GradientScale
from ddpsim.scenarios import load, replay_scenario


def told(result: Result) -> list[object]:
    """Digest, verdict and findings."""
    findings = [[each.code.value, list(each.ranks), each.summary, each.body] for each in result.findings]
    return [result.trace.digest(), result.verdict.value, findings]


@contextmanager
def planted(only: int | None = None) -> Iterator[pytest.MonkeyPatch]:
    """Our engine divides gradients by one rank too many; only where so many are right, if that is said."""

    def scale(divisor: int, in_place: bool = False) -> GradientScale:
        return GradientScale(divisor + (only in (None, divisor)), in_place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddpsim.ddp.engine.GradientScale", scale)
        yield patch


def main(folder: Path) -> None:
    """Replay each failure that is recorded in the folder, and write down what it comes to."""
    failures = json.loads((folder / "recorded.json").read_text())
    replayed = []
    with warnings.catch_warnings(), planted():
        warnings.simplefilter("ignore")
        for file, name, token in failures:
            scenario = replace(load(str(folder / file)), name=name)  # a token names what it was recorded for
            replayed.append(told(replay_scenario(scenario, token)))
    (folder / "replayed.json").write_text(json.dumps(replayed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
