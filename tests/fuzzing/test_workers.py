"""The same campaign on one process, on several, and on a cluster that loses a worker: the same totals."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path

import psutil
import pytest

from ddpsim import UsageError
from ddpsim.scenarios.fuzzing import workers
from ddpsim.scenarios.fuzzing.campaign import CampaignEnd, run_campaign
from ddpsim.scenarios.fuzzing.plan import EXECUTIONS, CampaignPlan
from ddpsim.scenarios.fuzzing.strategies.whole import Kind
from ddpsim.simulator.exploration.workers import Pool, WorkerBackend, Workers, connect_workers
from tests.jobs.conftest import has_ended
from tests.kit.own_programs import RACY

ROOT = Path(__file__).resolve().parents[2]
BATCHES = 3
"""One more than there are workers."""
PLAN = CampaignPlan(kinds=(Kind.PROGRAM, Kind.BROKEN_PROGRAM), executions=(BATCHES - 1) * EXECUTIONS + 1)

pytestmark = pytest.mark.tier("ci")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The totals on one process."""
    return run_campaign(PLAN, seconds=600, corpus=tmp_path_factory.mktemp("alone")).totals


@pytest.mark.tier("nightly")  # by day: what is handed out to threads, and the same batches on one process
def test_two_processes_come_to_the_same(alone, tmp_path):
    told = run_campaign(PLAN, seconds=600, workers=Workers(jobs=2), corpus=tmp_path)
    assert told.end is CampaignEnd.BUDGET
    assert told.totals == alone


def test_batches_are_handed_out_as_workers_are_free(monkeypatch):
    monkeypatch.setattr(workers, "run_batch", lambda plan, number, seconds: number)
    # Threads, as far as handing out goes, are workers as any.
    with ThreadPoolExecutor(2) as threads:
        pool = Pool(2, threads.submit)
        assert sorted(workers._run_batches(pool, PLAN, range(5), lambda: 600.0)) == [0, 1, 2, 3, 4]
        # numbers without end: those of nobody who is free are not asked for
        stream = workers._run_batches(pool, PLAN, count(), lambda: 600.0)
        assert len(set(islice(stream, 5))) == 5
        stream.close()


@pytest.mark.tier("nightly")
def test_workers_with_several_threads_run_one_batch_at_a_time(alone):
    with ThreadPoolExecutor(2) as threads:
        reports = list(workers._run_batches(Pool(2, threads.submit), PLAN, range(BATCHES), lambda: 600.0))
    assert sum(report.totals.execution_count for report in reports) == alone.execution_count


def ddpsim(folder, *words):
    """The command in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "ddpsim", "fuzz", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_keeps_what_was_found_and_leaves_no_process(tmp_path, jobs):
    (tmp_path / "own.py").write_text(RACY)
    process = ddpsim(tmp_path, "own.py:racy", "--engine", "torch", "--seconds", "600", "--jobs", jobs)
    corpus = tmp_path / ".ddpsim" / "corpus"
    until = time.monotonic() + 120
    while not list(corpus.glob("*.toml")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)  # for another process, which nobody here can schedule
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    # Where the ranks stand is printed before the summary, if a run was interrupted.
    assert re.search(r" \(interrupted(: \d batch(es)? under way dropped)?\)$", out, re.MULTILINE)
    (path,) = corpus.glob("rank_error-*.toml")
    assert f"  run     ddpsim run .ddpsim/corpus/{path.name}" in out.splitlines()
    assert out.endswith("found: 1 new failure\n")
    assert process.returncode == 130
    assert has_ended(process.pid, 20)  # joblib's own helper, too, once it has seen that we are gone


@pytest.mark.tier("nightly")
def test_a_dask_cluster_that_loses_a_worker_loses_nothing(alone, tmp_path):
    distributed = pytest.importorskip("distributed")
    told = []

    def kill_one(progress):
        if not told and progress.totals.execution_count:
            told.append(next(iter(cluster.workers.values())).pid)
            os.kill(told[0], signal.SIGKILL)

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs=50
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        on_dask = Workers(backend=WorkerBackend.DASK, cluster=cluster.scheduler_address)
        campaign = run_campaign(PLAN, seconds=300, workers=on_dask, corpus=tmp_path, on_progress=kill_one)
        pids += [worker.pid for worker in cluster.workers.values()]
    assert told
    assert campaign.end is CampaignEnd.BUDGET
    assert campaign.totals == alone
    assert not any(map(psutil.pid_exists, pids))


def test_a_cluster_that_does_not_answer_is_one_line_in_bounded_time(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("ddpsim.simulator.exploration.workers.CONNECT_SECONDS", 0.3)
    start = time.monotonic()
    with (
        pytest.raises(
            UsageError, match=r"^cluster 'tcp://127.0.0.1:1' does not answer \(.*\), expected the address of "
        ),
        connect_workers(Workers(backend=WorkerBackend.DASK, cluster="tcp://127.0.0.1:1")),
    ):
        pass
    assert time.monotonic() - start < 25


@pytest.mark.parametrize(("backend", "module"), [(WorkerBackend.DASK, "distributed"), (WorkerBackend.RAY, "ray")])
def test_an_extra_that_is_missing(backend, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    name = backend.value
    said = f"backend is '{name}', but {name} is not installed: pip install 'ddpsim[{name}]'"
    with (
        pytest.raises(UsageError, match=f"^{re.escape(said)}$"),
        connect_workers(Workers(backend=backend, cluster="127.0.0.1:8786")),
    ):
        pass
