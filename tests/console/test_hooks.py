"""The pages about hooks: calls and breakers as the service counts them, and scripts that are tried and saved."""

import json
import re
from html import escape

import pytest

from foqs.client import Client, ItemSpec
from foqs.console.pages.hooks import LOOKED_AT, MOST_ASKED
from foqs.console.view import path_of
from foqs.testing import Server
from tests.console.asgi import Answer, Site
from tests.console.rig import HOSTILE, client, service, site, words
from tests.support.html import Page

__all__ = ["client", "service", "site"]  # fixtures
pytestmark = pytest.mark.threads

ROUTE = """
function on_enqueue(item)
  if item.headers.customer == nil then return {refuse = "no <customer>"} end
  return {fairness_key = item.headers.customer, weight = 4}
end
"""
FAILING = "function on_enqueue(item) error('no ' .. (item.headers.what or 'luck')) end"
RETRY = """
function on_failure(item)
  if item.cause == "expired" then return {action = "dead"} end
  if item.attempt > 3 then return {action = "retry", delay_ms = 60000} end
  if item.reason == "slow" then while true do end end
end
"""


def set_up(client: Client, source: str, topic: str = "jobs", hook: str = "on_enqueue", name: str = "route") -> None:
    client.put_settings({f"topic.{topic}": json.dumps({"hooks": {hook: name}}), f"script.{name}": source})


def row(text: str, name: str) -> list[str]:
    return [" ".join(cell.split()) for cell in Page(text).row(name)]


def mark_in(text: str) -> str:
    found = re.search(r'name="mark" value="([^"]*)"', text)
    assert found is not None
    return found[1]


def tried(site: Site, source: str, **fields: object) -> Answer:
    sample = {"hook": "on_enqueue", "topic": "jobs", "payload": "hello", "headers": "customer: acme"}
    return site.post("/hooks/try", {"script": "route", "source": source, "back": "/hooks/route"} | sample | fields)


def test_calls_are_counted_as_the_service_does(site: Site, client: Client) -> None:
    set_up(client, ROUTE)
    for _ in range(3):
        client.enqueue("jobs", b"x", headers={"customer": "acme"})
    (stats,) = client.topic_stats("jobs").hooks
    assert stats.calls == 3
    for path in ("/hooks", "/hooks?topic=jobs", "/hooks/route"):
        assert row(site.get(path).text, "jobs") == ["jobs", "on_enqueue", "route", "3", "0", "closed", "–"]
    listed = row(site.get("/hooks").text, f"{len(ROUTE)} B")
    assert listed[:3] == ["route", f"{len(ROUTE)} B", "on_enqueue of jobs"]


def test_a_breaker_that_opened_is_shown_with_the_errors(site: Site, service: Server, client: Client) -> None:
    set_up(client, FAILING)
    for _ in range(4):
        client.enqueue("jobs", b"x", headers={"what": "<b>way</b>"})
    (stats,) = client.topic_stats("jobs").hooks
    assert (stats.failures, stats.breaker_open) == (3, True)
    text = site.get("/hooks").text
    assert row(text, "jobs")[3:6] == [str(stats.calls), "3", "open next try in 10 s"]
    assert "no &lt;b&gt;way&lt;/b&gt;" in text
    assert "<b>way" not in text
    assert "3 kept" in text
    service.advance(seconds=11)
    client.set_policy("jobs", {"hooks": None})
    assert "No topic's policy names a script." in words(site.get("/hooks"))


def test_topics_under_a_prefix_are_found_by_their_items(site: Site, client: Client) -> None:
    set_up(client, ROUTE, "jobs.*")
    client.put_settings({"topic.jobs.off": '{"hooks": null}'})
    for topic in ("jobs.a", "jobs.off", "mail"):
        client.enqueue(topic, b"x", headers={"customer": "acme"})
    cells = Page(site.get("/hooks").text).cells
    assert [found[0] for found in cells if "on_enqueue" in found] == ["jobs.a"]
    assert "on_enqueue of topics jobs.*" in words(site.get("/hooks")).replace("<bdi>", "").replace("</bdi>", "")


