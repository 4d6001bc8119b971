"""Dead letters on pages: figures of the service, and changes."""

import re
from html import escape, unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import AsyncClient, Client, FailureCause, FailureFilter, Invalid, Redriven
from foqs.console.dead_letters import Selection
from foqs.console.jobs import Job
from foqs.testing import Server
from tests.console.asgi import Site
from tests.console.rig import client, service, site
from tests.support.html import Page

__all__ = ["client", "service", "site"]  # fixtures
pytestmark = pytest.mark.threads

HOSTILE = "<script>alert(1)</script>"
DEAD = "mail.dlq"


def kill(
    client: Client, reason: str, items: int = 1, topic: str = "mail", fairness_key: str | None = None
) -> list[int]:
    """Return the ids of new dead letters."""
    for _ in range(items):
        client.enqueue(topic, b"x", fairness_key=fairness_key)
    ids = []
    while len(ids) < items:
        for item in client.dequeue(topic, count=min(500, items - len(ids))):
            client.nack(item, reject=True, reason=reason)
            ids.append(item.id)
    return ids


def topics(text: str) -> list[str]:
    return re.findall(r'<td class="name"><a href="/dead[^"]*" id="[^"]*"><bdi>(.*?)</bdi>', text)


def the_job(site: Site) -> Job:
    (job,) = site.console.jobs._jobs.values()
    return job


def counts(client: Client, topic: str) -> int:
    return sum(group.count for group in client.list_failures(topic).groups)


def ended(site: Site) -> Job:
    site.wait(lambda: not the_job(site).active)
    return the_job(site)


# ------------------------------------------------------------------------------------------ topics


def test_topics_that_take_dead_letters_are_found(site: Site, client: Client) -> None:
    client.set_policy("pay", {"dead": {"topic": "graveyard"}})
    client.enqueue("live", b"x")
    client.enqueue("waits.dlq", b"x")  # no dead letter, but its topic takes them
    kill(client, "no domain", 3)
    kill(client, "no money", topic="pay")
    text = site.get("/dead").text
    assert topics(text) == ["graveyard", DEAD, "waits.dlq"]
    assert Page(text).row(DEAD)[1:] == ["3", "3", "0", "0"]


def test_a_topic_that_still_has_dead_letters_stays_in_the_list(site: Site, client: Client) -> None:
    client.set_policy("pay", {"dead": {"topic": "graveyard"}})
    kill(client, "no money", topic="pay")
    client.set_policy("pay", {"dead": {"topic": "cellar"}})
    assert topics(site.get("/dead").text) == ["graveyard"]


def test_a_namespace_without_dead_letters_says_so(site: Site, client: Client) -> None:
    client.enqueue("live", b"x")
    assert "The namespace has no dead letters." in site.get("/dead").text


def test_the_client_lists_topics_with_dead_letters_only(client: Client) -> None:
    client.enqueue("live", b"x")
    kill(client, "no domain")
    assert [one.topic for one in client.active_topics(dead=True)] == [DEAD]
    assert [one.topic for one in client.topics_page(dead=True).topics] == [DEAD]
    assert [one.topic for one in client.active_topics()] == ["live", DEAD]


# ------------------------------------------------------------------------------------------ groups


def test_groups_equal_the_groups_of_the_service(site: Site, client: Client) -> None:
    kill(client, "SMTP 451 of 'bob'", 2)
    kill(client, "SMTP 452 of 'ann'", 1)
    kill(client, "no domain", 1, fairness_key="acme")
    page = Page(site.get(f"/dead?topic={DEAD}").text)
    for group in client.list_failures(DEAD).groups:
        assert page.row(group.fingerprint)[:4] == ["rejected", group.sample_reason, group.fingerprint, str(group.count)]
    assert "4 dead letters in 2 groups" in " ".join(page.words)


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("cause=rejected", {"no domain", "no route"}),
        ("cause=expired", set()),
        ("tenant=acme", {"no route"}),
        ("no_tenant=1", {"no domain"}),
        ("reason=domain", {"no domain"}),
    ],
)
def test_the_table_has_groups_that_match(site: Site, client: Client, query: str, shown: set[str]) -> None:
    kill(client, "no domain")
    kill(client, "no route", fairness_key="acme")
    page = Page(site.get(f"/dead?topic={DEAD}&{query}").text)
    assert {row[1] for row in page.cells if row[0] == "rejected"} == shown


