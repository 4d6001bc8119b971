"""The page about throttles: its figures are the figures that the service gives, and its forms change the settings."""

import json
import re
from html import escape

import pytest

from foqs.client import Client, ItemSpec, ThrottleStats
from foqs.console.pages.throttles import PAGE_KEYS
from foqs.page.words import duration
from foqs.testing import Server
from tests.console.asgi import Site
from tests.console.rig import HOSTILE, ROOT, SEER, client, guarded, service, site, words
from tests.support.html import Page

__all__ = ["client", "guarded", "service", "site"]  # fixtures
pytestmark = pytest.mark.threads


def one_key(client: Client, key: str) -> ThrottleStats:
    (found,) = [one for one in client.throttles().throttles if one.key == key]
    return found


def busy(service: Server, client: Client, key: str, items: int, delivered: int, **fields: object) -> ThrottleStats:
    """Store items with a throttle key, and let those be delivered that its limits let through."""
    client.put_settings({f"throttle.{key}": json.dumps(fields)})
    for _ in range(items):
        client.enqueue("mail", b"x", throttle_keys=[key])
    deliver(service, client, delivered)
    return one_key(client, key)


def deliver(service: Server, client: Client, items: int) -> None:
    """A host asks for tokens and slots after the first dequeue, and reports them twice a second."""
    for _ in range(20):
        service.advance(ms=100)
        items -= len(client.dequeue("mail", count=1_000, worker="host-1:7", lease_ms=60_000))
    assert items == 0


def row(text: str, name: str, table: str = "keys") -> list[str]:
    """Return the row of a key, or of a throttle of the settings."""
    begin = text.index(f'id="{table}"')
    found = Page("<div " + text[begin : text.index("</table></div>", begin)] + "</table></div>").row(name)
    return [" ".join(cell.split()) for cell in found]


def sent(key: str, mark: str = "", **fields: object) -> dict[str, object]:
    return {"key": key, "mark": mark, "back": "/throttles", **fields}


def mark_in(text: str) -> str:
    found = re.search(r'name="mark" value="([^"]*)"', text)
    assert found is not None
    return found[1]


def test_a_key_with_a_rate_has_its_figures(site: Site, service: Server, client: Client) -> None:
    stats = busy(service, client, "api", 7, 3, per_second=0.05, burst=3)
    assert (stats.parked_items, stats.parked_flows) == (4, 1)
    found = row(site.get("/throttles").text, "api")
    assert found[1] == "0.05/s, burst 3 0 of 3 tokens"
    assert found[3:5] == ["4 items in 1 flow", duration(stats.longest_wait_ms)]
    assert found[6:] == ["api", stats.coordinator, ""]
    throttle = row(site.get("/throttles").text, "api", "throttles")
    assert throttle[1:4] == ["0.05 deliveries a second, burst 3", "in force", "1"]
    assert throttle[4:6] == ["4 items", duration(stats.longest_wait_ms)]


def test_a_key_with_a_limit_of_leases_has_its_figures(site: Site, service: Server, client: Client) -> None:
    stats = busy(service, client, "gpu", 5, 3, concurrency=3, timeout_ms=20_000)
    assert (stats.taken, stats.free, stats.parked_items) == (3, 0, 2)
    text = site.get("/throttles").text
    assert row(text, "gpu")[1:3] == ["–", "3 of 3 taken, 0 free"]
    assert 'aria-label="3 of 3 slots taken"' in text
    service.advance(seconds=30)
    assert (one_key(client, "gpu").overage, one_key(client, "gpu").reclaimed) == (3, 0)
    assert row(site.get("/throttles").text, "gpu")[2].endswith("3 overage, 0 reclaimed")


def test_a_shadow_shows_its_hour(site: Site, service: Server, client: Client) -> None:
    stats = busy(service, client, "api", 5, 5, per_second=0.05, burst=2, shadow=True)
    assert stats.shadow_rate is not None
    assert stats.shadow_rate.seen == 5
    text = site.get("/throttles").text
    assert row(text, "api")[5].startswith(f"would have held {stats.shadow_rate.held} of 5 in ")
    assert row(text, "api", "throttles")[2] == "in shadow"


