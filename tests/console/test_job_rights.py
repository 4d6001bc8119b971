"""Jobs, dead letters and schedules of users with different rights, and jobs of sessions that end."""

import itertools
import json
from collections.abc import Iterator
from hashlib import sha256

import pytest

from foqs.client import Client
from foqs.console.jobs import Job
from foqs.store.maintenance import create_schema
from tests.api.hosts import HostProcess
from tests.console.asgi import Site

pytestmark = [pytest.mark.process, pytest.mark.threads]

ANN, BOB, EVE = (f"a-token-of-{name}-with-enough-letters-for-all" for name in ("ann", "bob", "eve"))
RIGHTS = {"ann": '"*" = ["produce", "consume", "admin"]', "bob": '"shop" = ["produce"]', "eve": '"shop" = ["admin"]'}
PRINCIPALS = "".join(
    f'[principals.{name}]\ntoken_sha256 = "{sha256(token.encode()).hexdigest()}"\nrights = {{ {RIGHTS[name]} }}\n'
    for name, token in (("ann", ANN), ("bob", BOB), ("eve", EVE))
)
_topics = itertools.count(1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a host that asks for tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    url = f"sqlite:///{folder / 'shard.db'}"
    create_schema(url, 1)
    (folder / "principals.toml").write_text(PRINCIPALS)
    config = folder / "foqs.toml"
    config.write_text(
        f'[server]\nport = 0\n[[shards]]\nid = 1\nurl = "{url}"\n'
        f'[auth]\nprincipals_file = "{folder / "principals.toml"}"\n'
    )
    with HostProcess(folder / "log", ["serve", "--config", config]) as host:
        yield "{}:{}".format(*host.address)


@pytest.fixture
def site(guarded: str) -> Iterator[Site]:
    made = Site(guarded)
    yield made
    made.close()


@pytest.fixture
def client(guarded: str) -> Iterator[Client]:
    with Client(guarded, "shop", token=ANN) as made:
        yield made


@pytest.fixture
def topic(client: Client) -> str:
    """A topic with 20 dead letters."""
    topic = f"mail-{next(_topics)}"
    for _ in range(20):
        client.enqueue(topic, b"x")
    for item in client.dequeue(topic, count=20, wait_ms=5_000):
        client.nack(item, reject=True, reason="a secret reason")
    assert sum(group.count for group in client.list_failures(f"{topic}.dlq").groups) == 20
    return topic


def begin(site: Site, topic: str) -> Job:
    """Begin a job that has hardly begun when its session ends."""
    fields = {"topic": f"{topic}.dlq", "pace": "1", "confirmed": "yes"}
    assert site.post("/dead/redrive?ns=shop", fields).status == 303
    job = list(site.console.jobs._jobs.values())[-1]
    site.wait(lambda: job.at_most > 0)
    assert job.active
    return job


def test_a_user_without_the_right_sees_no_reasons(site: Site, topic: str) -> None:
    site.sign_in(BOB)
    text = site.get(f"/dead?ns=shop&topic={topic}.dlq").text
    assert "Dead letters are for tokens with the right" in text
    assert "secret" not in text
    assert 'action="/dead/' not in text
    for path in ("try", "redrive", "delete"):
        fields = {"topic": f"{topic}.dlq", "confirmed": "yes", "typed": f"{topic}.dlq"}
        assert site.post(f"/dead/{path}?ns=shop", fields).status == 403
    assert site.console.jobs._jobs == {}


def test_a_user_without_the_right_changes_no_schedule(site: Site, client: Client) -> None:
    client.put_settings({"schedule.nightly": json.dumps({"cron": "0 3 * * *", "topic": "t"})})
    site.sign_in(BOB)
    text = site.get("/schedules?ns=shop").text
    assert "every day at 03:00" in text
    assert "<button" not in text[text.index('id="live"') :].partition("</main>")[0]
    for path in ("run", "pause", "set", "delete"):
        fields = {"name": "nightly", "typed": "nightly", "mark": "", "cron": "@every 1s", "topic": "t"}
        assert site.post(f"/schedules/{path}?ns=shop", fields).status in (403, 409)
    assert "0 3 * * *" in client.settings("schedule.nightly").entries["schedule.nightly"]


def test_another_user_continues_a_job_of_a_signed_out_one(site: Site, topic: str) -> None:
    site.sign_in(ANN)
    job = begin(site, topic)
    site.post("/logout", {})
    site.wait(lambda: not job.active)
    assert (job.state.value, job.owner) == ("stopped", "ann")
    assert "sign in and continue" in job.said
    site.sign_in(BOB)
    assert job.id not in site.get("/jobs?ns=shop").text
    assert ">Jobs</a>" not in site.get("/topics?ns=shop").text
    assert site.post("/jobs/continue?ns=shop", {"job": job.id}).status == 404
    site.cookies.clear()
    site.sign_in(EVE)
    assert job.id in site.get("/jobs?ns=shop").text
    assert ">Jobs</a>" in site.get("/topics?ns=shop").text
    assert site.post("/jobs/continue?ns=shop", {"job": job.id}).status == 303
    assert (job.active, job.owner) == (True, "eve")
    assert site.post("/jobs/cancel?ns=shop", {"job": job.id}).status == 303
    site.wait(lambda: not job.active)
    assert job.state.value == "cancelled"


def test_a_job_stops_when_its_session_is_idle(site: Site, topic: str) -> None:
    site.sign_in(ANN)
    job = begin(site, topic)
    site.now_s += 8 * 3600
    site.wait(lambda: not job.active)
    assert job.state.value == "stopped"
