"""A user of the console in chromium, and a console whose clock a test moves."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from threading import Thread
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
from selenium.common.exceptions import ElementNotInteractableException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from foqs.cli.console_process import connector
from foqs.client import Client
from foqs.console.app import Console
from foqs.console.guard import names_of
from foqs.console.options import Options
from foqs.testing import Server
from tests.support.browser import Browser, Chromedriver, console_errors, wait_for
from tests.support.waiting import wait_until

_marks = count()


class LiveConsole:
    """A console that listens, in a thread of the test. A context manager. `late_s`: how far its clock is ahead."""

    def __init__(self, address: str, **options: Any) -> None:
        self._options = Options(address, names_of("127.0.0.1", ()), private=True, **options)
        self.late_s = 0.0
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        listening = socket.create_server(("127.0.0.1", self._port))
        self._port = listening.getsockname()[1]
        console = Console(self._options, connector(self._options.address, None), lambda: monotonic() + self.late_s)
        config = uvicorn.Config(
            console.app, log_config=None, access_log=False, interface="asgi3", lifespan="on",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=[[listening]])
        self._thread.start()
        wait_until(lambda: self._server.started, "the console")

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> LiveConsole:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class User:
    """A user in a namespace, "" for the default one. `css` selects an element, which the page may get a moment later,
    and which a refresh of the page may replace."""

    def __init__(self, browser: Browser, url: str, ns: str = "") -> None:
        self.browser, self.url, self.ns = browser, url, ns
        self._mark = 0

    def open(self, path: str = "/", **query: str) -> None:
        fields = {"ns": self.ns, **query} if self.ns else query
        mark = "&" if "?" in path else "?"
        self.browser.get(f"{self.url}{path}{mark}{urlencode(fields)}")

    def find(self, css: str) -> WebElement:
        return wait_for(self.browser, lambda: self.browser.find_element(By.CSS_SELECTOR, css), css)

    def has(self, css: str) -> bool:
        return bool(self.browser.find_elements(By.CSS_SELECTOR, css))

    def text(self, css: str) -> str:
        return wait_for(self.browser, lambda: [self.find(css).text], css)[0]

    def texts(self, css: str) -> list[str]:
        def read() -> list[list[str]]:
            return [[one.text for one in self.browser.find_elements(By.CSS_SELECTOR, css)]]

        return wait_for(self.browser, read, css)[0]

    @property
    def title(self) -> str:
        return self.text("h1")

    @property
    def said(self) -> str:
        """What the page says about the last change, or about an error."""
        return "\n".join(self.texts("#main > .notice:not(#stale), [role=alert]"))

    def press(self, css: str) -> None:
        """Click on what leads to another page, and wait for that."""
        self.mark()
        self.click(css)
        self.arrive()

    def click(self, css: str) -> None:
        def click() -> bool:
            with suppress(ElementNotInteractableException):  # not yet
                self.browser.find_element(By.CSS_SELECTOR, css).click()
                return True
            return False

        wait_for(self.browser, click, css)

    def back(self) -> None:
        """Go to the page before, which the browser may still have."""
        self.mark()
        self.browser.back()
        self.arrive()

    def mark(self) -> None:
        """Remember the page that is shown, for `arrive`."""
        self._mark = next(_marks)
        self.browser.execute_script("window.mark = arguments[0]", self._mark)

    def arrive(self) -> None:
        """Wait for another page than that of `mark`."""

        def is_there() -> bool:
            with suppress(WebDriverException):  # the page goes away during the call
                return bool(self.browser.execute_script(_THERE, self._mark))
            return False

        wait_for(self.browser, is_there, "another page")

    def unfold(self, css: str) -> None:
        """Open a <details> element."""
        if self.find(css).get_attribute("open") is None:
            self.click(f"{css} > summary")

    def fill(self, **fields: str) -> None:
        """Type texts into the fields with these names, which one form of the page has."""
        for name, text in fields.items():
            self.type(f"[name={name}]:not([type=hidden])", text)

    def type(self, css: str, text: str) -> None:
        def type_() -> bool:
            field = self.browser.find_element(By.CSS_SELECTOR, css)
            if field.tag_name == "select":
                Select(field).select_by_visible_text(text)
            else:
                field.clear()
                field.send_keys(text)
            return True

        wait_for(self.browser, type_, css)

    def confirm(self, typed: str = "") -> None:
        """Answer the question that a change asks first."""
        if typed:
            self.type("#typed", typed)
        self.press("main form button.danger")

    def rows(self, table: str) -> list[list[str]]:
        """Return the texts of the cells of a table."""
        self.find(f"#{table}")
        return list(self.browser.execute_script(_ROWS, table))


_THERE = """
return window.mark !== arguments[0] && document.readyState === 'complete' && !document.documentElement.hidden;
"""
_ROWS = """
return [...document.getElementById(arguments[0]).querySelectorAll('tbody tr')].map(
    row => [...row.cells].map(cell => cell.innerText.trim()));
"""


@pytest.fixture(scope="module")
def window(chromedriver: Chromedriver) -> Iterator[Browser]:
    """A browser for the tests of a module."""
    with chromedriver.browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def console(service: Server) -> Iterator[LiveConsole]:
    """A console of the module's service."""
    with LiveConsole(service.address) as made:
        yield made


@pytest.fixture
def user(window: Browser, console: LiveConsole, client: Client) -> Iterator[User]:
    """A user in the namespace of the test's client. No script of a page may fail."""
    yield User(window, console.url, client.namespace)
    assert [error for error in console_errors(window) if not error.startswith("network:")] == []
