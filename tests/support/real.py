"""What a test starts outside its own thread: processes, threads and network connections.

The order of events of such a test is not fixed, so it carries a marker of `MARKERS`; one without a marker fails.
tests/support/reruns.py asks here too: a marked test (its folder may mark it) that starts nothing is not rerun.
"""

import multiprocessing.process
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

MARKERS = frozenset({"server", "process", "spark", "threads"})
_ROOT = Path(__file__).resolve().parents[1]
_STARTED = pytest.StashKey[list[str]]()
_PROPERTY = "real"  # the one part of an item that its reports carry through xdist

_running: pytest.Item | None = None


def is_real(item: pytest.Item) -> bool:
    """True if a run of `item` depends on more than its own thread. Known after the run, but for servers and Spark."""
    return any(item.get_closest_marker(name) for name in ("server", "spark")) or bool(item.stash.get(_STARTED, []))


def was_real(report: pytest.TestReport) -> bool:
    return (_PROPERTY, True) in report.user_properties


def _watch(owner: Any, name: str, what: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        # The threads of an earlier test may still be ending; the main thread is this test's alone.
        item = _running if threading.current_thread() is threading.main_thread() else None
        if item is not None and not (what == "a socket" and args[0].family == socket.AF_UNIX):
            _note(item, what)
        return original(*args, **kwargs)

    setattr(owner, name, watched)


def _note(item: pytest.Item, what: str) -> None:
    frame = sys._getframe(2)
    while frame.f_back is not None and not _is_ours(frame.f_code.co_filename, item):
        frame = frame.f_back
    if not item.stash[_STARTED]:
        item.user_properties.append((_PROPERTY, True))
    item.stash[_STARTED].append(f"{what} ({os.path.relpath(frame.f_code.co_filename, _ROOT)}:{frame.f_lineno})")


def _is_ours(path: str, item: pytest.Item) -> bool:
    return path == str(item.path) or (path.startswith(str(_ROOT)) and "/.venv/" not in path and path != __file__)


def watch(config: pytest.Config) -> None:
    """Begin to watch the tests of this process. A second call changes nothing."""
    plugins = config.pluginmanager
    if plugins.has_plugin(__name__):
        return
    plugins.register(sys.modules[__name__], __name__)
    for owner, name, what in (
        (subprocess.Popen, "__init__", "a process"),
        (multiprocessing.process.BaseProcess, "start", "a process"),
        (os, "fork", "a process"),
        (os, "posix_spawn", "a process"),
        (threading.Thread, "start", "a thread"),
        (socket.socket, "bind", "a socket"),
        (socket.socket, "connect", "a socket"),
    ):
        _watch(owner, name, what)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around every rerun of the item
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _running  # noqa: PLW0603
    item.stash[_STARTED] = []
    if any(item.get_closest_marker(name) for name in ("server", "spark")):
        item.user_properties.append((_PROPERTY, True))
    _running = item
    try:
        return (yield)
    finally:
        _running = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    started = item.stash[_STARTED]
    if started and not any(item.get_closest_marker(name) for name in MARKERS):
        pytest.fail(
            f"the test starts {started[0]} and has no marker: mark it `process` if it starts a process, "
            "`threads` if it starts a thread or uses a socket (docs/why/reliability.md, Markers and reruns)",
            pytrace=False,
        )
    return result
