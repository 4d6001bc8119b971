"""The console in a browser: a real `foqs console` of a real service."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from foqs.client import Client, ItemSpec
from foqs.testing import Server, server
from tests.console.rig import client, service
from tests.support.browser import NARROW, WIDE, Browser, console_errors, faults, ids_of_several, overflow, wait_for

__all__ = ["client", "service"]  # fixtures

PATHS = (
    "/",
    "/topics",
    "/topics?part=mail&order=oldest",
    "/topics/mail",
    "/topics/none-yet",
    "/items",
    "/items?topic=mail",
    "/items?topic=mail&header=kind%3Dnone",
    "/items?topic=",
    "/items/ITEM",
    "/items/ITEM?payload=json",
    "/items/1",
    "/items?topic=many&batch=BATCH",
    "/batch/BATCH",
    "/order-key?topic=ordered&key=<b>customer</b>",
    "/order-key?topic=ordered&key=LONG",
    "/order-key?topic=ordered&key=none",
    "/dead",
    "/dead?topic=mail.dlq",
    "/schedules",
    "/schedules/edit?name=nightly",
    "/push",
    "/push/shop",
    "/push/LONG",
    "/push/none",
    "/throttles",
    "/consumers",
    "/hooks",
    "/hooks/route",
    "/settings",
    "/settings/entry?key=topic.mail",
    "/hosts",
    "/changes",
    "/jobs",
    "/no-page",
    "/login",
)
NOT_FOUND = ("/no-page", "/items/1", "/order-key?topic=ordered&key=none", "/push/none")
LONG = "n" * 200


@pytest.fixture
def url(service: Server, start_console: Callable[..., str]) -> str:
    return start_console(service.address)


@pytest.fixture
def paths(client: Client, service: Server) -> list[str]:
    """Pages of a service that has something for each of them."""
    client.put_settings(
        {
            "topic.mail": json.dumps({"max_attempts": 2, "fair": {"weights": {"acme": 3}}}),
            "topic.paused": json.dumps({"paused": True, "closed": True}),
            "throttle.smtp": json.dumps({"per_second": 2, "burst": 2}),
            "throttle.gpu": json.dumps({"concurrency": 1, "shadow": True}),
            "schedule.nightly": json.dumps({"cron": "0 3 * * *", "timezone": "Europe/Berlin", "topic": "report"}),
            "push.shop": json.dumps(
                {"topic": "mail", "url": "https://hooks.example.com/" + "in/" * 200, "secrets": ["a"]}
            ),
            f"push.{LONG}": json.dumps(
                {"topic": "paused", "url": "https://hooks.example.com/", "headers": {"x" * 100: "{secret:a}", "y": "z"}}
            ),
            "script.route": "function on_enqueue(item)\nend\n",
            "topic.routed": json.dumps({"hooks": {"on_enqueue": "route"}}),
        }
    )
    for tenant in ("acme", "globex", "<b>&amp;"):
        for number in range(3):
            client.enqueue("mail", b"{}", fairness_key=tenant, priority=number, headers={"kind": "a" * 60})
    for number in range(3):
        client.enqueue("mail", b'{"to": "ada"}', fairness_key="limited", throttle_keys=["smtp", "gpu"], priority=number)
    taken = client.dequeue("mail", count=5, worker="host-3:4711")
    for item in taken[:3]:
        client.nack(item, failed=True, reason="SMTP 451: " + "try again later, " * 8)
    client.nack(taken[3], reject=True, reason="ValueError: " + "x" * 300)
    client.enqueue("m" * 200, b"x", delay_ms=60_000)
    for key in ("<b>customer</b>", LONG):
        client.enqueue_many([ItemSpec("ordered", b"x", order_key=key)] * 5)
    for item in client.dequeue("ordered", count=2, worker="host-4:" + "w" * 100, lease_ms=600_000):
        if item.order_key == LONG:
            client.nack(item, failed=True, reason="SMTP 451: " + "y" * 300)
    batch = client.create_batch(on_end=ItemSpec("report", b"x"))
    client.enqueue_many([ItemSpec("many", b"x", batch=batch) for _ in range(20)])
    for item in client.dequeue("many", count=9):
        client.ack(item)
    for item in client.dequeue("many", count=4):
        client.nack(item, reject=True, reason="in vain")
    client.close_batch(batch)
    service.advance(minutes=1)
    return [path.replace("ITEM", str(taken[4].id)).replace("BATCH", str(batch)).replace("LONG", LONG) for path in PATHS]


def text(browser: Browser, css: str) -> str:
    return wait_for(browser, lambda: browser.find_element(By.CSS_SELECTOR, css).text, css)


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_pages_have_no_fault(browser: Browser, url: str, paths: list[str], width: int, mode: str) -> None:
    browser.view(width)
    browser.media(prefers_color_scheme=mode)
    wrong = []
    for path in paths:
        browser.get(url + path)
        text(browser, "h1")
        found = [*faults(browser), *overflow(browser), *ids_of_several(browser)]
        found += [error for error in console_errors(browser) if path not in NOT_FOUND or "404" not in error]
        wrong += [f"{path}: {one}" for one in found]
    assert not wrong, "\n".join(wrong)


def test_pages_fit_at_200_percent(browser: Browser, url: str, paths: list[str]) -> None:
    browser.view(WIDE, zoom=2.0)
    wrong = []
    for path in paths:
        browser.get(url + path)
        text(browser, "h1")
        wrong += [f"{path}: {one}" for one in overflow(browser)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("paths")
def test_pages_are_read_without_scripts(browser: Browser, url: str) -> None:
    browser.scripts(False)
    browser.get(f"{url}/topics")
    browser.find_element(By.LINK_TEXT, "mail").click()
    assert text(browser, "h1") == "Topic mail"
    assert not browser.find_element(By.ID, "live-switch").is_displayed()
    browser.find_element(By.XPATH, "//button[.='Pause']").click()
    assert "paused" in text(browser, ".notice.ok")


def test_a_page_follows_the_service_and_keeps_the_focus(browser: Browser, url: str, client: Client) -> None:
    client.enqueue("mail", b"x")
    browser.get(f"{url}/topics")
    ready = "#topics tbody td:nth-child(2)"
    assert text(browser, ready) == "1"
    browser.execute_script("document.getElementById('topics').focus(); window.kept = true")
    client.enqueue("mail", b"x")
    wait_for(browser, lambda: browser.find_element(By.CSS_SELECTOR, ready).text == "2", "the new count")
    assert browser.execute_script("return document.activeElement.id") == "topics"
    assert browser.execute_script("return window.kept"), "the page was loaded again"
    assert console_errors(browser) == []


def test_one_switch_stops_the_refreshing(browser: Browser, url: str, client: Client) -> None:
    client.enqueue("mail", b"x")
    browser.get(f"{url}/topics")
    switch = browser.find_element(By.ID, "live-switch")
    switch.click()
    assert switch.get_attribute("aria-pressed") == "false"
    browser.get(f"{url}/topics/mail")
    assert browser.find_element(By.ID, "live-switch").get_attribute("aria-pressed") == "false", "it is kept"
    browser.execute_script("window.asked = 0; document.body.addEventListener('htmx:configRequest', () => asked++)")
    browser.set_script_timeout(20)
    browser.execute_async_script("setTimeout(arguments[0], 6000)")  # longer than the pause between two requests
    assert browser.execute_script("return asked") == 0


def test_keys_open_pages_and_help(browser: Browser, url: str) -> None:
    browser.get(url)
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("?")
    assert text(browser, "#help[open] h2") == "Keys"
    body.send_keys(Keys.ESCAPE)
    wait_for(browser, lambda: not browser.find_elements(By.CSS_SELECTOR, "#help[open]"), "the end of the help")
    body.send_keys("gt")
    wait_for(browser, lambda: browser.current_url.endswith("/topics"), "the page of topics")
    browser.find_element(By.TAG_NAME, "body").send_keys("/")
    assert browser.switch_to.active_element.get_attribute("id") == "part"
    browser.switch_to.active_element.send_keys("gt?")
    assert browser.switch_to.active_element.get_attribute("value") == "gt?", "keys are text in a field"


def test_a_lost_service_is_said_and_comes_back(browser: Browser, start_console: Callable[..., str]) -> None:
    with server() as running:
        url = start_console(running.address)
        browser.get(f"{url}/topics")
        text(browser, "h1")
    assert "The service does not answer since" in text(browser, "#stale:not([hidden])")
    browser.get(f"{url}/topics")
    assert text(browser, "h1") == "The service does not answer"


def test_a_form_of_another_site_changes_nothing(browser: Browser, url: str, client: Client) -> None:
    client.enqueue("mail", b"x")
    fields = "<input name=topic value=mail><input name=to value=on>"
    browser.get(f"data:text/html,<form method=post action={url}/topics/pause>{fields}<button>Win</button></form>")
    browser.find_element(By.TAG_NAME, "button").click()
    assert text(browser, "h1") == "Not allowed"
    assert client.topic_stats("mail").paused is False
