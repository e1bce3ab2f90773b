"""Which tier of the tests notices each of some small faults of the product: `python -m tests.mutants FOLDER`.

The tests that mirror a folder run once, with a probe at each mutant; then each mutant is run against those tests that
come to its probe, the quickest file first, until one fails: those of the default tier, then those of CI.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutants.generating import ROOT, Mutant, choose, find_again, text_with, text_with_probes
from tests.mutants.session import Outcome, Wanted, run_tests

TIERS = {"default": None, "ci": "ci"}
ALSO = {
    "kernel": ("process_group", "runtime", "exploration"),
    "matching": ("semantics",),
    "process_group": ("semantics",),
    "transport": ("semantics",),
    "models": ("scenarios/models", "ddp_equivalence"),
    "zoo": ("zoo",),
}
"""Tests of other folders that look after a folder of the product, by its last name."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """A mutant, and what notices it."""

    mutant: Mutant
    tier: str | None
    """The first tier that notices it; None: no test does."""
    test: str
    """The test that failed, or how the process of the tests ended."""
    candidates: int
    """How many tests of the tiers so far come to it."""


def product_folders() -> list[str]:
    """All packages of the product, relative to the repository."""
    packages = (
        path.parent for top in ("simulator", "ddp", "scenarios", "reports") for path in ROOT.glob(f"{top}/**/*.py")
    )
    return sorted({str(folder.relative_to(ROOT)) for folder in packages if folder.name != "join"})


def mirror(folder: str) -> tuple[str, ...]:
    """The tests of a folder: those of its name, or of the nearest folder above; and what `ALSO` adds."""
    parts = Path(folder.removeprefix("simulator/")).parts
    names = [Path(*parts[:n]) for n in range(len(parts), 0, -1)]
    above = [*map(Path, parts[1:-1]), *names[1:]] if parts[0] == "scenarios" else []
    wanted = [*names[:1], Path(parts[-1]), *above, *ALSO.get(parts[-1], ())]
    found = dict.fromkeys(f"tests/{name}" for name in wanted if (ROOT / "tests" / name).is_dir())
    if not found:
        found = dict.fromkeys(f"tests/{name}" for name in names if (ROOT / "tests" / name).is_dir())
    return tuple(found or sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").glob("test_*.py")))


def measure(tests_of: Mapping[Mutant, Sequence[str]], tiers: Iterable[str]) -> Iterator[Noticed]:
    """What notices each mutant, in the order of the tiers."""
    left = list(tests_of)
    come_to: Counter[Mutant] = Counter()
    for tier in tiers:
        probes = _probe(left, dict.fromkeys(test for mutant in left for test in tests_of[mutant]), TIERS[tier])
        known = {test for test in probes.seconds if test not in probes.failed}
        if probes.status not in (0, 1, 5):
            raise SystemExit(probes.text)
        print(f"{tier}: {len(known)} tests, {sum(probes.seconds.values()):.0f} s", flush=True)
        for number, mutant in enumerate(list(left)):
            reached = probes.reached.get(number, frozenset())
            tests = {test for test in (known if "" in reached else known & reached) if _is_in(test, tests_of[mutant])}
            come_to[mutant] += len(tests)
            if test := _noticed_by(mutant, tests, probes.seconds, TIERS[tier]):
                left.remove(mutant)
                yield Noticed(mutant, tier, test, come_to[mutant])
    for mutant in left:
        yield Noticed(mutant, None, "", come_to[mutant])


def _is_in(test: str, folders: Iterable[str]) -> bool:
    return any(test.startswith((f"{folder}/", f"{folder}::")) for folder in folders)


def _probe(mutants: Sequence[Mutant], tests: Iterable[str], tier: str | None) -> Outcome:
    numbers = {mutant: number for number, mutant in enumerate(mutants)}
    texts = {mutant.file: text_with_probes(mutant.file, numbers) for mutant in mutants}
    return run_tests(Wanted(tuple(tests), texts, tier, stops=False, limit=7200))


def _noticed_by(mutant: Mutant, tests: Set[str], seconds: Mapping[str, float], tier: str | None) -> str:
    """The test that fails, or how the process of the tests ended."""
    files: dict[str, float] = {}
    for test in sorted(tests):
        file = test.partition("::")[0]
        files[file] = files.get(file, 0.0) + seconds[test]
    if not files:
        return ""
    in_order = tuple(sorted(files, key=lambda file: files[file]))
    texts, limit = {mutant.file: text_with(mutant)}, 30 + 4 * sum(files.values())
    outcome = run_tests(Wanted(in_order, texts, tier, frozenset(tests), limit=limit))
    if outcome.status is None:
        return f"{outcome.text} ({', '.join(outcome.failed)})"
    return outcome.failed[0] if outcome.failed else ""


def _read(file: Path) -> list[Noticed]:
    return [Noticed(Mutant(**each.pop("mutant")), **each) for each in json.loads(file.read_text(encoding="utf-8"))]


def _write(file: Path, noticed: Sequence[Noticed]) -> None:
    file.write_text(json.dumps([asdict(each) for each in noticed], indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure folders; with --before, the same mutants again, with exit status 1 if one is noticed by a later tier."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="of the product, as simulator/kernel")
    parser.add_argument("--count", type=int, default=20, help="how many mutants a folder gets (20)")
    parser.add_argument("--seed", type=int, default=0, help="other mutants")
    parser.add_argument("--tests", nargs="+", help="the tests that run; if not given, those that mirror the folder")
    parser.add_argument("--tier", choices=TIERS, action="append", help="only this tier; may be given twice")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the outcome is written")
    parser.add_argument("--before", type=Path, metavar="FILE", help="measure the mutants of this file of --json again")
    terms: Any = parser.parse_args(arguments)
    before = _read(terms.before) if terms.before else []
    if not terms.folders and not before:
        parser.error("expected a FOLDER, or --before FILE")
    wanted: dict[Mutant, Sequence[str]] = {}
    then: dict[Mutant, Noticed] = {}
    for each in before:
        if (now := find_again(each.mutant, product_folders())) is None:
            print(f"its text is gone: {each.mutant}")
        elif not terms.folders or str(Path(now.file).parent) in terms.folders:
            then[now] = each
            wanted[now] = terms.tests or mirror(str(Path(now.file).parent))
    if not before:
        for folder in terms.folders:
            chosen = choose(folder, terms.count, terms.seed)
            wanted |= dict.fromkeys(chosen, terms.tests or mirror(folder))
    noticed, lost = [], False
    for each in measure(wanted, terms.tier or TIERS):
        noticed.append(each)
        by = each.test or f"{each.candidates} tests come to it"
        line = f"{each.tier or 'survives':<9}{each.mutant}  [{each.mutant.kind}]  {by}"
        if (was := then.get(each.mutant)) is not None and was.tier == "default" and each.tier != "default":
            lost, line = True, f"{line}  LOST: it was noticed by {was.test}"
        print(line, flush=True)
        if terms.json:
            _write(terms.json, noticed)
    counts = Counter((str(Path(each.mutant.file).parent), each.tier or "survives") for each in noticed)
    for folder in sorted({folder for folder, _ in counts}):
        print(folder, *(f"{tier} {counts[folder, tier]}" for tier in (*TIERS, "survives")), sep="  ")
    return int(lost)


if __name__ == "__main__":
    sys.exit(main())