def test_a_throttle_without_a_key_in_use_is_listed(site: Site, client: Client) -> None:
    client.put_settings({"throttle.customer:*": '{"per_second": 2}', "throttle.gpu": '{"concurrency": 4}'})
    page = Page(site.get("/throttles").text)
    assert "No throttle key is in use." in page.words
    assert page.row("customer:*")[1:4] == ["2 deliveries a second, burst 2", "in force", "none"]
    assert page.row("customer:*")[4:6] == ["–", "–"]
    assert page.row("gpu")[1] == "at most 4 leases at a time, overage after 60,000 ms"
    found = Page(site.get("/throttles?prefix=cust").text)
    assert [row[0] for row in found.cells if len(row) > 2][1:] == ["customer:*"]


def test_keys_name_the_throttle_of_their_prefix(site: Site, service: Server, client: Client) -> None:
    client.put_settings({"throttle.customer:*": '{"per_second": 5}'})
    for number in range(3):
        client.enqueue("mail", b"x", throttle_keys=[f"customer:{number}"])
    deliver(service, client, 3)
    page = Page(site.get("/throttles?prefix=customer:1").text)
    assert page.row("customer:1")[6] == "customer:*"
    assert page.row("5 deliveries a second, burst 5")[3] == "1", "of the keys on the page"
    assert not [row for row in page.cells if "customer:2" in row]


def test_long_lists_are_bounded_and_ordered(site: Site, client: Client, service: Server) -> None:
    client.put_settings({"throttle.k*": '{"per_second": 0.02, "burst": 1}'})
    for number in range(PAGE_KEYS + 1):
        client.enqueue("mail", b"x", throttle_keys=[f"k{number:03}"])
    for _ in range(2):
        client.enqueue("mail", b"x", throttle_keys=[f"k{PAGE_KEYS:03}"])
    deliver(service, client, PAGE_KEYS + 1)
    text = site.get("/throttles").text
    keys = [row[0] for row in Page(text).cells if row[0].startswith("k") and row[0] != "k*"]
    assert keys == [f"k{number:03}" for number in range(PAGE_KEYS)]
    assert f"More keys are in use than the first {PAGE_KEYS} by name" in text
    text = site.get("/throttles?order=items").text
    keys = [row[0] for row in Page(text).cells if row[0].startswith("k") and row[0] != "k*"]
    assert (keys[0], len(keys)) == (f"k{PAGE_KEYS:03}", PAGE_KEYS)
    assert "More keys are in use" not in text


@pytest.mark.parametrize("key", HOSTILE)
def test_a_key_is_text(site: Site, service: Server, client: Client, key: str) -> None:
    busy(service, client, key, 2, 2, per_second=1)
    text = site.get("/throttles").text
    shown = escape(key if key.isprintable() else repr(key)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    assert f'<td class="name"><bdi>{shown}</bdi></td>' in text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert Page(text).cells
    link = re.search(r'id="edit-[^"]*" href="([^"]*)"', text)
    assert link is not None
    edit = words(site.get(link[1].replace("&amp;", "&")))
    assert f'name="key" value="{key}"' in edit


def test_a_throttle_is_set_and_changed(site: Site, client: Client) -> None:
    answer = site.post("/throttles/set", sent("api", per_second="10", burst=" 20 ", concurrency="", timeout_ms=""))
    assert (answer.status, answer.headers["location"]) == (303, "/throttles")
    assert client.throttle("api") == {"per_second": 10, "burst": 20}
    assert "Throttle api is set: 10 deliveries a second, burst 20. Version 1" in site.get("/throttles").text
    edit = site.get("/throttles?edit=api").text
    assert 'name="per_second" value="10"' in edit
    fields = sent("api", mark_in(edit), concurrency="4", shadow="on", confirmed="yes")
    assert site.post("/throttles/set", fields).status == 303
    assert client.throttle("api") == {"concurrency": 4, "shadow": True}, "an empty field is taken out"


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"per_second": "ten"}, "per_second: give a number, such as 10 or 0.1, not ten"),
        ({"concurrency": "1.5"}, "concurrency: give a whole number, not 1.5"),
        ({"per_second": "1", "burst": "-7"}, "burst"),
        ({"burst": "7"}, "per_second or concurrency is needed"),
        ({"per_second": "nan"}, "per_second"),
    ],
)
def test_an_error_is_at_the_form_and_the_input_stays(
    site: Site, client: Client, fields: dict[str, str], wrong: str
) -> None:
    answer = site.post("/throttles/set", sent("<b>api", shadow="on", **fields))
    assert answer.status == 400
    assert re.search(rf'role="alert"><p>[^<]*{re.escape(wrong)}', answer.text)
    assert 'name="key" value="&lt;b&gt;api"' in answer.text
    for name, value in fields.items():
        assert f'name="{name}" value="{value}"' in answer.text
    assert 'type="checkbox" checked' in answer.text
    assert '<div id="live" hx-get="/throttles"' in answer.text, "the page refreshes from where the form was"
    assert client.settings("throttle.").entries == {}