def test_of_many_topics_under_a_prefix_some_are_looked_at(site: Site, client: Client) -> None:
    set_up(client, ROUTE, "t*", hook="on_failure")
    client.enqueue_many([ItemSpec(f"t{number:03}", b"x") for number in range(LOOKED_AT)])
    assert "were looked at" not in site.get("/hooks").text
    client.enqueue("u", b"x")
    text = site.get("/hooks").text
    assert f"the first {LOOKED_AT} with items were looked at" in text
    assert f"The first {MOST_ASKED} of {LOOKED_AT} topics with hooks" in text


def test_few_topics_are_asked_for(site: Site, client: Client) -> None:
    policy = json.dumps({"hooks": {"on_enqueue": "route"}})
    topics = {f"topic.jobs-{number:02}": policy for number in range(MOST_ASKED + 3)}
    client.put_settings({"script.route": ROUTE, **topics})
    text = site.get("/hooks").text
    assert len([found for found in Page(text).cells if "on_enqueue" in found]) == MOST_ASKED
    assert f"The first {MOST_ASKED} of {MOST_ASKED + 3} topics with hooks" in text
    assert row(site.get(f"/hooks?topic=jobs-{MOST_ASKED + 2}").text, f"jobs-{MOST_ASKED + 2}")[1] == "on_enqueue"


def test_without_a_script_the_pages_say_so(site: Site) -> None:
    assert "The settings have no script." in site.get("/hooks").text
    page = site.get("/hooks/nothing")
    assert (page.status, "The settings have no script of this name." in page.text) == (200, True)
    assert site.get("/hooks/").status == 404


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_and_a_source_are_text(site: Site, client: Client, name: str) -> None:
    source = "function on_enqueue() end -- </textarea><script>alert(2)</script>"
    set_up(client, source, name, name=name)
    text = site.get("/hooks").text
    shown = escape(name if name.isprintable() else repr(name)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    assert f"<bdi>{shown}</bdi>" in text
    one = site.get(path_of("/hooks", "script", name))
    assert one.status == 200
    for found in (text, one.text):
        assert "<script>alert" not in found
        assert "<img" not in found
    assert one.text.count("&lt;/textarea&gt;&lt;script&gt;alert(2)") == 2, "in the editor, and as it is stored"


def test_a_try_shows_what_the_script_sets(site: Site, client: Client) -> None:
    answer = tried(site, ROUTE)
    assert answer.status == 200
    assert row(answer.text, "fairness_key") == ["fairness_key", "–", '"acme"']
    assert row(answer.text, "weight") == ["weight", "–", "4"]
    assert re.search(r"[\d,]+ µs of processor time, [\d.]+ KiB of memory", answer.text)
    assert "customer: acme</textarea>" in answer.text
    assert client.settings("script.").entries == {}, "nothing is stored"
    assert list(client.list_items("jobs")) == []


def test_a_try_shows_a_refusal_and_an_error(site: Site) -> None:
    answer = tried(site, ROUTE, headers="")
    assert answer.status == 200
    assert "The script refuses the item: no &lt;customer&gt;" in answer.text
    answer = tried(site, FAILING, headers="what: <i>way</i>\r\nmore: 1")
    assert "The call failed: " in answer.text
    assert "no &lt;i&gt;way" in answer.text
    assert "<i>way" not in answer.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cause": "expired"}, "The script decides: dead."),
        ({"attempt": "4"}, "The script decides: retry. The delay is 60,000 ms, if the item returns."),
        ({"attempt": "1"}, "The topic's policy decides."),
        ({"reason": "slow"}, "The call failed: "),
    ],
)
def test_a_failure_is_tried(site: Site, fields: dict[str, str], said: str) -> None:
    answer = tried(site, RETRY, hook="on_failure", **{"attempt": "1", "cause": "failed", "reason": "", **fields})
    assert (answer.status, said in words(answer)) == (200, True)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"headers": "no colon"}, "headers: each line is `name: value`, not no colon"),
        ({"topic": ""}, "topic"),
        ({"hook": "on_failure", "attempt": "first"}, "Attempt: 'first' is no whole number"),
        ({"hook": "on_tea"}, "hook"),
        ({"source": "function on_enqueue("}, ""),
    ],
)
def test_an_error_is_at_the_form_and_the_input_stays(site: Site, fields: dict[str, str], wrong: str) -> None:
    fields = {"source": "-- <mine>", "payload": "<hello>", **fields}
    answer = tried(site, **fields)
    if wrong:
        assert answer.status == 400
        assert re.search(rf'role="alert"><p>[^<]*{re.escape(wrong)}', words(answer))
    else:
        assert "The call failed: " in answer.text
    assert escape(fields["source"]) + "</textarea>" in answer.text
    assert "&lt;hello&gt;</textarea>" in answer.text
    assert '<div id="live" hx-get="/hooks/route"' in answer.text


