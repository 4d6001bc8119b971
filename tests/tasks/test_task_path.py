"""What a worker enters for a task that does nothing: a ratchet against work for features that the task does not use.

Lower a ceiling with each change that shortens the path. A change that needs a higher one makes every task slower.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import foqs
from foqs import App
from foqs.client._async.job import Held
from foqs.testing import server
from tests.client.real_server import PATIENT_MS

PRODUCT = f"{Path(foqs.__file__).parent}/"
CEILINGS = {"coroutine": 58, "function": 69}
"""The most calls of the product's functions, in the event loop, for each task. A step of a coroutine is a call."""
TASKS = 256
"""All at work at the same time. Requests for them, and waits, call a function much less often than this number."""
RUNS = 3

app = App(timeout_ms=PATIENT_MS)


@app.task(topic="coroutines")
async def coroutine(number: int) -> None: ...


@app.task(topic="functions")
def function(number: int) -> None: ...


def calls_of(task: Any, tasks: int) -> Counter[tuple[str, str]]:
    """Return how often a worker called each function of the product until `tasks` tasks were done."""
    found: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT):
            found[code.co_filename, code.co_qualname] += 1

    app.enqueue_many([task.message(number) for number in range(tasks)])
    worker = app.worker([task.default["topic"]], concurrency=TASKS)
    gc.collect()  # places of workers that ended
    sys.setprofile(note)
    try:
        assert worker.run_until_empty() == tasks
    finally:
        sys.setprofile(None)
    return found


def calls_for_each(task: Any) -> Counter[str]:
    """Return the calls of each function for a task. The number of requests, polls and waits depends on the machine's
    speed; it is far from half the number of tasks, and so it rounds to nothing."""
    with server() as running, app.test_mode(running):
        calls_of(task, 1)  # imports, and compiles what checks the arguments
        none = calls_of(task, 0)
        runs = [calls_of(task, TASKS) for _ in range(RUNS)]
    found: Counter[str] = Counter()
    for function in runs[0]:
        found[function[1]] += round((min(run[function] for run in runs) - none[function]) / TASKS)
    return +found


@pytest.mark.threads
@pytest.mark.parametrize("task", [coroutine, function], ids=CEILINGS)
def test_a_task_takes_the_short_path(task: Any) -> None:
    found = calls_for_each(task)
    assert found.total() <= CEILINGS[task.name], found


@pytest.mark.threads
def test_one_more_call_for_each_task_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = Held.usable
    monkeypatch.setattr(Held, "usable", lambda held, now: usable(held, now) and not held.at_most_once)
    assert calls_for_each(coroutine).total() == CEILINGS["coroutine"] + 1
