"""A browser for tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs_lab.servers import ServerUnavailable
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
