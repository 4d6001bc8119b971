"""A browser for tests of pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foqs_lab.servers import ServerUnavailable
from tests.api.hosts import HostProcess, until
from tests.conftest import required
from tests.support.browser import Browser, Chromedriver


def chromedriver_or_skip() -> Chromedriver:
    """Skips the test, or fails it in CI, where chromium, its driver or axe-core is missing."""
    try:
        return Chromedriver().start()
    except ServerUnavailable as error:
        unavailable = error
    if required():
        pytest.fail(f"required in CI: {unavailable}", pytrace=False)
    pytest.skip(unavailable.reason)


@pytest.fixture(scope="session")
def chromedriver() -> Iterator[Chromedriver]:
    """The session's. `chromedriver.browser()` starts a second browser, for another user."""
    with chromedriver_or_skip() as driver:
        yield driver


@pytest.fixture
def browser(chromedriver: Chromedriver) -> Iterator[Browser]:
    """The test's own, with an empty profile."""
    with chromedriver.browser() as browser:
        yield browser


@pytest.fixture
def start_console(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`start_console(address, *options)` runs `foqs console` as a process, and returns its URL."""
    started: list[HostProcess] = []

    def start(address: str, *options: str) -> str:
        args = ["console", "--address", address, "--port", "0", *options]
        process = HostProcess(tmp_path / f"console-{len(started)}", args)
        started.append(process)
        until(lambda: bool(process.lines) or not process.running, "the address of the console")
        assert process.lines, process.said()
        return process.lines[0].removeprefix("foqs console on ")

    yield start
    for process in started:
        process.kill()
