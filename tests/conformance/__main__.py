"""Run torch's own tests on simulated ranks, and compare with what came of them on real gloo.

python -m tests.conformance                 # compare: exit status 1 if anything differs that the table does not have
python -m tests.conformance --write         # make docs/conformance.md and exceptions.toml anew
python -m tests.conformance --gloo --write  # run them on real gloo, too, and record that
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.conformance import page
from tests.conformance.records import (
    Exceptional,
    changes,
    differences,
    load_exceptions,
    load_gloo,
    made_anew,
    save_exceptions,
    save_gloo,
)
from tests.conformance.running import run_suite
from tests.conformance.suites import SUITES
from tests.conformance.ways import WAYS
from tests.conformance.worker import REAL


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options say; returns the exit status."""
    options = _options(arguments)
    gloo = load_gloo()
    known = load_exceptions()
    if options.gloo:
        for suite in map(SUITES.__getitem__, options.suite):
            gloo[suite.name] = run_suite(suite, REAL, without=gloo[suite.beyond] if suite.beyond else ())
        save_gloo(gloo)
    found: set[Exceptional] = set()
    for way in options.way:
        for suite in options.suite:
            outcomes = run_suite(SUITES[suite], way, only=gloo[suite])
            found |= differences(suite, way, gloo[suite], outcomes)
    ran = {(suite, way) for way in options.way for suite in options.suite}
    new, gone = changes(known, found, ran)
    for what, each in [*(("new", each) for each in new), *(("gone", each) for each in gone)]:
        print(f"{what}: {each.suite} {each.way} {each.test} {each.direction.value}")
    if options.write:
        known = made_anew(known, found, ran)
        save_exceptions(known)
        page.write(page.results(gloo, known))
    print(f"{len(found)} exceptions, of which {len(new)} are new; {len(gone)} are gone")
    return 1 if new or gone else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make the table of exceptions and the page anew")
    parser.add_argument("--gloo", action="store_true", help="run the tests on real gloo first, and record it")
    parser.add_argument("--suite", action="append", choices=sorted(SUITES), help="only this one; may be given again")
    parser.add_argument(
        "--way", action="append", choices=sorted(WAYS), help="another than processes; may be given again"
    )
    options = parser.parse_args(arguments)
    options.suite = options.suite or list(SUITES)
    options.way = options.way or [page.SHOWN]
    return options


if __name__ == "__main__":
    sys.exit(main())
