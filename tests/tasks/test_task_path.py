"""What a worker enters for a task that does nothing: a ratchet against work for features that the task does not use.

Lower a ceiling with each change that shortens the path. A change that needs a higher one makes every task slower.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import foqs
from foqs import App
from foqs.testing import server
from tests.client.real_server import PATIENT_MS

PRODUCT = f"{Path(foqs.__file__).parent}/"
CEILINGS = {"coroutine": 56, "function": 69}
"""The most calls of the product's functions, in the event loop, for each more task of a request."""
FEW, MANY = 32, 64

app = App(timeout_ms=PATIENT_MS)


@app.task(topic="coroutines")
async def coroutine(number: int) -> None: ...


@app.task(topic="functions")
def function(number: int) -> None: ...


def calls_of(task: Any, tasks: int) -> int:
    found = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(PRODUCT)

    app.enqueue_many([task.message(number) for number in range(tasks)])
    worker = app.worker([task.default["topic"]], concurrency=MANY)
    sys.setprofile(note)
    try:
        assert worker.run_until_empty() == tasks
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.threads
@pytest.mark.parametrize("task", [coroutine, function], ids=CEILINGS)
def test_a_task_takes_the_short_path(task: Any) -> None:
    with server() as running, app.test_mode(running):
        calls_of(task, FEW)  # imports, and compiles what checks the arguments
        few, many = calls_of(task, FEW), calls_of(task, MANY)
    assert (many - few) / (MANY - FEW) <= CEILINGS[task.name]
