"""`examples/crashes`: each script has a bug that a crash shows, and none with `--repaired`."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from ddpsim import CrashCode, How, Strike, crash

SCRIPTS = Path(__file__).parent.parent / "examples" / "crashes"


class Pair(NamedTuple):
    """A script, the earliest point of a kind after which something is wrong, and what."""

    name: str
    point: tuple[Strike, ...]
    code: CrashCode
    world_size: int = 2


PAIRS = [
    Pair("epoch_not_set", (Strike(0, 10),), CrashCode.OTHER_SAMPLES),
    Pair("files_of_a_lost_host", (Strike(0, 7, How.HOST),), CrashCode.FAILS),
    Pair("loader_state_of_rank_0", (Strike(0, 11),), CrashCode.OTHER_SAMPLES),
    Pair("marker_before_barrier", (Strike(1, 3),), CrashCode.FAILS, 3),
    Pair("newest_of_each_rank", (Strike(1, 6),), CrashCode.OTHER_CHECKPOINTS),
    Pair("optimizer_on_rank_0", (Strike(0, 10),), CrashCode.OTHER_RESULT),
    Pair("restart_count_as_epoch", (Strike(0, 0),), CrashCode.OTHER_RESULT),
    Pair("rng_not_restored", (Strike(0, 11),), CrashCode.OTHER_RESULT),
    Pair("sampler_state", (Strike(0, 10),), CrashCode.OTHER_SAMPLES),
    Pair("save_in_place", (Strike(0, 8, How.FULL),), CrashCode.HALF_CHECKPOINT),
    Pair("scaler_not_saved", (Strike(0, 10),), CrashCode.OTHER_RESULT),
    Pair("scheduler_not_saved", (Strike(0, 10),), CrashCode.OTHER_RESULT),
    Pair("shard_of_rank_0", (Strike(0, 7),), CrashCode.OTHER_RESULT),
    Pair("skips_a_bad_batch", (Strike(0, 4, How.RAISE),), CrashCode.FAILS),
    Pair("stale_store", (Strike(0, 0),), CrashCode.FAILS),
    Pair("term_on_rank_0", (Strike(0, 1, How.TERM), Strike(1, 1, How.TERM)), CrashCode.HANG),
]


@pytest.fixture(params=PAIRS, ids=lambda pair: pair.name)
def pair(request, tmp_path, monkeypatch):
    shutil.copy(SCRIPTS / f"{request.param.name}.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    return request.param


def swept(pair, *arguments, **options):
    if pair.name == "files_of_a_lost_host":
        Path("local").mkdir(exist_ok=True)
        options |= {"nnodes": 2, "private_disk": ["local"]}
    return crash([f"{pair.name}.py", *arguments], pair.world_size, seconds=1000, **options)


def test_each_script_has_its_pair():
    assert sorted(each.name for each in PAIRS) == sorted(each.stem for each in SCRIPTS.glob("*.py"))


@pytest.mark.tier("ci")
def test_the_bug_is_found(pair):
    sweep = swept(pair, points=[pair.point])
    assert [(bad.point.strikes, bad.code) for bad in sweep.bad] == [(pair.point, pair.code)]


@pytest.mark.tier("nightly")
def test_the_bug_is_found_first_there(pair):
    sweep = swept(pair)
    first = next(bad for bad in sweep.bad if (bad.point.how, bad.code) == (pair.point[0].how, pair.code))
    assert first.point.strikes == pair.point
    assert sweep.tried == sweep.differing


@pytest.mark.tier("nightly")
def test_the_repaired_script_is_clean(pair):
    sweep = swept(pair, "--repaired")
    assert (sweep.bad, sweep.undecided, sweep.tried) == ((), 0, sweep.differing)