def test_a_group_without_the_text_in_its_sample_is_counted(site: Site, client: Client) -> None:
    kill(client, "SMTP 451")
    kill(client, "SMTP 452")
    said = [site.get(f"/dead?topic={DEAD}&reason={text}").text for text in ("451", "452")]
    assert ["1 further group:" in text for text in said] in ([True, False], [False, True])


def test_an_empty_topic_leads_to_its_dead_letters(site: Site, client: Client) -> None:
    kill(client, "no domain")
    assert f'<a href="/dead?topic={DEAD}">' in site.get("/dead?topic=mail").text


def test_a_refresh_shows_costly_groups_for_a_while(site: Site, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(client, "no domain")
    path, refresh = f"/dead?topic={DEAD}", {"hx-request": "true"}
    assert "1 dead letter in" in site.get(path, refresh).text
    kill(client, "no domain")
    assert "2 dead letters in" in site.get(path, refresh).text  # it costs little
    monkeypatch.setattr("foqs.console.dead_letters.COSTLY_S", 0.0)
    monkeypatch.setattr("foqs.console.dead_letters._KEEP", 1_000_000)
    site.get(path)
    kill(client, "no domain")
    assert "2 dead letters in" in site.get(path, refresh).text
    assert "3 dead letters in" in site.get(path).text
    assert "2 dead letters in" not in site.get(f"{path}&cause=rejected", refresh).text


def test_hostile_text_is_text(site: Site, client: Client) -> None:
    client.set_policy("pay", {"dead": {"topic": HOSTILE}})
    kill(client, HOSTILE, topic="pay")
    for path in ("/dead", f"/dead?topic={HOSTILE}", f"/dead?topic={HOSTILE}&tenant={HOSTILE}"):
        text = site.get(path).text
        assert escape(HOSTILE) in text
        assert HOSTILE not in text
        Page(text)


def test_a_wrong_condition_is_refused_in_words(site: Site) -> None:
    answer = site.get(f"/dead?topic={DEAD}&fingerprint=12")
    assert answer.status == 400
    assert "16 hexadecimal digits" in answer.text


# ------------------------------------------------------------------------------------------ redrive


def test_one_item_of_a_group_returns_at_once(site: Site, client: Client) -> None:
    kill(client, "no domain", 3)
    kill(client, "no route", 1)
    (group,) = [one for one in client.list_failures(DEAD).groups if one.count == 3]
    fields = {"topic": DEAD, "cause": "rejected", "fingerprint": group.fingerprint, "back": f"/dead?topic={DEAD}"}
    assert site.post("/dead/try", fields).headers["location"] == f"/dead?topic={DEAD}"
    (item,) = client.list_items("mail")
    assert {one.sample_reason: one.count for one in client.list_failures(DEAD).groups} == {
        "no domain": 2,
        "no route": 1,
    }
    page = site.get("/dead")
    assert f"1 item redriven from {DEAD}: item {item.id} → topic mail" in page.said
    assert f'<a href="/items/{item.id}">' in page.text
    assert "A consumer may lease it now" in site.get(f"/items/{item.id}").text
    client.ack(client.dequeue("mail")[0])
    gone = site.get(f"/items/{item.id}")
    assert (gone.status, f"no item has the id {item.id}: it was acked" in gone.text) == (404, True)


def test_one_item_of_each_group_returns_after_a_question(site: Site, client: Client) -> None:
    kill(client, "no domain", 3)
    kill(client, "no route", 4)
    fields = {"topic": DEAD, "each": "1", "pace": "", "to_topic": ""}
    asked = site.post("/dead/redrive", fields).text
    assert "2 items would return" in asked
    assert counts(client, DEAD) == 7
    site.post("/dead/redrive", {**fields, "confirmed": "yes"})
    assert {one.sample_reason: one.count for one in client.list_failures(DEAD).groups} == {
        "no domain": 2,
        "no route": 3,
    }
    page = site.get("/dead")
    assert f"2 items redriven from {DEAD}, one of each group:" in page.said
    for item in client.list_items("mail"):
        assert f'<a href="/items/{item.id}"><bdi>item {item.id} → topic mail</bdi></a>' in page.text


@pytest.mark.parametrize("path", [f"/dead?topic={DEAD}", "/items/{}"])
def test_a_chosen_dead_letter_returns_alone(site: Site, client: Client, path: str) -> None:
    ids = kill(client, "no domain", 4)
    (group,) = client.list_failures(DEAD).groups
    chosen = group.sample_id
    page = site.get(path.format(chosen)).text
    forms = re.findall(r'<form[^>]*action="/dead/one">(.*?)</form>', page, re.DOTALL)
    (fields,) = [dict(re.findall(r'name="([^"]*)" value="([^"]*)"', form)) for form in forms]
    assert site.post("/dead/one", fields).status == 303
    assert [item.id for item in client.list_items("mail")] == [chosen]
    assert sorted(item.id for item in client.list_items(DEAD)) == sorted({*ids} - {chosen})
    assert f"1 item redriven from {DEAD}: item {chosen} → topic mail" in site.get("/dead").said
    assert f"item {chosen} is no dead letter" in site.post("/dead/one", fields).text


def test_a_chosen_dead_letter_that_stays_says_why(site: Site, client: Client) -> None:
    first, second = kill(client, "no domain", 2)
    client.set_policy("mail", {"closed": True})
    closed = site.post("/dead/one", {"id": first})
    assert (closed.status, "the topic mail is closed" in closed.text) == (409, True)
    client.set_policy("mail", {"closed": False})
    (leased,) = client.dequeue(DEAD)
    answer = site.post("/dead/one", {"id": leased.id})
    assert (answer.status, "1 item stays, which a consumer has leased" in answer.text) == (409, True)
    assert counts(client, DEAD) == 2
    assert site.post("/dead/one", {"id": ({first, second} - {leased.id}).pop()}).status == 303


def test_no_other_dead_letter_returns_through_an_old_host(
    site: Site, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host of an earlier version does not know the condition, and names no items."""
    first, _ = kill(client, "no domain", 2)
    redrive = AsyncClient.redrive

    async def of_old(self: AsyncClient, topic: str, count: int, **options: Any) -> Redriven:
        return (await redrive(self, topic, count, **{**options, "filter": None}))._replace(items={})

    monkeypatch.setattr(AsyncClient, "redrive", of_old)
    answer = site.post("/dead/one", {"id": first})
    assert (answer.status, "a host of an earlier version" in answer.text) == (503, True)
    assert counts(client, DEAD) == 2


def test_a_dead_letter_is_deleted_from_its_row(site: Site, client: Client) -> None:
    kill(client, "no domain", 2)
    (group,) = client.list_failures(DEAD).groups
    page = site.get(f"/dead?topic={DEAD}").text
    assert f'action="/items/delete">\n<input type="hidden" name="id" value="{group.sample_id}">' in page
    fields = {"id": group.sample_id, "back": f"/dead?topic={DEAD}"}
    assert f"Delete item {group.sample_id}?" in site.post("/items/delete", fields).text
    done = site.post("/items/delete", fields | {"confirmed": "yes"})
    assert (done.headers["location"], counts(client, DEAD)) == (f"/dead?topic={DEAD}", 1)


def test_a_redrive_of_all_is_a_job_with_counts(site: Site, client: Client) -> None:
    kill(client, "no domain", 30, fairness_key="acme")
    kill(client, "no domain", 5)
    fields = {"topic": DEAD, "tenant": "acme", "pace": "10", "to_topic": "repair"}
    asked = unescape(site.post("/dead/redrive", fields).text)
    assert "30 items would return to the topic repair" in asked
    assert "At 10 a second it takes about 3 seconds." in asked
    assert counts(client, DEAD) == 35
    fields["pace"] = ""
    site.post("/dead/redrive", {**fields, "confirmed": "yes"})
    job = ended(site)
    assert (job.state.value, job.at_least, job.at_most, job.total) == ("finished", 30, 30, 30)
    assert client.topic_stats("repair").ready == 30
    assert counts(client, DEAD) == 5
    page = site.get("/jobs").text
    assert "30 items of 30" in page
    assert "finished" in page
    assert "30 items of 30" in site.get(f"/dead?topic={DEAD}").text


def test_an_item_that_dies_again_is_not_redriven_again(site: Site, client: Client, service: Server) -> None:
    kill(client, "no domain", 2)
    site.post("/dead/redrive", {"topic": DEAD, "confirmed": "yes"})
    ended(site)
    service.advance(seconds=1)
    kill_again = [client.nack(item, reject=True, reason="again") for item in client.dequeue("mail", count=2)]
    assert len(kill_again) == 2
    job = the_job(site)
    job.state = type(job.state).STOPPED
    site.post("/jobs/continue", {"job": job.id})
    ended(site)
    assert job.at_most == 2
    assert counts(client, DEAD) == 2


def test_a_closed_topic_keeps_its_dead_letters_out(site: Site, client: Client) -> None:
    client.set_policy("*", {"dead": {"topic": "graveyard"}})
    kill(client, "no domain", 2)
    kill(client, "no money", 3, topic="pay")
    client.set_policy("mail", {"closed": True})
    fields = {"topic": "graveyard", "confirmed": "yes"}
    site.post("/dead/redrive", fields)
    job = ended(site)
    assert (job.state.value, job.at_most, job.total) == ("failed", 3, 3)
    assert "2 dead letters stay" in job.said
    assert (counts(client, "graveyard"), client.topic_stats("pay").ready) == (2, 3)
    asked = site.post("/dead/redrive", {"topic": "graveyard"})
    assert asked.status == 404
    assert "2 dead letters stay" in asked.text


def test_some_thousand_items_are_redriven_once_over_a_cancel(site: Site, client: Client) -> None:
    kill(client, "no domain", 3_500)
    site.post("/dead/redrive", {"topic": DEAD, "confirmed": "yes"})
    site.wait(lambda: the_job(site).at_most >= 1_000)
    job = the_job(site)
    site.post("/jobs/cancel", {"job": job.id})
    ended(site)
    assert job.state.value == "cancelled"
    assert 1_000 <= job.at_least == job.at_most < 3_500
    assert (client.topic_stats("mail").ready, counts(client, DEAD)) == (job.at_most, 3_500 - job.at_most)
    site.post("/jobs/continue", {"job": job.id})
    ended(site)
    assert (job.state.value, job.at_least, job.at_most) == ("finished", 3_500, 3_500)
    assert (client.topic_stats("mail").ready, counts(client, DEAD)) == (3_500, 0)


@pytest.mark.parametrize("pace", ["-1", "1.5", "x", "1000001", "٣"])
def test_a_pace_that_is_none_is_refused(site: Site, client: Client, pace: str) -> None:
    kill(client, "no domain")
    answer = site.post("/dead/redrive", {"topic": DEAD, "pace": pace, "confirmed": "yes"})
    assert answer.status == 400
    assert counts(client, DEAD) == 1


# ------------------------------------------------------------------------------------------ delete


def test_a_group_is_deleted_after_its_topic_is_typed(site: Site, client: Client) -> None:
    kill(client, "no domain", 3)
    kill(client, "no route", 2)
    client.enqueue(DEAD, b"no dead letter")
    (group,) = [one for one in client.list_failures(DEAD).groups if one.count == 3]
    fields = {"topic": DEAD, "cause": "rejected", "fingerprint": group.fingerprint}
    asked = site.post("/dead/delete", fields).text
    assert "About 3 items would be deleted" in asked
    site.post("/dead/delete", {**fields, "typed": "another"})
    site.post("/dead/delete", {**fields, "confirmed": "yes"})
    assert counts(client, DEAD) == 5
    site.post("/dead/delete", {**fields, "typed": DEAD})
    job = ended(site)
    assert (job.state.value, job.at_least, job.at_most, job.total) == ("finished", 3, 3, 3)
    assert [one.sample_reason for one in client.list_failures(DEAD).groups] == ["no route"]
    assert client.topic_stats(DEAD).ready == 3


def test_all_that_match_are_deleted_over_many_pages(site: Site, client: Client) -> None:
    kill(client, "no domain of 'bob'", 1_100)
    kill(client, "no domain of 'ann'", 1_100, fairness_key="acme")
    kill(client, "no route", 100)
    asked = site.post("/dead/delete", {"topic": DEAD, "reason": "domain", "tenant": "acme"})
    assert "About 1,100 items would be deleted" in asked.text
    site.post("/dead/delete", {"topic": DEAD, "reason": "domain", "tenant": "acme", "typed": DEAD})
    assert ended(site).at_least == 1_100
    left = {group.sample_reason: group.count for group in client.list_failures(DEAD).groups}
    assert left == {"no domain of 'bob'": 1_100, "no route": 100}
    site.post("/dead/delete", {"topic": DEAD, "reason": "domain", "typed": DEAD})
    site.wait(lambda: not any(job.active for job in site.console.jobs._jobs.values()))
    assert [group.sample_reason for group in client.list_failures(DEAD).groups] == ["no route"]


def test_an_item_that_dies_after_the_question_stays(site: Site, client: Client, service: Server) -> None:
    kill(client, "no domain", 2)
    site.post("/dead/delete", {"topic": DEAD, "typed": DEAD})
    ended(site)
    service.advance(seconds=1)
    kill(client, "no domain", 3)
    job = the_job(site)
    job.state = type(job.state).STOPPED
    site.post("/jobs/continue", {"job": job.id})
    assert (ended(site).at_most, counts(client, DEAD)) == (2, 3)


def test_dead_letters_of_a_closed_topic_are_deleted(site: Site, client: Client) -> None:
    kill(client, "no domain", 3)
    client.set_policy("mail", {"closed": True})
    assert "About 3 items would be deleted" in site.post("/dead/delete", {"topic": DEAD}).text
    site.post("/dead/delete", {"topic": DEAD, "typed": DEAD})
    assert (ended(site).total, counts(client, DEAD)) == (3, 0)


def test_items_that_a_consumer_has_leased_stay(site: Site, client: Client) -> None:
    kill(client, "no domain", 3)
    assert len(client.dequeue(DEAD)) == 1
    site.post("/dead/delete", {"topic": DEAD, "typed": DEAD})
    job = ended(site)
    assert job.at_most == 2
    assert job.said == "1 item stays, which a consumer has leased"
    assert counts(client, DEAD) == 1


# ------------------------------------------------------------------------------------------ conditions


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
selections = st.builds(
    Selection,
    topic=texts.filter(bool),
    cause=st.sampled_from(["", *(cause.name.lower() for cause in FailureCause)]),
    fingerprint=st.sampled_from(["", "00000000000000ff"]),
    reason=texts,
    tenant=st.none() | texts,
    origin=texts,
)


@given(selections)
def test_fields_keep_the_conditions(chosen: Selection) -> None:
    assert Selection.of(chosen.fields()) == chosen
    assert all(chosen.fields().values())


@given(selections)
def test_the_filter_has_the_conditions(chosen: Selection) -> None:
    found = chosen.filter(before_ms=5)
    wanted = FailureFilter(
        chosen.fingerprint or None, FailureCause[chosen.cause.upper()] if chosen.cause else None, chosen.reason or None,
        5, origin_topic=chosen.origin or None, fairness_key=chosen.tenant,
    )  # fmt: skip
    assert found == wanted


def test_a_cause_of_a_newer_service_is_refused() -> None:
    with pytest.raises(Invalid, match="cause is 'drowned'"):
        Selection("a", cause="drowned").filter()
