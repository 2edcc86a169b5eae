"""--dask: the same numbers from a Dask cluster as from this machine, also when a worker dies."""

import json
import os
import signal
import subprocess
import sys
import time
from companion import ROOT, Recorder, in_processes
from companion.processes import cluster

import pytest

distributed = pytest.importorskip("distributed", reason="requirements-cluster.txt not installed")

# The plain modules behind `dask scheduler` and `dask worker`; everything stays on loopback.
SCHEDULER = "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--no-dashboard"
WORKER = "distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1", "--no-dashboard"


@pytest.fixture
def dask_cluster(tmp_path):
    """Address and two workers in processes of their own, in a folder without the suite."""
    file, processes = tmp_path / "scheduler.json", []

    def start(*arguments):
        module, *flags = arguments
        command = [sys.executable, "-m", module, *flags, "--scheduler-file", str(file)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (tmp_path / f"log{len(processes)}").open("w") as log:
            started = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=log, stderr=log
            )
        processes.append(started)
        return started

    start(*SCHEDULER, "--port", "0")
    for _ in range(300):
        if file.exists():
            break
        time.sleep(0.1)
    workers = [start(*WORKER, "--name", name) for name in ("first", "second")]
    address = json.loads(file.read_text())["address"]
    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        yield address, workers, client
    for process in processes[::-1]:
        process.kill()
        process.wait()


def start(*flags):
    command = [sys.executable, str(ROOT / "05_long_range_recall.py"), "--quick", "--no-figures"]
    return subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_cluster_gives_the_same_numbers_although_a_worker_dies(dask_cluster, tmp_path):
    address, workers, client = dask_cluster
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    flags = "--part", "2", "--seeds", "3"
    assert start(*flags, "--jobs", "1", "--json", str(here)).wait(timeout=300) == 0

    spread = start(*flags, "--dask", address, "--json", str(there))
    while spread.poll() is None:
        busy = client.processing()
        if len(busy) == 2 and all(busy.values()):  # each of the two has a training in hand
            workers[0].send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    assert workers[0].wait(timeout=60) == -signal.SIGKILL
    assert spread.wait(timeout=300) == 0
    assert json.loads(here.read_text())["claims"] == json.loads(there.read_text())["claims"]
    assert len(client.scheduler_info()["workers"]) == 1


class Options:
    dask = "there"


def double(n):
    return os.getpid(), 2 * n


@pytest.mark.slow
def test_results_come_back_in_the_order_of_the_tasks_and_from_elsewhere(dask_cluster):
    address, workers, _ = dask_cluster
    with cluster(address):
        found = in_processes(Recorder(options=Options), double, range(8), ("doubling", "加倍"))
    assert [two for _, two in found] == list(range(0, 16, 2))
    assert {pid for pid, _ in found} <= {worker.pid for worker in workers}
    assert in_processes(Recorder(), double, [1], ("doubling", "加倍")) == [(os.getpid(), 2)]


@pytest.mark.slow
def test_nobody_at_the_address_is_one_line():
    nobody = "tcp://127.0.0.1:9"
    answer = pytest.raises(SystemExit, match=f"^--dask {nobody}: no Dask scheduler answers")
    with answer, cluster(nobody, patience=1):
        pass