def test_a_script_is_made_changed_and_used(site: Site, client: Client) -> None:
    empty = site.get("/hooks/?script=route").text
    fields = {"script": "route", "mark": mark_in(empty), "source": "\n" + ROUTE.replace("\n", "\r\n")}
    answer = site.post("/hooks/save", fields)
    assert (answer.status, answer.headers["location"]) == (303, "/hooks/route")
    assert client.settings("script.").entries == {"script.route": "\n" + ROUTE}, "as it was written"
    page = site.get("/hooks/route")
    assert "Script route is saved" in page.text
    assert f'autocomplete="off">\n\n{ROUTE}</textarea>' in words(page)
    assert "No topic's policy names it, so it never runs." in words(page)
    client.set_policy("jobs", {"hooks": {"on_enqueue": "route"}})
    client.enqueue("jobs", b"x", headers={"customer": "acme"})
    assert client.dequeue("jobs")[0].fairness_key == "acme"


def test_a_source_that_does_not_compile_is_refused_at_the_form(site: Site, client: Client) -> None:
    set_up(client, ROUTE)
    mark = mark_in(site.get("/hooks/route").text)
    answer = site.post("/hooks/save", {"script": "route", "mark": mark, "source": "function <broken"})
    assert answer.status == 400
    assert re.search(r'role="alert"><p>[^<]*script.route', answer.text)
    assert "function &lt;broken</textarea>" in answer.text
    assert client.settings("script.").entries["script.route"] == ROUTE
    assert site.post("/hooks/save", {"script": "route", "mark": mark_in(answer.text), "source": RETRY}).status == 303


def test_a_change_of_another_user_is_not_overwritten(site: Site, client: Client) -> None:
    set_up(client, ROUTE)
    mark = mark_in(site.get("/hooks/route").text)
    client.put_settings({"script.route": FAILING})
    fields = {"script": "route", "source": RETRY}
    answer = site.post("/hooks/save", fields | {"mark": mark})
    assert answer.status == 400
    assert "script.route has changed since this form was made" in answer.text
    assert escape(RETRY).replace("&quot;", "&#34;") + "</textarea>" in answer.text, "the input stays"
    assert f">{FAILING}</pre>" in words(answer), "the stored source"
    assert client.settings("script.").entries["script.route"] == FAILING
    assert site.post("/hooks/save", fields | {"mark": mark_in(answer.text)}).status == 303
    assert client.settings("script.").entries["script.route"] == RETRY
    client.put_settings({"plans/acme": "gold"})
    again = mark_in(site.get("/hooks/route").text)
    client.put_settings({"plans/acme": "silver"})
    assert site.post("/hooks/save", {"script": "route", "mark": again, "source": ROUTE}).status == 303, (
        "it is unchanged"
    )