@pytest.mark.parametrize("setting", ["ap*", ""])
def test_a_key_in_use_without_a_throttle_leads_to_one(
    site: Site, service: Server, client: Client, setting: str
) -> None:
    """It has the limit of a prefix, or its throttle is removed."""
    client.set_throttle(setting or "api", {"per_second": 0.05, "burst": 3})
    client.enqueue("mail", b"x", throttle_keys=["api"])
    deliver(service, client, 1)
    if not setting:
        client.remove_throttle("api")
    assert one_key(client, "api").setting == (f"throttle.{setting}" if setting else "")
    page = site.get("/throttles").text
    assert row(page, "api")[-1] == "Limit this key api"
    (link,) = re.findall(r'<a class="button" id="limit-[^"]*" href="([^"]*)"', page)
    form = site.get(link).text
    assert '<details id="set" open>' in form
    assert 'id="set-key" name="key" value="api"' in form
    assert site.post("/throttles/set", sent("api", mark_in(form), per_second="8")).status == 303
    assert client.throttle("api") == {"per_second": 8}
    assert "Limit this key" not in site.get("/throttles").text


def test_a_key_that_nothing_uses_leads_to_a_throttle(site: Site, client: Client) -> None:
    found = site.get("/throttles?prefix=a%3Cb%3E")
    assert "No throttle has the key a<b> . Limit this key a<b>" in found.said
    assert 'href="/throttles?edit=a%3Cb%3E"' in found.text
    client.set_throttle("a<b>", {"per_second": 8})
    assert "Limit this key" not in site.get("/throttles?prefix=a%3Cb%3E").text


def test_a_throttle_of_another_user_is_not_overwritten(site: Site, client: Client) -> None:
    edit = site.get("/throttles?edit=api").text
    client.set_throttle("api", {"per_second": 3})
    answer = site.post("/throttles/set", sent("api", mark_in(edit), per_second="8"))
    assert answer.status == 400
    assert "throttle.api exists already" in answer.text
    assert 'Stored now: <code>{"per_second": 3}</code>' in words(answer)
    assert 'name="per_second" value="8"' in answer.text
    assert client.throttle("api") == {"per_second": 3}
    assert site.post("/throttles/set", sent("api", mark_in(answer.text), per_second="8")).status == 303
    assert client.throttle("api") == {"per_second": 8}


def test_a_shadow_that_ends_a_limit_is_asked_about(site: Site, service: Server, client: Client) -> None:
    client.set_throttle("smtp:*", {"per_second": 0.05, "burst": 2})
    client.enqueue_many([ItemSpec("t", b"x", throttle_keys=["smtp:gmx"])] * 5)
    client.dequeue("t", 5)
    fields = sent("smtp:gmx", per_second="1", shadow="on")
    question = site.post("/throttles/set", fields).said
    assert "Throttle smtp:* limits it now: 0.05 deliveries a second, burst 2." in question
    assert "At least 3 items wait for it now" in question
    assert client.throttle("smtp:gmx") == {}
    assert site.post("/throttles/set", fields | {"confirmed": "yes"}).status == 303
    assert client.throttle("smtp:gmx") == {"per_second": 1, "shadow": True}
    assert site.post("/throttles/set", sent("new", per_second="1", shadow="on")).status == 303, "it ends no limit"


def test_a_remove_names_the_throttle_that_counts_then(site: Site, client: Client) -> None:
    client.set_throttle("smtp:*", {"per_second": 0.5})
    client.set_throttle("smtp:gmx", {"per_second": 2})
    assert (
        "Throttle smtp:* counts then: 0.5 deliveries a second, burst 1."
        in site.post("/throttles/remove", sent("smtp:gmx")).said
    )
    assert "Nothing limits its keys then." in site.post("/throttles/remove", sent("smtp:*")).said


