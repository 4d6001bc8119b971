"""Changes of all items that match: they are jobs of a console, over a service in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foqs.client import Client, Item, ItemSpec, ItemState
from foqs.console import bulk
from foqs.console.bulk import step
from foqs.console.jobs import Job, JobState
from foqs.testing import Server
from tests.console.asgi import Answer, Site
from tests.console.browser import client, service
from tests.console.rig import HOSTILE, ROOT, SEER, guarded

__all__ = ["client", "guarded", "service"]  # fixtures
pytestmark = pytest.mark.threads

KIND = {"kind": "invoice"}


class Operator:
    """A user of a console, in one namespace."""

    def __init__(self, address: str, ns: str, **options: Any) -> None:
        self.site = Site(address, **options)
        self.ns = ns

    def get(self, path: str) -> Answer:
        return self.site.get(f"{path}{'&' if '?' in path else '?'}ns={self.ns}")

    def post(self, path: str, fields: Mapping[str, Any]) -> Answer:
        return self.site.post(f"{path}?ns={self.ns}", fields)

    def confirm(self, path: str, question: Answer, typed: str = "") -> Answer:
        assert question.status == 200, question.said
        hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', question.text)
        answer = {"typed": typed} if typed else {"confirmed": "yes"}
        return self.post(path, {**{name: unescape(value) for name, value in hidden}, **answer})

    def begin(self, path: str, fields: Mapping[str, Any], typed: str = "") -> Job:
        answer = self.confirm(path, self.post(path, fields), typed)
        assert answer.status == 303, answer.said
        assert answer.headers["location"].startswith("/jobs")
        return self.jobs[-1]

    def run(self, path: str, fields: Mapping[str, Any], typed: str = "") -> Job:
        """Return a job that has ended."""
        return self.ended(self.begin(path, fields, typed))

    def ended(self, job: Job) -> Job:
        self.site.wait(lambda: not job.active)
        return job

    @property
    def jobs(self) -> list[Job]:
        return [*self.site.console.jobs._jobs.values()]


@pytest.fixture
def operator(service: Server, client: Client) -> Any:
    made = Operator(service.address, client.namespace)
    yield made
    made.site.close()


def states(client: Client, topic: str = "mail") -> dict[int, Any]:
    return {item.id: item.state for item in client.list_items(topic)}


# ------------------------------------------------------------------------------------------ deletes


def test_items_that_match_are_deleted_and_no_other(operator: Operator, client: Client) -> None:
    match = client.enqueue_many([ItemSpec("mail", b"x", headers=KIND)] * 3)
    later = client.enqueue_many([ItemSpec("mail", b"x", headers=KIND, delay_ms=60_000)] * 2)
    other = client.enqueue_many([ItemSpec("mail", b"x", headers={"kind": "export"}), ItemSpec("mail", b"x")])
    fields = {"topic": "mail", "state": "ready", "header": "kind=invoice"}
    page = operator.get("/items?topic=mail&state=ready&header=kind%3Dinvoice")
    assert 'action="/items/all/place' in page.text
    question = operator.post("/items/all/delete", fields)
    assert "Delete items of topic mail in state ready with the header kind=invoice?" in question.said
    assert "That is 3 items." in question.said
    assert operator.confirm("/items/all/delete", question, "another topic").status == 200
    assert len(states(client)) == 7
    assert operator.jobs == []
    job = operator.run("/items/all/delete", fields, "mail")
    assert (job.state, job.at_least, job.at_most, job.total) == (JobState.FINISHED, 3, 3, 3)
    assert set(states(client)) == {*later, *other}
    assert not set(match) & set(states(client))
    assert "3 items of 3" in operator.get("/jobs").said


def test_leased_items_stay_unless_the_form_says_so(operator: Operator, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 5)
    held = [item.id for item in client.dequeue("mail", count=2, lease_ms=60_000)]
    question = operator.post("/topics/purge", {"topic": "mail"})
    assert "That is 3 items." in question.said
    assert "2 leased items stay." in question.said
    job = operator.ended(operator.begin("/topics/purge", {"topic": "mail"}, "mail"))
    assert (job.at_most, sorted(states(client))) == (3, sorted(held))
    assert "2 items stay, which consumers have leased" in operator.get("/jobs").said
    assert operator.post("/topics/purge", {"topic": "mail"}).status == 404
    question = operator.post("/topics/purge", {"topic": "mail", "leased": "1"})
    assert "Delete items of topic mail, leased ones too?" in question.said
    operator.ended(operator.begin("/topics/purge", {"topic": "mail", "leased": "1"}, "mail"))
    assert states(client) == {}


def test_a_purge_is_about_one_tenant_and_one_state(operator: Operator, client: Client) -> None:
    acme = client.enqueue_many([ItemSpec("mail", b"x", fairness_key="acme")] * 2)
    later = client.enqueue("mail", b"x", fairness_key="acme", delay_ms=60_000)
    other = client.enqueue("mail", b"x", fairness_key="umbrella")
    fields = {"topic": "mail", "tenant": "acme", "state": "ready", "header": "no field=of this form"}
    job = operator.run("/topics/purge", fields, "mail")
    assert job.what == "Delete items of topic mail in state ready of the tenant acme"
    assert set(states(client)) == {later, other}
    assert operator.run("/topics/purge", {"topic": "mail", "tenant": "acme"}, "mail").at_most == 1
    keyless = client.enqueue("mail", b"x")
    assert (set(states(client)), len(acme)) == ({other, keyless}, 2)
    assert operator.run("/topics/purge", {"topic": "mail", "keyless": "1"}, "mail").at_most == 1
    assert set(states(client)) == {other}


def test_ended_items_that_a_topic_keeps_are_purged(operator: Operator, client: Client) -> None:
    client.set_policy("mail", {"keep": {"completed_ms": 60_000}})
    client.enqueue("mail", b"x")
    for item in client.dequeue("mail"):
        client.ack(item)
    assert [*states(client).values()] == [ItemState.COMPLETED]
    assert operator.run("/topics/purge", {"topic": "mail"}, "mail").at_most == 1
    assert states(client) == {}


@pytest.mark.parametrize("topic", HOSTILE)
def test_a_hostile_topic_is_text_only(operator: Operator, client: Client, topic: str) -> None:
    client.enqueue_many([ItemSpec(topic, b"x")] * 2)
    kept = client.enqueue("mail", b"x")
    question = operator.post("/items/all/delete", {"topic": topic})
    assert "<script>alert" not in question.text
    assert "<img src=x" not in question.text
    assert "\u202e" not in question.said
    assert operator.run("/items/all/delete", {"topic": topic}, topic).at_most == 2
    page = operator.get("/jobs").text
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert (states(client, topic), [*states(client)]) == ({}, [kept])


# ------------------------------------------------------------------------------------------ changes


def test_items_run_now_while_consumers_take_some(operator: Operator, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x", headers=KIND, delay_ms=3_600_000)] * 40)
    still = client.enqueue_many([ItemSpec("mail", b"x", delay_ms=3_600_000)] * 10)
    taken: list[int] = []
    acks = Between(operator, lambda: taken.extend(item.id for item in consume(client, 3)))
    job = operator.run("/items/all/run-now", {"topic": "mail", "header": "kind=invoice", "pace": "10"})
    assert (job.state, job.at_least, job.at_most) == (JobState.FINISHED, 40, 40)
    assert acks.steps > 4
    left = states(client)
    assert len(taken) == len(set(taken))
    assert {item_id for item_id, state in left.items() if state == ItemState.DELAYED} == set(still)
    assert len([one for one in left.values() if one == ItemState.READY]) + len(taken) == 40


def consume(client: Client, count: int) -> list[Item]:
    items = [*client.dequeue("mail", count=count)]
    for item in items:
        client.ack(item)
    return items


class Between:
    """Does something before each step of the jobs, whose clock does not wait for a pace."""

    def __init__(self, operator: Operator, do: Callable[[], object]) -> None:
        self.steps = 0
        self._do = do
        self._jobs = operator.site.console.jobs
        self._jobs._steps = dict.fromkeys(self._jobs._steps, self._step)
        self._jobs._pause = self._no_pause

    async def _step(self, client: Any, job: Job, most: int) -> Any:
        self.steps += 1
        self._do()
        return await step(client, job, most)

    async def _no_pause(self, _woken: Any, _seconds: float) -> None: ...


def test_another_priority_ends_though_items_come_up_again(operator: Operator, client: Client) -> None:
    ids = client.enqueue_many([ItemSpec("mail", b"x", priority=at % 7) for at in range(60)])
    Between(operator, lambda: None)
    job = operator.run("/items/all/place", {"topic": "mail", "priority": "0..5", "new_priority": "3", "pace": "10"})
    had, wanted = [at for at in range(60) if at % 7 == 3], [at for at in range(60) if at % 7 <= 5]
    assert (job.state, job.at_least) == (JobState.FINISHED, len(wanted) - len(had))
    found = {item.id: item.priority for item in client.list_items("mail")}
    assert found == {int(item_id): 6 if at % 7 == 6 else 3 for at, item_id in enumerate(ids)}


def test_a_delay_is_the_same_for_all_and_from_the_begin(operator: Operator, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 15)
    client.enqueue_many([ItemSpec("mail", b"x", delay_ms=at * 60_000) for at in range(1, 16)])
    Between(operator, lambda: None)
    job = operator.run("/items/all/place", {"topic": "mail", "new_delay": "5m", "new_priority": "2", "pace": "4"})
    assert (job.state, job.at_least) == (JobState.FINISHED, 30)
    items = [*client.list_items("mail")]
    assert {item.deliver_after_ms for item in items} == {job.given["begun_ms"] + 300_000}
    assert {(item.state, item.priority) for item in items} == {(ItemState.DELAYED, 2)}


def test_items_that_become_ready_while_the_job_works_are_changed(operator: Operator, client: Client) -> None:
    """They move from the delayed ones, which the job has not read to the end, to the ready ones."""
    ids = client.enqueue_many([ItemSpec("mail", b"x", delay_ms=3_600_000 + at) for at in range(20)])
    between = Between(operator, lambda: client.change(ids[15:], delay_ms=0) if between.steps == 3 else None)
    job = operator.run("/items/all/place", {"topic": "mail", "new_priority": "9", "pace": "5"})
    assert (job.state, job.at_least) == (JobState.FINISHED, 20)
    assert {item.priority for item in client.list_items("mail")} == {9}


def test_items_of_later_enqueues_stay(service: Server, operator: Operator, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x", priority=1)] * 10)
    later: list[int] = []

    def enqueue() -> None:
        service.advance(ms=1)
        later.append(client.enqueue("mail", b"x", priority=5))

    Between(operator, enqueue)
    job = operator.begin("/items/all/delete", {"topic": "mail", "pace": "2"}, "mail")
    operator.ended(job)
    assert (job.at_least, len(later) >= 5) == (10, True)
    assert set(states(client)) == set(later)


def test_items_that_consumers_take_are_counted(operator: Operator, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 6)
    held: list[int] = []
    calls = operator.site.console.jobs._steps

    async def lease_then_change(caller: Any, job: Job, most: int) -> Any:
        async def change(ids: Any, **values: Any) -> Any:
            held.extend(item.id for item in client.dequeue("mail", count=2, lease_ms=60_000))
            return await caller.change(ids, **values)

        return await step(SimpleNamespace(search_items=caller.search_items, change=change), job, most)  # type: ignore[arg-type]

    operator.site.console.jobs._steps = {**calls, "change-items": lease_then_change}
    job = operator.run("/items/all/place", {"topic": "mail", "new_priority": "4"})
    assert (job.state, job.at_least, len(held)) == (JobState.FINISHED, 4, 2)
    assert "2 items were taken by consumers, or ended, before the change" in operator.get("/jobs").said
    assert {item.id for item in client.list_items("mail") if item.priority == 0} == set(held)


def test_a_job_ends_though_consumers_postpone_its_items(service: Server, operator: Operator, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x", delay_ms=3_600_000)] * 12)
    client.set_policy("mail", {"max_attempts": 1_000})

    def postpone() -> None:
        service.advance(seconds=1)
        for item in client.dequeue("mail", count=100):
            client.nack(item, delay_ms=3_600_000, reason="no")

    between = Between(operator, postpone)
    job = operator.run("/items/all/run-now", {"topic": "mail", "pace": "4"})
    assert (job.state, job.at_least) == (JobState.FINISHED, 12)
    assert between.steps < 12
    assert max(item.attempt for item in client.list_items("mail")) == 1


def test_a_run_that_remembers_its_most_items_may_continue(
    operator: Operator, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST_REMEMBERED", 10)
    client.enqueue_many([ItemSpec("mail", b"x", delay_ms=3_600_000)] * 25)
    Between(operator, lambda: None)
    job = operator.run("/items/all/run-now", {"topic": "mail", "pace": "5"})
    for changed in (10, 20):
        assert (job.state, job.at_least) == (JobState.FAILED, changed)
        assert "10 items of one run: continue the job" in operator.get("/jobs").said
        operator.post("/jobs/continue", {"job": job.id})
        operator.ended(job)
    assert (job.state, job.at_least) == (JobState.FINISHED, 25)


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/items/all/place", {"topic": "mail"}, "give a delay, a priority, or both"),
        ("/items/all/place", {"new_delay": "5m"}, "needs a topic, and no id"),
        ("/items/all/delete", {"topic": "mail", "id": "7"}, "needs a topic, and no id"),
        ("/items/all/delete", {"topic": "mail", "dedup": "k", "typed": "mail"}, "needs a topic, and no id"),
        ("/items/all/delete", {"topic": "mail", "pace": "-1"}, "pace: give whole items a second"),
        ("/items/all/delete", {"topic": "mail", "pace": "9" * 5_000}, "pace: give whole items a second"),
        ("/items/all/delete", {"topic": "mail", "priority": "x", "typed": "mail"}, "Priority: 'x' is no whole number"),
        ("/items/all/place", {"topic": "mail", "state": "leased", "new_delay": "5m"}, "only ready and delayed ones"),
        ("/items/all/run-now", {"topic": "mail", "state": "ready"}, "only delayed ones can become ready"),
        (
            "/items/all/place",
            {"topic": "mail", "state": "ready", "new_delay": "0s"},
            "only delayed ones can become ready",
        ),
        ("/items/all/place", {"topic": "mail", "new_delay": "999d"}, "Delay: at most a year"),
        ("/items/all/place", {"topic": "mail", "new_priority": "3000000000"}, "New priority: it has 32 bits"),
        ("/topics/purge", {"topic": "mail", "state": "ready", "leased": "1"}, "that is for items in any state"),
    ],
)
def test_a_wrong_form_begins_no_job(
    operator: Operator, client: Client, path: str, fields: dict[str, str], said: str
) -> None:
    client.enqueue("mail", b"x")
    answer = operator.post(path, {**fields, "confirmed": "yes"})
    assert (answer.status, operator.jobs) == (400, [])
    assert said in answer.said


def test_nothing_to_do_begins_no_job(operator: Operator, client: Client) -> None:
    client.enqueue("mail", b"x", priority=4)
    for path, fields in (
        ("/items/all/place", {"topic": "mail", "new_priority": "4", "confirmed": "yes"}),
        ("/items/all/delete", {"topic": "other", "typed": "other"}),
        ("/items/all/run-now", {"topic": "mail", "confirmed": "yes"}),
    ):
        assert operator.post(path, fields).status == 404
    assert operator.jobs == []


def test_a_question_says_how_far_it_looked(operator: Operator, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 1_005)
    said = operator.post("/items/all/delete", {"topic": "mail"}).said
    assert "That is at least 1,000 items, among the first 1,000 looked at." in said
    job = operator.run("/items/all/delete", {"topic": "mail"}, "mail")
    assert (job.total, job.at_least, states(client)) == (None, 1_005, {})
    assert "1,005 looked at" in operator.get("/jobs").said


# ------------------------------------------------------------------------------------------ cancel, restart


def test_a_cancelled_job_leaves_the_rest(operator: Operator, client: Client) -> None:
    client.enqueue_many([ItemSpec("mail", b"x")] * 30)

    def cancel() -> None:
        if between.steps == 5:  # the first one counts leased items; two find none behind another one, and none delayed
            operator.site.console.jobs._cancels[operator.jobs[0].id].set()

    between = Between(operator, cancel)
    job = operator.run("/items/all/delete", {"topic": "mail", "pace": "10"}, "mail")
    assert (job.state, job.at_least, job.at_most) == (JobState.CANCELLED, 20, 20)
    assert len(states(client)) == 10
    page = operator.get("/jobs")
    assert "20 items of 30 20 looked at" in page.said
    assert operator.post("/jobs/continue", {"job": job.id}).status == 303
    operator.ended(job)
    assert (job.state, job.at_most, states(client)) == (JobState.FINISHED, 30, {})


@pytest.mark.parametrize(
    ("path", "fields", "typed"),
    [
        ("/items/all/delete", {"header": "kind=invoice"}, "mail"),
        ("/items/all/place", {"header": "kind=invoice", "new_priority": "5", "new_delay": "1h"}, ""),
    ],
)
def test_a_job_continues_after_a_restart(
    service: Server, client: Client, tmp_path: Path, path: str, fields: dict[str, str], typed: str
) -> None:
    client.enqueue_many([ItemSpec("mail", b"x", headers=KIND)] * 30)
    other = client.enqueue("mail", b"x")
    before = Operator(service.address, client.namespace, state_dir=tmp_path)
    job = before.begin(path, {"topic": "mail", "pace": "10", **fields}, typed)
    before.site.wait(lambda: job.at_least == 10)
    kept = [one.progress["cursor"] for one in before.jobs]
    before.site.close()
    assert job.state is JobState.STOPPED
    assert kept != [None]
    after = Operator(service.address, client.namespace, state_dir=tmp_path)
    looked_at: list[int] = []
    Between(after, lambda: looked_at.append(job.progress.get("looked_at", 0)))
    page = after.get("/jobs")
    (job,) = after.jobs
    assert (job.progress["cursor"], job.progress["looked_at"]) == (kept[0], 10)
    assert "the console ended: continue the job" in page.said
    assert after.post("/jobs/continue", {"job": job.id}).status == 303
    after.ended(job)
    assert (job.state, job.at_least, looked_at[0]) == (JobState.FINISHED, 30, 10)
    left = {item.id: (item.priority, item.deliver_after_ms) for item in client.list_items("mail")}
    assert left.pop(other)[0] == 0
    assert set(left.values()) == (set() if typed else {(5, job.given["begun_ms"] + 3_600_000)})
    after.site.close()


def test_a_job_that_continues_tries_failed_items_again(operator: Operator, client: Client) -> None:
    stays = client.enqueue("mail", b"x", ttl_ms=60_000)
    client.enqueue_many([ItemSpec("mail", b"x")] * 3)
    job = operator.run("/items/all/place", {"topic": "mail", "new_delay": "2m"})
    assert (job.state, job.at_least) == (JobState.FAILED, 3)
    assert "1 item failed; the first error: the item may not wait until" in operator.get("/jobs").said
    client.delete_items([stays])
    operator.post("/jobs/continue", {"job": job.id})
    operator.ended(job)
    assert (job.state, job.at_least) == (JobState.FINISHED, 3)


# ------------------------------------------------------------------------------------------ rights, links


@pytest.mark.process
def test_a_user_without_the_right_admin_begins_and_sees_no_job(guarded: str) -> None:
    with Client(guarded, "shop", token=ROOT) as client:
        client.enqueue_many([ItemSpec("mail", b"x", delay_ms=60_000)] * 3)
        seer = Operator(guarded, "shop")
        assert seer.site.sign_in(SEER).status == 303
        for path, answer in (
            ("/items/all/delete", {"typed": "mail"}), ("/items/all/place", {"confirmed": "yes"}),
            ("/items/all/run-now", {"confirmed": "yes"}), ("/topics/purge", {"typed": "mail"}),
        ):  # fmt: skip
            for fields in ({"topic": "mail", "new_delay": "5m"}, {"topic": "mail", "new_delay": "5m", **answer}):
                assert seer.post(path, fields).status == 403
        assert seer.jobs == []
        for path in ("/items?topic=mail", "/topics/mail"):
            assert not re.search("/items/all/|/topics/purge", seer.get(path).text)
        seers, seer.site.cookies = seer.site.cookies, {}
        assert seer.site.sign_in(ROOT).status == 303
        job = seer.begin("/items/all/delete", {"topic": "mail", "pace": "1"}, "mail")
        assert job.id in seer.get("/jobs").text
        seer.site.cookies = seers
        assert job.id not in seer.get("/jobs").text
        for path in ("/jobs/cancel", "/jobs/continue"):
            assert seer.post(path, {"job": job.id}).status == 404
        assert job.active
        seer.site.close()


def test_a_console_that_only_reads_offers_no_change_of_all(service: Server, client: Client) -> None:
    client.enqueue("mail", b"x")
    reader = Operator(service.address, client.namespace, read_only=True)
    for path in ("/items?topic=mail", "/topics/mail"):
        assert not re.search("/items/all/|/topics/purge", reader.get(path).text)
    assert reader.post("/items/all/delete", {"topic": "mail", "typed": "mail"}).status == 403
    reader.site.close()
