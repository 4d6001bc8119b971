"""The browser and its checks, on pages that have one fault each."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By

from foqs_lab.servers import ServerUnavailable
from foqs_lab.servers.programs import cache_folder
from tests.console.conftest import chromedriver_or_skip
from tests.support.browser import (
    NARROW,
    WIDE,
    Browser,
    Chromedriver,
    console_errors,
    faults,
    overflow,
    wait_for,
)
from tests.support.waiting import wait_until

Show = Callable[..., None]
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
STYLE = """
body { color: #222; background: #fff; margin: 0 }
.pale { color: #aaa }
.wide { width: 500px }
.box { overflow-x: auto }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #111 } }
"""
SCRIPT = """
document.getElementById('state').textContent = 'ran';
document.querySelector('button').addEventListener('click', async () => {
    const answer = await fetch('/answer').catch(error => ({text: () => 'unreachable'}));
    const made = document.createElement('p');
    made.id = 'state';
    made.textContent = await answer.text();
    document.getElementById('state').replaceWith(made);
});
"""


class Pages(ThreadingHTTPServer):
    """Serves one page, `main`, with a strict content security policy."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.main = b""

    def page(self, inside: str) -> bytes:
        head = "<title>A page</title><link rel=icon href=/icon><link rel=stylesheet href=/style>"
        button = "<h1>A page</h1><p id=state>as served</p><button>Ask</button>"
        body = f"<main>{button}{inside}</main><script src=/script></script>"
        return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>".encode()


class _Handler(BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self) -> None:
        answers = {
            "/": ("text/html", self.server.main),
            "/style": ("text/css", STYLE.encode()),
            "/script": ("text/javascript", SCRIPT.encode()),
            "/icon": ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
            "/answer": ("text/plain", b"answered"),
        }
        kind, content = answers.get(self.path, ("text/plain", b""))
        self.send_response(200 if self.path in answers else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def show(browser: Browser) -> Iterator[Show]:
    """`show("<p>...")` opens a page with this in it."""
    with Pages() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()

        def show(inside: str = "") -> None:
            server.main = server.page(inside)
            browser.get(f"http://127.0.0.1:{server.server_port}/")

        yield show
        browser.get("about:blank")
        server.shutdown()
        thread.join()


def state(browser: Browser) -> str:
    return browser.find_element(By.ID, "state").text


def style(browser: Browser, name: str) -> str:
    return browser.execute_script("return getComputedStyle(document.body)[arguments[0]]", name)


# --------------------------------------------------------------------------------------------- checks


def test_a_page_without_faults_has_none(show: Show, browser: Browser) -> None:
    show("<img src=/icon alt=''><label>Name <input></label>")
    assert (faults(browser), overflow(browser), console_errors(browser)) == ([], [], [])


def test_a_moderate_fault_is_ignored(show: Show, browser: Browser) -> None:
    show("<h4>A level is missing</h4>")
    assert [found["impact"] for found in browser.run_axe()["violations"]] == ["moderate"]
    assert faults(browser) == []


@pytest.mark.parametrize(
    ("inside", "rule"),
    [
        ("<img src=/icon>", "image-alt"),
        ("<input>", "label"),
        ("<p class=pale>Hardly to be read</p>", "color-contrast"),
    ],
)
def test_axe_finds_a_fault(show: Show, browser: Browser, inside: str, rule: str) -> None:
    """The policy of the page forbids each script but its own: axe-core runs nevertheless, and violates nothing."""
    show(inside)
    (fault,) = faults(browser)
    assert f": {rule}: " in fault
    assert inside[1:4] in fault
    assert faults(browser) == [fault]
    assert console_errors(browser) == []


def test_axe_checks_the_colours_that_are_shown(show: Show, browser: Browser) -> None:
    show("<p class=pale>Light on dark</p>")
    assert len(faults(browser)) == 1
    browser.media(prefers_color_scheme="dark")
    assert faults(browser) == []


def test_a_wide_element_overflows_a_narrow_window_alone(show: Show, browser: Browser) -> None:
    browser.view(NARROW)
    show("<div class=box><div class=wide>A</div></div><div><div class=wide id=table><b>A</b></div></div>")
    assert overflow(browser) == ["div#table.wide ends at 500 px of 360"]
    browser.view(WIDE)
    assert overflow(browser) == []


def test_text_that_cannot_be_broken_overflows(show: Show, browser: Browser) -> None:
    browser.view(NARROW)
    show(f"<p id=word>{'x' * 200}</p>")
    (found,) = overflow(browser)
    assert found.startswith("p#word ends at ")


def test_a_box_that_scrolls_does_not_overflow(show: Show, browser: Browser) -> None:
    browser.view(NARROW)
    show("<div class=box><div class=wide>A</div></div>")
    assert overflow(browser) == []


def test_a_violation_of_the_policy_is_an_error_of_the_console(show: Show, browser: Browser) -> None:
    show("<p style='color: red'>Red</p>")
    (error,) = console_errors(browser)
    assert error.startswith("security: ")
    assert "style-src 'self'" in error
    assert console_errors(browser) == []


def test_a_missing_file_and_an_exception_are_errors(show: Show, browser: Browser) -> None:
    show("<img src=/missing alt=''>")
    browser.execute_script("setTimeout(() => { throw new Error('broken') })")
    errors: list[str] = []
    wait_for(browser, lambda: errors.extend(console_errors(browser)) or len(errors) == 2, "two errors")
    assert sorted(error.partition(":")[0] for error in errors) == ["javascript", "network"]


def test_a_name_is_not_resolved(show: Show, browser: Browser) -> None:
    """Without the rules of this browser, each name below localhost is this machine."""
    show()
    browser.get(browser.current_url.replace("127.0.0.1", "localhost"))
    assert state(browser) == "ran"
    with pytest.raises(WebDriverException, match="ERR_NAME_NOT_RESOLVED"):
        browser.get(browser.current_url.replace("localhost", "other.localhost"))


# --------------------------------------------------------------------------------------------- what a page finds


def test_a_page_is_light_until_it_is_dark(show: Show, browser: Browser) -> None:
    show()
    assert style(browser, "backgroundColor") == "rgb(255, 255, 255)"
    browser.media(prefers_color_scheme="dark")
    assert style(browser, "backgroundColor") == "rgb(17, 17, 17)"
    show()
    assert style(browser, "backgroundColor") == "rgb(17, 17, 17)"


@pytest.mark.parametrize(("width", "zoom", "found"), [(NARROW, 1, 360), (WIDE, 1, 1440), (WIDE, 2, 720)])
def test_a_page_has_the_width_of_the_window(show: Show, browser: Browser, width: int, zoom: float, found: int) -> None:
    browser.view(width, zoom=zoom)
    show("<br>" * 200)
    asked = "return [innerWidth, document.documentElement.clientWidth, devicePixelRatio]"
    assert browser.execute_script(asked) == [found, found, zoom]


def test_without_scripts_the_page_is_as_it_was_served(show: Show, browser: Browser) -> None:
    show()
    assert state(browser) == "ran"
    browser.scripts(False)
    show("<input>")
    assert state(browser) == "as served"
    assert len(faults(browser)) == 1
    browser.find_element(By.TAG_NAME, "button").click()
    assert state(browser) == "as served"
    show()
    assert state(browser) == "as served"
    browser.scripts(True)
    show()
    assert state(browser) == "ran"


def test_a_replaced_element_is_waited_for(show: Show, browser: Browser) -> None:
    show()
    old = browser.find_element(By.ID, "state")
    asked = []

    def answered() -> bool:
        asked.append(1)
        if len(asked) == 1:
            browser.find_element(By.TAG_NAME, "button").click()
            wait_until(lambda: "answered" in browser.page_source)
            return old.is_displayed()
        return state(browser) == "answered"

    assert wait_for(browser, answered)
    assert len(asked) == 2


def test_a_state_that_does_not_come_shows_the_page(show: Show, browser: Browser) -> None:
    show()
    with pytest.raises(AssertionError, match=r"a table; http://127.0.0.1:\d+/ has .*as served|ran"):
        wait_for(browser, lambda: browser.find_elements(By.TAG_NAME, "table"), "a table", timeout_s=0.0)


def test_without_a_network_a_request_fails(show: Show, browser: Browser) -> None:
    show()
    browser.offline(True)
    browser.find_element(By.TAG_NAME, "button").click()
    wait_for(browser, lambda: state(browser) == "unreachable")
    browser.offline(False)
    show()
    browser.find_element(By.TAG_NAME, "button").click()
    wait_for(browser, lambda: state(browser) == "answered")


# --------------------------------------------------------------------------------------------- processes


def test_a_second_browser_shares_nothing(show: Show, browser: Browser, chromedriver: Chromedriver) -> None:
    show()
    browser.add_cookie({"name": "user", "value": "first"})
    browser.execute_script("localStorage.user = 'first'")
    with chromedriver.browser() as second:
        second.get(browser.current_url)
        assert second.get_cookies() == []
        assert second.execute_script("return localStorage.user") is None
    assert browser.execute_script("return [document.cookie, localStorage.user]") == ["user=first", "first"]


KILLED = """
import sys
from tests.support.browser import Chromedriver
driver = Chromedriver().start()
browser = driver.browser()
browser.get("data:text/html,A page")
print(driver.pid, driver._directory, flush=True)
sys.stdin.read()
"""


def processes(session: int) -> list[str]:
    """Return the processes of a session of the kernel that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = path.read_text().partition("(")[2].rpartition(") ")
        except OSError:  # it has ended
            continue
        state, _, _, sid = fields.split()[:4]
        if int(sid) == session and state not in "ZX":
            found.append(name)
    return found


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_no_process_outlives_a_worker_that_is_ended(chromedriver: Chromedriver, end: str) -> None:
    argv = [sys.executable, "-P", "-c", KILLED]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            session, folder = worker.stdout.readline().split()
            assert {"chromedriver", "chromium"} <= set(processes(int(session)))
        finally:
            getattr(worker, end)()
    wait_until(lambda: not processes(int(session)), lambda: processes(int(session)))
    shutil.rmtree(folder)


@pytest.mark.process
def test_no_process_and_no_file_outlive_their_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder().parent))  # axe-core is there
    monkeypatch.setenv("HOME", str(tmp_path))
    with chromedriver_or_skip() as driver:
        session, folder = driver.pid, driver._directory
        driver.browser().get("data:text/html,A page")
        assert "chromium" in processes(session)
    wait_until(lambda: not processes(session), lambda: processes(session))
    assert folder is not None
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [("PATH", "no chromium found: script/apt chromium"), ("XDG_CACHE_HOME", "no axe-core found: script/axe")],
)
def test_a_missing_program_skips_a_test_and_fails_it_in_ci(
    monkeypatch: pytest.MonkeyPatch, chromedriver: Chromedriver, tmp_path: Path, place: str, reason: str
) -> None:
    monkeypatch.setenv(place, str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=reason):
        chromedriver_or_skip()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"required in CI: {reason}"):
        chromedriver_or_skip()


def test_a_folder_with_a_long_path_is_refused(chromedriver: Chromedriver, tmp_path: Path) -> None:
    """chromium would fail after a minute, without a reason."""
    parent = tmp_path / ("x" * 60)
    parent.mkdir()
    with pytest.raises(ServerUnavailable, match="set TMPDIR to a shorter path"):
        Chromedriver(parent=parent).start()
    assert list(parent.iterdir()) == []