def test_a_shadow_is_switched_and_says_what_that_frees(site: Site, service: Server, client: Client) -> None:
    busy(service, client, "api", 5, 2, per_second=0.05, burst=2)
    fields = sent("api", to="on")
    question = site.post("/throttles/shadow", fields)
    assert "At least 3 items wait for it now, in 1 flow, and may be delivered at once." in question.text
    assert client.throttle("api").get("shadow") is None
    assert site.post("/throttles/shadow", fields | {"confirmed": "yes"}).status == 303
    assert client.throttle("api") == {"per_second": 0.05, "burst": 2, "shadow": True}
    deliver(service, client, 3)
    assert site.post("/throttles/shadow", sent("api", to="off")).status == 303, "asks nothing: it loses nothing"
    assert client.throttle("api")["shadow"] is False
    assert site.post("/throttles/shadow", sent("gone", to="off")).status == 404


def test_a_throttle_is_removed_after_a_question(site: Site, client: Client) -> None:
    client.put_settings({"throttle.a*": '{"per_second": 1}', "throttle.api": '{"per_second": 2}'})
    question = site.post("/throttles/remove", sent("api"))
    assert (question.status, "Remove throttle api?" in question.text) == (200, True)
    assert "No item waits for it now." in question.text
    assert "throttle.api" in client.settings().entries
    assert site.post("/throttles/remove", sent("api", confirmed="yes")).status == 303
    assert [*client.settings().entries] == ["throttle.a*"]
    assert "Throttle api is removed. Its keys are under throttle a* now." in site.get("/throttles").text
    assert site.post("/throttles/remove", sent("api", confirmed="yes")).status == 404


def test_forms_act_in_the_namespace_of_the_page(site: Site, client: Client) -> None:
    text = site.get("/throttles?ns=shop").text
    action = re.search(r'action="(/throttles/set[^"]*)"', text)
    assert action is not None
    answer = site.post(action[1], sent("api", per_second="1"))
    assert (answer.status, answer.headers["location"]) == (303, "/throttles?ns=shop")
    assert client.throttle("api") == {}
    assert "in force" in site.get("/throttles?ns=shop").text


@pytest.mark.parametrize("path", ["/throttles?edit=api", "/consumers", "/hooks", "/hooks/route"])
def test_a_console_that_only_reads_offers_no_change(service: Server, client: Client, path: str) -> None:
    client.put_settings({"throttle.api": '{"per_second": 1}', "script.route": "function on_enqueue() end"})
    client.enqueue("mail", b"x")
    client.dequeue("mail", worker="host-1:7")
    reads, writes = Site(service.address, read_only=True), Site(service.address)
    assert 'method="post"' in writes.get(path).text or path == "/hooks"
    assert 'method="post"' not in reads.get(path).text
    assert "Edit or make" not in reads.get(path).text
    reads.close()
    writes.close()


@pytest.mark.process
def test_without_the_right_admin_nothing_is_offered(guarded: str) -> None:
    with Client(guarded, "shop", token=ROOT) as client:
        client.put_settings({"throttle.api": '{"per_second": 1}', "script.route": "function on_enqueue() end"})
    seer = Site(guarded)
    seer.sign_in(SEER)
    for path, there in (("/throttles", "1 deliveries a second"), ("/hooks", "route"), ("/hooks/route", "on_enqueue()")):
        page = seer.get(f"{path}?ns=shop")
        assert (page.status, there in page.text) == (200, True)
        assert not re.findall(r'action="/(?:throttles|hooks|consumers)/', page.text)
        assert seer.get(f"{path}?ns=other").status == 403
    assert "The consumers are for tokens with the right" in seer.get("/consumers?ns=shop").text
    assert seer.post("/throttles/set?ns=shop", sent("new", per_second="1")).status == 403
    assert seer.post("/hooks/try?ns=shop", {"script": "route", "hook": "on_enqueue", "topic": "t"}).status == 403
    assert seer.post("/consumers/release?ns=shop", {"topic": "mail"}).status == 403
    seer.close()
