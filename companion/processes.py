"""Work spread over processes: trainings over seeds, which do not depend on one another."""

import sys
from concurrent.futures import BrokenExecutor

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
    numbered = (delayed(_numbered)(n, function, task) for n, task in enumerate(tasks))
    jobs = max(1, min(show.jobs, len(tasks)))
    results = Parallel(jobs, return_as="generator_unordered", batch_size=1)(numbered)
    try:
        done = dict(show.progress(results, len(tasks), show.say(label)))
    except BrokenExecutor:
        message = "a worker process was killed (out of memory?); try --jobs 1"
        raise SystemExit(message) from None
    return [done[n] for n in range(len(tasks))]


def _numbered(n, function, task):
    """Results come back in any order: each brings its number."""
    return n, function(task)
