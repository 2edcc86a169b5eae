"""Work spread over processes, or over a cluster: trainings that do not depend on one another."""

import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from functools import cache

import cloudpickle
from joblib import Parallel, delayed


def in_processes(show, function, tasks, label):
    """[function(task) for task in tasks] in show.jobs processes; how many changes no number.

    function belongs to a script; it and the script's constants travel to the processes as they are
    now, edits included. label: what the progress bar says, ("English", "中文").
    """
    script = sys.modules[function.__module__]
    if script.__name__ != "__main__":  # a script that was imported, in a test: send it all the same
        cloudpickle.register_pickle_by_value(script)
    if getattr(show.options, "dask", None):
        results = _on_cluster(function, tasks)
    else:
        us = os.getpid()
        numbered = (delayed(_numbered)(us, n, function, task) for n, task in enumerate(tasks))
        jobs = max(1, min(show.jobs, len(tasks)))
        # A worker whose memory has grown, by oneDNN's kernel for each new length, is replaced: no
        # task is lost, so nobody needs to read of it.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        with _deaf_to_ctrl_c():
            results = Parallel(jobs, return_as="generator_unordered", batch_size=1)(numbered)
    try:
        done = dict(show.progress(results, len(tasks), show.say(label)))
    except BrokenExecutor:
        message = "a worker process was killed (out of memory?); try --jobs 1"
        raise SystemExit(message) from None
    return [done[n] for n in range(len(tasks))]


@contextmanager
def _deaf_to_ctrl_c():
    """Processes started inside never hear it, also while they import: the script ends them.

    A program inherits what is ignored. (A blocked signal would not do: joblib's own tracker of
    resources unblocks it as it starts.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _numbered(script, n, function, task):
    """Results come back in any order: each brings its number."""
    _end_with(script)
    return n, function(task)


@cache
def _end_with(script):
    """A worker process ends soon after the script that it works for, however that was killed."""

    def watch():
        while os.getppid() == script:
            time.sleep(1)
        os._exit(1)

    if os.name == "posix" and os.getpid() != script:
        threading.Thread(target=watch, daemon=True).start()


def _on_cluster(function, tasks):
    """As they come; a task whose worker is lost is run again on another one."""
    from distributed import as_completed, get_client

    def numbered(n, task):  # a local function is sent whole, not as a name to import over there
        return n, function(task)

    futures = get_client().map(numbered, range(len(tasks)), tasks, pure=False)
    for done in as_completed(futures):
        yield done.result()


@contextmanager
def cluster(address, patience=30):
    """Inside, in_processes works on the Dask cluster at that address (None: on this machine).

    A lost worker's tasks run again on another one. The workers need the same packages as here, not
    the suite itself: its modules travel along. patience: seconds to wait for the first worker.
    """
    if address is None:
        yield
        return
    try:
        from distributed import Client, KilledWorker
    except ModuleNotFoundError:
        install = f"{sys.executable} -m pip install -r requirements-cluster.txt"
        raise SystemExit(f"--dask needs more packages; run: {install}") from None
    try:
        client = Client(address, timeout=patience, set_as_default=True)
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0]
        raise SystemExit(f"--dask {address}: no Dask scheduler answers there: {why}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=patience)
            for name in ("companion", "lm_models", "farm_language", "needs"):
                if name in sys.modules:
                    cloudpickle.register_pickle_by_value(sys.modules[name])
            yield
        except TimeoutError:
            raise SystemExit(f"--dask {address}: no worker has joined that scheduler") from None
        except KilledWorker as error:
            raise SystemExit(f"--dask {address}: {error}".partition("\n")[0]) from None
