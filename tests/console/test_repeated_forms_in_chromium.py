"""What a browser sends twice, late or from another tab, and a service that is lost in between."""

from __future__ import annotations

from pathlib import Path

from selenium.webdriver import ActionChains

from foqs.client import Client
from tests.api.hosts import dev
from tests.console.browser import client, service
from tests.console.user import LiveConsole, User, console, user, window
from tests.support.browser import Browser

__all__ = ["client", "console", "service", "user", "window"]  # fixtures

_CLICK_TWICE = """
const prevented = [];
addEventListener('submit', event => prevented.push(event.defaultPrevented));
const button = document.querySelector(arguments[0]);
button.click();
button.click();
return prevented;
"""


def test_a_double_click_sends_one_form(user: User, client: Client) -> None:
    user.open("/topics/mail")
    user.unfold("#enqueue")
    user.fill(payload="x")
    user.mark()
    ActionChains(user.browser).double_click(user.find("#enqueue button")).perform()
    user.arrive()
    assert "is stored in topic mail" in user.said
    assert len(list(client.list_items("mail"))) == 1
    # Without the script the browser sends the second form only if the first answer is late.
    user.unfold("#enqueue")
    user.fill(payload="y")
    user.mark()
    assert user.browser.execute_script(_CLICK_TWICE, "#enqueue button") == [False, True]
    user.arrive()
    user.open("/topics/mail")
    user.unfold("#enqueue")
    user.fill(payload="y")
    user.press("#enqueue button")
    assert len(list(client.list_items("mail"))) == 3, "another form with the same payload"


def test_the_browser_sends_no_answer_again(user: User, client: Client) -> None:
    item = client.enqueue("mail", b"x")
    delete = "form[action^='/items/delete'] button"
    user.open(f"/items/{item}")
    user.press(delete)
    user.browser.refresh()
    assert user.title == f"Delete item {item}?"
    assert client.get_item(item).id == item, "the form was sent again, and the question is not answered"
    user.confirm()
    user.back()
    user.browser.refresh()
    assert user.title == f"Delete item {item}?", "the page before"
    user.confirm()
    assert "0 items deleted" in user.said
    user.open("/topics/mail")
    user.unfold("#purge")
    user.type("#purge-pace", "much")
    user.press("#purge-items")
    assert "pace" in user.said
    user.back()
    assert user.title == "Topic mail"


def test_tabs_of_two_namespaces_change_their_own(user: User, client: Client, window: Browser) -> None:
    first = window.current_window_handle
    with Client(client.address, "elsewhere", routing=False) as other:
        for one in (client, other):
            one.enqueue("mail", b"x")
        user.open("/topics/mail")
        window.switch_to.new_window("tab")
        second = User(window, user.url, "elsewhere")
        second.open("/topics/mail")
        second.press("form[action^='/topics/pause'] button")
        window.switch_to.window(first)
        assert user.title == "Topic mail"
        user.press("form[action^='/topics/close'] button")
        assert user.find("#ns").get_attribute("value") == client.namespace
        found = [(one.topic_stats("mail").paused, one.topic_stats("mail").closed) for one in (client, other)]
        assert found == [(False, True), (True, False)]
        # A form of a page that is out of date does what its button says.
        user.open("/topics/mail")
        client.set_policy("mail", {"paused": True})
        user.press("form[action^='/topics/pause'] button")
        assert client.topic_stats("mail").paused
        user.type("#ns", "elsewhere")
        user.press("form.namespace button")
        assert user.title == "Topics"
        assert [row[0].split()[0] for row in user.rows("topics")] == ["mail"]
        for handle in window.window_handles:
            if handle != first:
                window.switch_to.window(handle)
                window.close()
        window.switch_to.window(first)


def test_a_form_outlives_a_lost_service(window: Browser, tmp_path: Path) -> None:
    with dev(tmp_path) as host:
        address = "{}:{}".format(*host.address)
        with LiveConsole(address) as own:
            user = User(window, own.url)
            user.open("/settings/entry")
            user.type("#key", "plans/acme")
            user.type("#value", "a long text\nof a user")
            host.kill()
            user.press("form.entry button")
            assert user.title == "The service does not answer"
            with dev(tmp_path, "--port", address.rpartition(":")[2]) as again:
                assert again.address
                user.press("#main form button")
                assert user.title == "Entry plans/acme"
                with Client(address, routing=False) as client:
                    assert client.settings().entries == {"plans/acme": "a long text\nof a user"}
