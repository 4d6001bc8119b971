"""The pages of settings, changes and hosts in a browser: a real `foqs console` of a real service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from foqs.client import Client
from foqs.shardmgr.facts import ShardFact
from foqs.testing import Server
from tests.cli.players import Player, served_by
from tests.console.rig import HOSTILE, client, service
from tests.console.test_pages_in_chromium import text
from tests.support.browser import NARROW, WIDE, Browser, console_errors, faults, ids_of_several, overflow, wait_for
from tests.zk.rig import ZookeeperRig

__all__ = ["client", "service"]  # fixtures

PATHS = (
    "/settings",
    "/settings?prefix=none",
    "/settings/entry",
    "/settings/entry?key=topic.mail",
    "/settings/entry?key=topic.ma*",
    "/settings/entry?key=plans/%3Cscript%3Ealert(1)%3C/script%3E",
    "/changes",
    "/changes?prefix=topic.&by=nobody",
    "/hosts",
)


@pytest.fixture
def filled(client: Client) -> None:
    client.put_settings(
        {
            "topic.mail": '{"max_attempts": 5, "paused": true}', "topic.ma*": '{"max_attempts": 7, "lease_ms": 60000}',
            "topic.*": '{"max_attempts": 9}', "throttle.api:*": '{"per_second": 10}', "weight.acme": "7",
            "script.guard": "function on_failure(item)\n  return {}\nend" + " -- words" * 40,
            **{f"plans/{name}": "x" * 400 for name in HOSTILE}, "k" * 300: "iron " * 300,
        }
    )  # fmt: skip
    client.put_settings({"topic.mail": '{"max_attempts": 6}', "plans/a b\u202ec": "short"}, ["weight.acme"])


@pytest.fixture
def url(service: Server, start_console: Callable[..., str]) -> str:
    return start_console(service.address)


def check(browser: Browser, where: str) -> None:
    text(browser, "h1")
    assert faults(browser) == [], where
    assert overflow(browser) == [], where
    assert ids_of_several(browser) == [], where
    assert console_errors(browser) == [], where


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_operator_pages_have_no_fault(browser: Browser, url: str, width: int, mode: str) -> None:
    browser.view(width)
    browser.media(prefers_color_scheme=mode)
    for path in PATHS:
        browser.get(url + path)
        check(browser, path)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_an_entry_is_repaired_without_scripts(browser: Browser, url: str, client: Client, width: int) -> None:
    browser.view(width)
    browser.scripts(False)
    browser.get(f"{url}/settings")
    browser.find_element(By.LINK_TEXT, "topic.mail").click()
    value = browser.find_element(By.ID, "value")
    value.clear()
    value.send_keys('{"max_attemps": 7,\n"lease_ms": -1}')
    browser.find_element(By.CSS_SELECTOR, "form.entry button").click()
    wait_for(browser, lambda: "there is no field" in browser.find_element(By.ID, "errors").text, "the errors")
    assert overflow(browser) == []
    value = browser.find_element(By.ID, "value")
    assert value.get_attribute("value") == '{"max_attemps": 7,\n"lease_ms": -1}'
    value.clear()
    value.send_keys('{"max_attempts": 7}')
    client.put_settings({"topic.mail": '{"max_attempts": 6, "paused": false}'})
    browser.find_element(By.CSS_SELECTOR, "form.entry button").click()
    # The page before has errors as well.
    wait_for(browser, lambda: "has changed since" in browser.find_element(By.ID, "errors").text, "a conflict")
    assert '"max_attempts": 6' in text(browser, ".columns pre")
    assert overflow(browser) == []
    browser.find_element(By.CSS_SELECTOR, "form.entry button").click()
    assert "Entry topic.mail is changed." in text(browser, ".notice.ok")
    assert client.settings().entries["topic.mail"] == '{"max_attempts": 7}'


@pytest.mark.usefixtures("filled")
def test_a_change_is_reverted(browser: Browser, url: str, client: Client) -> None:
    browser.get(f"{url}/changes?prefix=topic.mail")
    browser.find_element(By.ID, "revert-2-1").click()
    assert "topic.mail, max_attempts: 6 → 5" in text(browser, ".notice.warn:not(#stale)")
    check(browser, "the question")
    browser.find_element(By.CSS_SELECTOR, "button.danger").click()
    assert "The change of topic.mail in version 2 is reverted." in text(browser, ".notice.ok")
    assert client.settings().entries["topic.mail"] == '{"max_attempts": 5, "paused": true}'


@pytest.mark.server
@pytest.mark.zookeeper
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_a_cluster_has_no_fault(
    browser: Browser,
    service: Server,
    start_console: Callable[..., str],
    zk_rig: ZookeeperRig,
    tmp_path: Path,
    width: int,
) -> None:
    player = Player(zk_rig, "host-with-a-name-of-some-length:7707")
    for number in (1, 2):
        player.store.put_shard(ShardFact(number, f"sqlite:///{number}"), new=True, done=lambda _: None)
    player.sees(lambda facts: sorted(served_by(facts)) == [1, 2])
    config = tmp_path / "foqs.toml"
    config.write_text(f'[zookeeper]\nhosts = "{zk_rig.hosts}"\nroot = "{zk_rig.root}"\n')
    browser.view(width)
    browser.get(start_console(service.address, "--config", str(config)) + "/hosts")
    assert "host-with-a-name" in text(browser, "#zk-hosts")
    check(browser, "/hosts")
    browser.find_element(By.ID, "rebalance").click()
    assert "Nothing to change: the shards are balanced: no shard moves." in text(browser, ".notice.ok")
    check(browser, "the outcome")
