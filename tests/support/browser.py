"""Pages in Debian's chromium, without a screen, driven by selenium; and checks of the page that it shows.

A `Chromedriver` serves a worker's tests. Each of its browsers is a process with an empty profile: cookies, storage
and cache end with it. A browser resolves no name, so it reaches this machine alone.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import ChromeOptions, Remote
from selenium.webdriver.chrome.remote_connection import ChromeRemoteConnection
from selenium.webdriver.common.proxy import Proxy, ProxyType
from selenium.webdriver.remote.client_config import ClientConfig

from foqs_lab.servers import ServerUnavailable
from foqs_lab.servers.process import PrivateServer
from foqs_lab.servers.programs import cache_folder, version_of
from tests.support.waiting import TIMEOUT_S, wait_until

NARROW, WIDE = 360, 1440
"""Widths in CSS pixels: a small telephone, and a desk."""
_HEIGHT = 900
_LONGEST_FOLDER = 107 - len("/org.chromium.Chromium.XXXXXX/SingletonSocket")  # what Linux allows for a socket's path
_OPTIONS = (
    "--headless=new",
    "--disable-dev-shm-usage",  # it is small in a container
    "--remote-debugging-pipe",  # chromium ends when chromedriver has ended, also if that was killed
    "--hide-scrollbars",  # as on a telephone: a page has the whole width
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--disable-component-update",
    "--disable-domain-reliability",
)  # chromedriver adds those against background traffic, a first run and throttled timers
T = TypeVar("T")


class Chromedriver(PrivateServer):
    """The process that starts browsers and passes commands to them. Its end ends them all."""

    name = "chromedriver"
    question = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    answer = (b"HTTP/1.1 200",)

    def prepare(self, directory: Path) -> None:
        if len(str(directory)) > _LONGEST_FOLDER:
            raise ServerUnavailable(f"{directory} is too long for chromium's socket: set TMPDIR to a shorter path")
        self._chromium, self._driver = _program("chromium"), _program("chromedriver")
        self.axe = _axe().read_text("utf-8")
        self.version = f"chromium {version_of(self._driver)}"

    def argv(self, directory: Path) -> Sequence[str]:
        # chromium writes below the home as well as into its profile.
        homes = (f"{name}={directory}" for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"))
        return ["env", *homes, self._driver, f"--port={self.port}"]

    def stop(self) -> None:
        """End it with its browsers: one that ends by itself, later, would write its profile again."""
        if self._process is not None and self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        super().stop()

    def browser(self) -> Browser:
        """Start one, `WIDE` and with a light theme. A context manager that ends it."""
        options = ChromeOptions()
        options.binary_location = self._chromium
        for option in (*_OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        return Browser(f"http://127.0.0.1:{self.port}", options, self.axe)


class Browser(Remote):
    """One tab, with the methods of selenium's drivers."""

    def __init__(self, address: str, options: ChromeOptions, axe: str) -> None:
        direct = Proxy({"proxyType": ProxyType.DIRECT})
        # A connection for each command: a browser that waits for its test holds none open.
        config = ClientConfig(address, keep_alive=False, proxy=direct, timeout=int(2 * TIMEOUT_S))
        super().__init__(ChromeRemoteConnection(address, client_config=config), options=options)
        self._axe = axe
        self._scripts = True
        self.set_page_load_timeout(TIMEOUT_S)
        self.set_script_timeout(TIMEOUT_S)
        self.view(WIDE)

    def cdp(self, command: str, **parameters: Any) -> Any:
        """Send a command of the Chrome DevTools Protocol, and return its result."""
        return self.execute("executeCdpCommand", {"cmd": command, "params": parameters})["value"]

    def view(self, width: int, height: int = _HEIGHT, *, zoom: float = 1.0) -> None:
        """Give the window a size in CSS pixels at 100 %. At `zoom` 2.0, 200 %, the page has half of them."""
        size = {"width": round(width / zoom), "height": round(height / zoom)}
        self.cdp("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=zoom, mobile=False)

    def media(self, **features: str) -> None:
        """Set the media features that CSS asks for, and no further ones: `media(prefers_color_scheme="dark")`."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.cdp("Emulation.setEmulatedMedia", features=named)

    def scripts(self, run: bool) -> None:
        """Say whether scripts of pages run. An open page keeps the scripts that have begun."""
        self.cdp("Emulation.setScriptExecutionDisabled", value=not run)
        self._scripts = run

    def offline(self, away: bool) -> None:
        """Say whether each request of a page fails as without a network."""
        self.cdp("Network.enable")
        self.cdp(
            "Network.emulateNetworkConditions", offline=away, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    def run_axe(self) -> Any:
        """Return what axe-core finds in the page: its `violations`. The page's content security policy has no say."""
        if not self._scripts:
            self.cdp("Emulation.setScriptExecutionDisabled", value=False)
        try:
            if not self.execute_script("return 'axe' in window"):
                self.execute_script(self._axe)
            return self.execute_async_script(_RUN_AXE)
        finally:
            if not self._scripts:
                self.cdp("Emulation.setScriptExecutionDisabled", value=True)


def faults(browser: Browser) -> list[str]:
    """Return the page's faults of accessibility that axe-core calls serious or critical, one text for each element."""
    answer = browser.run_axe()
    if "error" in answer:
        raise AssertionError(f"axe-core failed on {browser.current_url}: {answer['error']}")
    return [
        f"{node['impact']}: {found['id']}: {found['help']}: {node['html']}: {node['failureSummary']}"
        for found in answer["violations"]
        for node in found["nodes"]
        if node["impact"] in ("serious", "critical")
    ]


def overflow(browser: Browser) -> list[str]:
    """Return what makes the page scroll sideways: the innermost elements that end beyond the window. What scrolls
    inside an element of its own is none."""
    return list(browser.execute_script(_OVERFLOW))


def ids_of_several(browser: Browser) -> list[str]:
    """Return the ids that more than one element of the page has: labels and scripts find the first of these only."""
    return list(browser.execute_script(_IDS))


def console_errors(browser: Browser) -> list[str]:
    """Return the errors that the console got since the last call: violations of the content security policy,
    exceptions, requests that failed. Wait for the page's state before: a script may still run."""
    entries = browser.execute("getLog", {"type": "browser"})["value"]
    return [f"{entry['source']}: {entry['message']}" for entry in entries if entry["level"] == "SEVERE"]


def wait_for(browser: Browser, condition: Callable[[], T], what: str = "", timeout_s: float = TIMEOUT_S) -> T:
    """Do as `wait_until`. An element that is missing, or that was replaced during the call, is not there yet."""

    def ask() -> T | None:
        try:
            return condition()
        except (NoSuchElementException, StaleElementReferenceException):
            return None

    def shown() -> str:
        return f"{what or 'a state of the page'}; {browser.current_url} has {browser.page_source[-2_000:]}"

    found = wait_until(ask, shown, timeout_s)
    assert found is not None
    return found


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ServerUnavailable(f"no {name} found: script/apt chromium chromium-driver")
    return found


def _axe() -> Path:
    found = sorted(cache_folder().glob("axe-core-*/axe.min.js"))
    if not found:
        raise ServerUnavailable("no axe-core found: script/axe")
    return found[-1]


_IDS = """
const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
return [...new Set(ids.filter((id, at) => ids.indexOf(id) !== at))];
"""
_RUN_AXE = """
const done = arguments[0];
axe.run(document, {resultTypes: ['violations']}).then(
    ({violations}) => done({violations}), error => done({error: String(error)}));
"""
_OVERFLOW = """
const width = document.documentElement.clientWidth, whole = document.scrollingElement.scrollWidth;
if (whole <= width) return [];
const named = one => one.localName + (one.id && '#' + one.id) + [...one.classList].map(name => '.' + name).join('');
const end = one => {
    const box = one.getBoundingClientRect();
    const inner = getComputedStyle(one).overflowX === 'visible' ? one.scrollWidth : 0;
    return Math.round(box.left + scrollX + Math.max(box.width, inner));
};
const clipped = one => {
    for (let above = one.parentElement; above && above !== document.body; above = above.parentElement)
        if (getComputedStyle(above).overflowX !== 'visible') return true;
    return false;
};
const beyond = [...document.body.querySelectorAll('*')].filter(one => end(one) > width && !clipped(one));
const innermost = beyond.filter(one => !beyond.some(other => other !== one && one.contains(other)));
return innermost.length
    ? innermost.map(one => `${named(one)} ends at ${end(one)} px of ${width}`)
    : [`the page has ${whole} px of ${width}`];
"""
