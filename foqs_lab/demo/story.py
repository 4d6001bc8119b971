"""From the first file to the comparison."""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from foqs.client import Client, FoqsError
from foqs_lab.demo.crew import Crew, Host
from foqs_lab.demo.errors import DemoFailed
from foqs_lab.demo.files import Source, find, library, plain_loop
from foqs_lab.demo.flow import Flow
from foqs_lab.demo.outcome import Outcome, Queued
from foqs_lab.demo.screen import Screen
from foqs_lab.demo.worker import NAMESPACE

_CALL_MS = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """`workers` processes; at most `files` files (None: all); `keep` leaves shards and logs where they are."""

    workers: int
    files: int | None = None
    keep: bool = False


def run(plan: Plan, screen: Screen) -> Outcome:
    """Runs the demo; whatever happens, every process it started has ended and its folder is gone after it.

    Raises DemoFailed when it cannot be carried out, and the client's errors. What the outcome's `problems`
    are is for the caller to ask.
    """
    root = library()
    sources = find(root, plan.files)
    if not sources:
        raise DemoFailed(f"there are no .py files in {root}")
    folder = Path(tempfile.mkdtemp(prefix="foqs-demo-"))
    try:
        queued = _through_foqs(plan, root, sources, folder, screen)
    finally:
        if plan.keep:
            screen.say(f"shards and logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    with screen.phase("the same in a plain loop", len(sources)) as done:
        started = time.monotonic()
        plain = plain_loop(root, [source.name for source in sources], done)
        plain_seconds = time.monotonic() - started
    return Outcome(f"Python {platform.python_version()}", plan.workers, queued, plain, plain_seconds)


def _through_foqs(plan: Plan, root: Path, sources: Sequence[Source], folder: Path, screen: Screen) -> Queued:
    with ExitStack() as stack:
        host = Host(folder)
        stack.callback(host.kill)  # does nothing to one that has stopped
        address = host.wait_address()
        screen.say(f"a host listens on {address}, its SQLite shards are in a temporary folder")
        client = stack.enter_context(Client(address, NAMESPACE, timeout_ms=_CALL_MS))
        crew = Crew(address, root, folder)
        stack.callback(crew.kill)
        flow = Flow(client, crew, screen)
        try:
            started = time.monotonic()
            told_to_fail = flow.enqueue(sources)
            for _ in range(plan.workers):
                crew.add()
            flow.collect(len(sources))
            seconds = time.monotonic() - started
            crew.stop()
            left = flow.left()
        except (FoqsError, DemoFailed):
            host.check()  # that it is gone says more
            raise
        client.close()
        host.stop()
    return Queued(flow.tally, seconds, told_to_fail, flow.killed, flow.result_waits_ms, left)
