"""Signing in and out in a browser, and what a user meets whose session, rights or service end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from foqs.client import Client, Unauthenticated
from foqs.store.maintenance import create_schema
from tests.api.hosts import HostProcess
from tests.console.user import LiveConsole, User, window
from tests.support.browser import Browser, wait_for
from tests.support.waiting import wait_until

__all__ = ["window"]  # fixtures

TOKENS = {name: f"a-token-of-{name}-with-enough-letters" for name in ("boss", "maker", "taker", "leaver")}
RIGHTS = {
    "boss": '"*" = ["produce", "consume", "admin"]',
    "maker": '"shop" = ["produce"]',
    "taker": '"shop" = ["consume"]',
    "leaver": '"shop" = ["admin"]',
}


def principals(*names: str) -> str:
    return "".join(
        f'[principals.{name}]\ntoken_sha256 = "{sha256(TOKENS[name].encode()).hexdigest()}"\n'
        f"rights = {{ {RIGHTS[name]} }}\n"
        for name in names
    )


class Guarded:
    """A host that asks for tokens."""

    def __init__(self, host: HostProcess, file: Path) -> None:
        self._host, self._file = host, file
        self.address = "{}:{}".format(*host.address)

    def revoke(self, name: str) -> None:
        self._file.write_text(principals(*(one for one in TOKENS if one != name)))
        self._host.send_signal(signal.SIGHUP)

        def is_refused() -> bool:
            with Client(self.address, "shop", token=TOKENS[name], routing=False) as client:
                try:
                    client.server_info()
                except Unauthenticated:
                    return True
                return False

        wait_until(is_refused, "the end of the token")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    url, file, config = f"sqlite:///{folder / 'shard.db'}", folder / "principals.toml", folder / "foqs.toml"
    create_schema(url, 1)
    file.write_text(principals(*TOKENS))
    config.write_text(f'[server]\nport = 0\n[[shards]]\nid = 1\nurl = "{url}"\n[auth]\nprincipals_file = "{file}"\n')
    with HostProcess(folder / "log", ["serve", "--config", config]) as host:
        yield Guarded(host, file)


@pytest.fixture(scope="module")
def console(guarded: Guarded) -> Iterator[LiveConsole]:
    with LiveConsole(guarded.address) as made:
        yield made


@pytest.fixture
def client(guarded: Guarded) -> Iterator[Client]:
    with Client(guarded.address, "shop", token=TOKENS["boss"], routing=False) as made:
        made.enqueue("mail", b"x")
        yield made


@pytest.fixture
def user(window: Browser, console: LiveConsole, client: Client) -> User:
    """A user of the namespace shop, not yet signed in."""
    window.get(f"{console.url}/login")
    window.delete_all_cookies()
    return User(window, console.url, "shop")


def sign_in(user: User, name: str) -> None:
    user.fill(token=TOKENS.get(name, name))
    user.press("main form button")


def test_a_user_signs_in_and_out(user: User) -> None:
    user.open("/topics/mail")
    assert user.title == "Sign in"
    sign_in(user, "no-token-of-the-service")
    assert "does not know this token" in user.said
    sign_in(user, "boss")
    assert user.title == "Topic mail"
    assert user.text(".who") == "boss"
    user.press(".tools form button")
    assert user.title == "Sign in"
    user.back()
    wait_for(user.browser, lambda: user.title == "Sign in", "the page from before needs the session")


def test_a_user_whose_session_ended_comes_back_to_the_page(user: User, console: LiveConsole, client: Client) -> None:
    user.open("/topics", part="mail")
    sign_in(user, "boss")
    console.late_s += 9 * 3600
    user.browser.execute_script("htmx.trigger(document.body, 'foqs:refresh')")
    assert "session has ended" in user.text("#stale:not([hidden])")
    user.open("/topics", part="mail")
    assert user.title == "Sign in"
    assert "session has ended" in user.said
    sign_in(user, "boss")
    assert user.title == "Topics"
    assert user.find("#part").get_attribute("value") == "mail"


def test_a_form_of_an_ended_session_changes_nothing(user: User, console: LiveConsole, client: Client) -> None:
    user.open("/topics/mail")
    sign_in(user, "boss")
    console.late_s += 9 * 3600
    user.press("#main form[action^='/topics/pause'] button")
    assert user.title == "Sign in"
    assert "was not carried out" in user.said
    assert not client.topic_stats("mail").paused
    sign_in(user, "boss")
    assert user.title == "Topic mail"
    # The answer to a question leads back to the page of the change, too.
    user.unfold("#purge")
    user.press("#purge-items")
    console.late_s += 9 * 3600
    user.confirm("mail")
    assert "was not carried out" in user.said
    sign_in(user, "boss")
    assert (user.title, client.topic_stats("mail").ready > 0) == ("Topic mail", True)


def test_a_token_that_is_revoked_ends_its_sessions(user: User, guarded: Guarded, client: Client) -> None:
    user.open("/topics/mail")
    sign_in(user, "leaver")
    assert user.title == "Topic mail"
    guarded.revoke("leaver")
    user.press("#main form[action^='/topics/pause'] button")
    assert user.title == "Sign in"
    assert "the service refuses its token" in user.said
    assert "was not carried out" in user.said
    assert not client.topic_stats("mail").paused
    sign_in(user, "leaver")
    assert "does not know this token" in user.said
    sign_in(user, "boss")
    assert user.title == "Topic mail"


@pytest.mark.parametrize("name", ["maker", "taker"])
def test_a_user_without_the_right_admin_is_offered_no_change(user: User, client: Client, name: str) -> None:
    client.put_settings({"throttle.smtp": '{"per_second": 1}', "schedule.daily": '{"cron": "0 3 * * *", "topic": "x"}'})
    (item_id, *_) = [item.id for item in client.list_items("mail")]
    user.open("/")
    sign_in(user, name)
    paths = ["/", "/topics", "/topics/mail", f"/items/{item_id}", "/items?topic=mail", "/dead?topic=mail.dlq"]
    paths += ["/schedules", "/throttles", "/consumers", "/hooks", "/settings", "/settings/entry?key=throttle.smtp"]
    for path in [*paths, "/hosts", "/changes"]:
        user.open(path)
        offered = user.browser.execute_script(
            "return [...document.querySelectorAll('form[method=post]')].map(one => one.getAttribute('action'))"
        )
        assert offered == ["/logout"], path
