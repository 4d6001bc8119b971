"""Targets on a real host: what happens to items, and to the other targets, when an endpoint misbehaves."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from foqs.client import AsyncClient, ItemSpec, ItemState
from foqs.client.operator_types import ServerInfo
from foqs.errors import Invalid, NotFound, Unavailable
from foqs.push.addresses import Allow
from foqs.push.delivery import FAILING_S, MOST_PAUSE_S, WORKING_S, Delivery, Health, Plan
from foqs.push.pusher import Pusher
from foqs.push.replies import Settlement
from foqs.push.signing import Secrets, key_of, signature
from foqs.push.target import Target
from tests.push.conftest import LATER_MS, LOOPBACK, SOON_MS
from tests.support.waiting import wait_until_on_loop

pytestmark = [pytest.mark.anyio, pytest.mark.threads]

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_KEY = "whsec_" + "QUJD" * 8
NONE = Secrets()


def target(name: str, port: int, path: str = "", **fields: Any) -> Target:
    fields = {"topic": name, "timeout_ms": LATER_MS, **fields}
    return Target(name, "shop", url=f"http://127.0.0.1:{port}/{path}", **fields)


class Site:
    """An HTTP server whose paths answer as `answers` says, by default with 200. `got`: ids by path, in order;
    `taken`: ids that were answered with 200."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.got: defaultdict[str, list[int]] = defaultdict(list)
        self.taken: defaultdict[str, list[int]] = defaultdict(list)
        self.at_work: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def answer(self, asked: web.Request) -> web.StreamResponse:
        path = asked.match_info["path"]
        self.got[path].append(int(asked.headers["webhook-id"]))
        self.at_work[path] += 1
        self.most[path] = max(self.most[path], self.at_work[path])
        try:
            if path in self.answers:
                answered: web.StreamResponse = await self.answers[path](asked)
                return answered
            self.taken[path].append(self.got[path][-1])
            return web.Response(text=path)
        finally:
            self.at_work[path] -= 1


async def hang(_: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError


async def close(asked: web.Request) -> web.Response:
    assert asked.transport is not None
    asked.transport.abort()
    return web.Response()


def status(number: int, **headers: str) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=number, headers={name.replace("_", "-"): one for name, one in headers.items()})

    return answer


async def stored(client: AsyncClient, topic: str, count: int = 1, **options: Any) -> list[int]:
    outcomes = await client.enqueue_many([ItemSpec(topic, b"%d" % n, **options) for n in range(count)])
    assert all(isinstance(one, int) for one in outcomes)
    return [one for one in outcomes if isinstance(one, int)]


async def left(client: AsyncClient, topic: str) -> list[Any]:
    return [item async for item in client.list_items(topic)]


async def ended(client: AsyncClient, ids: list[int]) -> None:
    """Wait until the items are acked. A list of a topic may leave out an item that a consumer takes."""
    deadline = monotonic() + 60
    for item_id in ids:
        with suppress(NotFound):
            while await client.get_item(item_id):
                assert monotonic() < deadline, item_id
                await asyncio.sleep(0.01)


async def dead_letter(client: AsyncClient, topic: str) -> Any:
    deadline = monotonic() + 60
    while not (found := await left(client, topic)):
        assert monotonic() < deadline
        await asyncio.sleep(0.01)
    (dead,) = found
    return dead


async def test_bad_targets_lose_no_item_and_delay_no_other_target(
    serve: Any, client: AsyncClient, pusher: Pusher
) -> None:
    site = Site()
    port = await serve(site.answer)
    bad = {"hang": hang, "broken": status(500), "busy": status(429, Retry_After="1"), "closing": close}
    good = ["good1", "good2", "good3"]
    site.answers.update(bad)
    retry = {"retry": {"kind": "constant", "first_ms": 300}, "max_attempts": 0}
    await client.put_settings({f"topic.{name}": json.dumps(retry) for name in bad})
    ids = {name: await stored(client, name, 40) for name in [*bad, *good]}
    targets = [target(name, port, name, concurrency=2, timeout_ms=SOON_MS) for name in bad]
    targets += [target(name, port, name, concurrency=4) for name in good]
    pusher.follow(targets, LOOPBACK, NONE)

    for name in good:
        await ended(client, ids[name])
    for name in good:
        assert sorted(site.got[name]) == sorted(ids[name]), "each once"
    for name in bad:
        assert site.got[name]
        assert not site.taken[name]
        assert site.most[name] <= 2

    site.answers.clear()  # they recover
    for name in bad:
        await ended(client, ids[name])
        assert sorted(site.taken[name]) == sorted(ids[name]), "none is lost"
    ends = {name: {end for (of, end) in pusher.meter.requests if of == name} for name in [*bad, *good]}
    assert ends == {
        "hang": {"fail", "ack"}, "broken": {"fail", "ack"}, "busy": {"release", "ack"}, "closing": {"fail", "ack"},
        **{name: {"ack"} for name in good},
    }  # fmt: skip
    assert all(pusher.meter.requests[name, "ack"] == 40 for name in ids)
    await wait_until_on_loop(lambda: not +pusher.meter.in_flight)


async def test_the_body_of_the_reply_is_the_result(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    pusher.follow([target("t", await serve(site.answer), "a")], LOOPBACK, NONE)
    await client.put_settings({"topic.t": json.dumps({"keep": {"completed_ms": 60_000}})})
    (item_id,) = await stored(client, "t")
    assert (await client.get_result(item_id, wait_ms=LATER_MS)).result == b"a"


async def test_the_end_of_an_item_is_a_webhook(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    bodies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def answer(asked: web.Request) -> web.Response:
        assert asked.headers["content-type"] == "application/json"
        bodies.put_nowait(await asked.json())
        return web.Response()

    site = Site()
    site.answers["ends"] = answer
    port = await serve(site.answer)
    await client.put_settings({"topic.t": json.dumps({"on_end_topic": "t.ends"})})
    pusher.follow([target("t", port, "work"), target("t.ends", port, "ends")], LOOPBACK, NONE)
    (item_id,) = await stored(client, "t")
    async with asyncio.timeout(60):
        body = await bodies.get()
    assert body | {"ended_at_ms": 0} == {
        "id": str(item_id), "topic": "t", "how": "completed", "ended_at_ms": 0, "result": "work",
    }  # fmt: skip


async def test_a_result_that_hosts_refuse_is_left_out(
    serve: Any, client: AsyncClient, pusher: Pusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = await client.server_info()
    bounds = info._replace(limits={**info.limits, "result_bytes": 3, "lease_max_ms": 1_000})

    async def server_info(**_: Any) -> ServerInfo:
        return bounds

    monkeypatch.setattr(client, "server_info", server_info)
    site = Site()
    port = await serve(site.answer)
    pusher.follow([target("t", port, "abc"), target("u", port, "abcd")], LOOPBACK, NONE)
    await client.put_settings({f"topic.{topic}": json.dumps({"keep": {"completed_ms": 60_000}}) for topic in "tu"})
    ids = [*await stored(client, "t"), *await stored(client, "u")]
    assert [(await client.get_result(one, wait_ms=LATER_MS)).result for one in ids] == [b"abc", None]


async def test_a_status_that_is_final_rejects(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    site.answers["a"] = status(410)
    await client.put_settings({"topic.t": json.dumps({"dead": {"topic": "t.dead"}})})
    (item_id,) = await stored(client, "t")
    pusher.follow([target("t", await serve(site.answer), "a")], LOOPBACK, NONE)
    dead = await dead_letter(client, "t.dead")
    assert dead.id == item_id
    assert (dead.failure.reason, dead.failure.attempts) == ("status 410 (Gone)", 1)


async def test_a_failure_counts_and_says_why(
    serve: Any, client: AsyncClient, pusher: Pusher, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    site.answers["a"] = status(502)
    policy = {"dead": {"topic": "t.dead"}, "max_attempts": 3, "retry": {"kind": "constant", "first_ms": 1}}
    await client.put_settings({"topic.t": json.dumps(policy)})
    await stored(client, "t")
    with capture_logs() as logs:
        pusher.follow([target("t", await serve(site.answer), "a")], LOOPBACK, NONE)
        dead = await dead_letter(client, "t.dead")
    assert (dead.failure.reason, dead.failure.attempts) == ("PushFailed: status 502 (Bad Gateway)", 3)
    assert len(site.got["a"]) == 3
    (failing,) = [entry for entry in logs if entry["event"] == "push.failing"]
    assert (failing["name"], failing["outcome"], failing["failures"]) == ("t", "fail", 1)
    assert not caplog.records, "no traceback for each attempt"


async def test_a_retry_after_counts_no_attempt(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    site.answers["a"] = status(503, Retry_After="0")
    await client.put_settings({"topic.t": json.dumps({"dead": {"topic": "t.dead"}, "max_attempts": 1})})
    ids = await stored(client, "t")
    pusher.follow([target("t", await serve(site.answer), "a")], LOOPBACK, NONE)
    await wait_until_on_loop(lambda: len(site.got["a"]) >= 2)
    site.answers.clear()
    await ended(client, ids)
    assert set(site.got["a"]) == set(ids)
    assert not await left(client, "t.dead")


async def test_no_more_items_are_leased_than_are_sent(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    site.answers["a"] = hang
    await stored(client, "t", 20)
    pusher.follow([target("t", await serve(site.answer), "a", concurrency=3)], LOOPBACK, NONE)
    await wait_until_on_loop(lambda: site.at_work["a"] == 3)
    stats = await client.topic_stats("t")
    assert (stats.leased, stats.ready) == (3, 17)


# --------------------------------------------------------------------------------------------- changes of targets


async def test_targets_begin_change_and_end(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    port = await serve(site.answer)
    pusher.follow([target("t", port, "old"), target("u", port, "other")], LOOPBACK, NONE)
    await ended(client, await stored(client, "t") + await stored(client, "u"))
    pusher.follow([target("t", port, "new"), target("u", port, "other")], LOOPBACK, NONE)
    await ended(client, await stored(client, "t"))
    pusher.follow([target("u", port, "other")], LOOPBACK, NONE)
    await wait_until_on_loop(lambda: pusher.names() == ["u"])
    await stored(client, "t")
    await ended(client, await stored(client, "u"))
    assert {path: len(got) for path, got in site.got.items()} == {"old": 1, "new": 1, "other": 2}
    assert len(await left(client, "t")) == 1


async def test_a_target_that_does_not_change_stays(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    port = await serve(site.answer)
    with capture_logs() as logs:
        for _ in range(3):
            pusher.follow([target("t", port, "a", secrets=("k",))], LOOPBACK, Secrets({"k": KEY, "z": KEY}))
            await ended(client, await stored(client, "t"))
        pusher.follow([target("t", port, "a", secrets=("k",))], LOOPBACK, Secrets({"k": KEY}))
        await ended(client, await stored(client, "t"))
    assert [entry["event"] for entry in logs] == ["push.started"]


async def test_a_change_waits_for_the_requests_at_work(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    gate = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await gate.wait()
        return web.Response()

    site.answers["a"] = wait
    port = await serve(site.answer)
    ids = await stored(client, "t", 10)
    pusher.follow([target("t", port, "a", concurrency=2)], LOOPBACK, NONE)
    await wait_until_on_loop(lambda: site.at_work["a"] == 2)
    pusher.follow([target("t", port, "a", concurrency=2, timeout_ms=LATER_MS - 1)], LOOPBACK, NONE)
    pusher.follow([target("t", port, "a", concurrency=2), target("u", port, "u")], LOOPBACK, NONE)
    await ended(client, await stored(client, "u"))
    assert len(site.got["a"]) == 2
    gate.set()
    await ended(client, ids)
    assert site.most["a"] == 2
    assert sorted(Counter(site.got["a"]).values()) == [1] * 10


async def test_a_target_comes_back_while_it_ends(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    port = await serve(site.answer)
    pusher.follow([target("t", port, "a")], LOOPBACK, NONE)
    for _ in range(20):
        await asyncio.sleep(0)
        pusher.follow([], LOOPBACK, NONE)
        await asyncio.sleep(0)
        pusher.follow([target("t", port, "a")], LOOPBACK, NONE)
    await ended(client, await stored(client, "t"))


async def test_a_refused_target_takes_no_items_until_it_may(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    port = await serve(site.answer)
    ids = await stored(client, "t")
    mine = [target("t", port, "a")]
    with capture_logs() as logs:
        pusher.follow(mine, Allow(), NONE)
        await wait_until_on_loop(pusher.waiting)
    assert list(pusher.waiting()) == ["t"]
    assert "only global addresses are reached" in pusher.waiting()["t"]
    assert [(entry["event"], entry["error"]) for entry in logs] == [("push.refused", pusher.waiting()["t"])]
    assert [item.state for item in await left(client, "t")] == [ItemState.READY]
    pusher.follow(mine, LOOPBACK, NONE)
    await ended(client, ids)
    assert not pusher.waiting()


async def test_secrets_come_and_are_rotated(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    signed: list[tuple[str, str]] = []

    async def answer(asked: web.Request) -> web.Response:
        headers = asked.headers
        at_s, body = int(headers["webhook-timestamp"]), await asked.read()
        found = [
            name
            for name, key in (("old", KEY), ("new", OTHER_KEY))
            if signature([key_of(key)], headers["webhook-id"], at_s, body) in headers["webhook-signature"].split()
        ]
        signed.append(("+".join(found), headers["x-token"]))
        return web.Response()

    port = await serve(answer)

    async def one(names: tuple[str, ...], secrets: Secrets) -> None:
        pusher.follow([target("t", port, secrets=names, headers={"x-token": "{secret:word}"})], LOOPBACK, secrets)
        await ended(client, await stored(client, "t"))

    pusher.follow([target("t", port, secrets=("k",))], LOOPBACK, NONE)
    await wait_until_on_loop(pusher.waiting)
    assert pusher.waiting() == {"t": "this process has no secret k: [push.secrets] lists the files"}
    await one(("k",), Secrets({"k": KEY, "word": "a"}))
    await one(("k", "n"), Secrets({"k": KEY, "n": OTHER_KEY, "word": "b"}))
    await one(("n",), Secrets({"n": OTHER_KEY, "word": "b"}))
    assert signed == [("old", "a"), ("old+new", "b"), ("new", "b")]


async def test_a_target_of_another_namespace_is_refused(client: AsyncClient, pusher: Pusher) -> None:
    with pytest.raises(Invalid, match="of namespace other, not shop"):
        pusher.follow([Target("t", "other", "t", "https://example.org")], LOOPBACK, NONE)
    with pytest.raises(Invalid, match="two targets have the name t"):
        pusher.follow([Target("t", "shop", "t", "https://example.org")] * 2, LOOPBACK, NONE)
    assert not pusher.names()


async def test_a_target_whose_topic_the_host_refuses_says_so(serve: Any, client: AsyncClient, pusher: Pusher) -> None:
    site = Site()
    pusher.follow([target("t", await serve(site.answer), topic="\1")], LOOPBACK, NONE)
    await wait_until_on_loop(pusher.waiting)
    assert "topic" in pusher.waiting()["t"]


async def test_a_target_begins_again_after_an_error(
    serve: Any, client: AsyncClient, pusher: Pusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, errors = pusher._begin, [RuntimeError("a fault"), Unavailable("no host")]

    def broken(plan: Plan) -> Delivery:
        if errors:
            raise errors.pop(0)
        return begin(plan)

    monkeypatch.setattr(pusher, "_begin", broken)
    site = Site()
    with capture_logs() as logs:
        pusher.follow([target("t", await serve(site.answer))], LOOPBACK, NONE)
        await wait_until_on_loop(pusher.waiting)
        assert pusher.waiting() == {"t": "a fault"}
        await ended(client, await stored(client, "t"))
    assert not pusher.waiting()
    stopped = [(entry["error"], entry["exc_info"]) for entry in logs if entry["event"] == "push.stopped"]
    assert stopped == [("a fault", True), ("no host", False)]


# --------------------------------------------------------------------------------------------- the end


async def test_a_stop_finishes_the_requests_at_work(serve: Any, client: AsyncClient) -> None:
    site = Site()
    gate = asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        await gate.wait()
        return web.Response()

    site.answers["a"] = wait
    ids = await stored(client, "t", 5)
    pusher = Pusher(client)
    pusher.follow([target("t", await serve(site.answer), "a", concurrency=2)], LOOPBACK, NONE)
    await wait_until_on_loop(lambda: site.at_work["a"] == 2)
    stopping = asyncio.ensure_future(pusher.stop(LATER_MS))
    await asyncio.sleep(0)
    gate.set()
    await stopping
    assert len(site.got["a"]) == 2
    assert [(await client.get_item(one)).state for one in ids if one not in site.got["a"]] == [ItemState.READY] * 3
    assert not pusher.names()


async def test_a_stop_cuts_off_requests_after_its_grace(serve: Any, client: AsyncClient) -> None:
    site = Site()
    site.answers["a"] = hang
    await client.put_settings({"topic.t": json.dumps({"dead": {"topic": "t.dead"}, "max_attempts": 1})})
    ids = await stored(client, "t", 5)
    port = await serve(site.answer)
    for _ in range(3):
        pusher = Pusher(client)
        pusher.follow([target("t", port, "a", concurrency=2)], LOOPBACK, NONE)
        await wait_until_on_loop(lambda: site.at_work["a"] == 2)
        began = monotonic()
        await pusher.stop(grace_ms=50)
        assert monotonic() - began < 20
        assert pusher.meter.requests == {("t", "cut off"): 2}
        await wait_until_on_loop(lambda: site.at_work["a"] == 0)
    found = [await client.get_item(item_id) for item_id in ids]
    assert [(item.topic, item.state) for item in found] == [("t", ItemState.READY)] * 5


async def test_a_second_stop_shortens_the_grace(serve: Any, client: AsyncClient) -> None:
    site = Site()
    site.answers["a"] = hang
    await stored(client, "t")
    pusher = Pusher(client)
    pusher.follow([target("t", await serve(site.answer), "a")], LOOPBACK, NONE)
    await wait_until_on_loop(lambda: site.at_work["a"] == 1)
    began = monotonic()
    first = asyncio.ensure_future(pusher.stop(LATER_MS))
    await asyncio.sleep(0)
    await pusher.stop(grace_ms=0)
    await first
    assert monotonic() - began < LATER_MS / 2000


@pytest.mark.memory
def test_the_log_has_the_state_of_an_endpoint() -> None:
    health = Health(target("hook", 1))
    ack, fail = Settlement("ack"), Settlement("fail", "status 500")

    def events(*notes: tuple[Settlement, float]) -> list[tuple[str, object]]:
        with capture_logs() as logs:
            for settled, now in notes:
                health.note(settled, now)
        return [(entry["event"], entry.get("failures")) for entry in logs]

    assert events((ack, 0.0), (ack, 100.0)) == []
    assert events(*[(fail, 100.0 + n) for n in range(10)]) == [("push.failing", 1)]
    assert events((ack, 110.0), (fail, 111.0)) == []
    assert events((fail, 100.0 + FAILING_S)) == [("push.failing", 11)]
    assert events((ack, 169.0)) == []
    assert events((ack, 160.0 + WORKING_S), (ack, 180.0)) == [("push.working", None)]
    assert events((fail, 181.0)) == [("push.failing", 1)]


@pytest.mark.memory
def test_an_endpoint_that_fails_is_asked_more_slowly() -> None:
    health = Health(target("hook", 1, concurrency=3))

    def pauses(*settled: Settlement) -> list[float]:
        found = []
        for one in settled:
            health.note(one, 0.0)
            found.append(health.pause_s())
        return found

    fail, release = Settlement("fail", "status 500"), Settlement("release", "status 429", 1_000)
    assert pauses(fail, release, fail) == [0.0] * 3
    assert pauses(fail, release, fail) == [0.01, 0.02, 0.04]
    assert pauses(*[fail] * 5_000)[-1] == MOST_PAUSE_S
    assert pauses(Settlement("ack"), fail) == [0.0] * 2
    assert pauses(*[fail] * 9, Settlement("reject", "status 400"))[-2:] == [0.64, 0.0]


async def test_a_stop_releases_items_that_wait_for_an_endpoint(serve: Any, client: AsyncClient) -> None:
    site = Site()
    site.answers["a"] = status(500)
    await client.put_settings({"topic.t": json.dumps({"dead": {"topic": "t.dead"}, "max_attempts": 1})})
    ids = await stored(client, "t", 50)
    pusher = Pusher(client)
    pusher.follow([target("t", await serve(site.answer), "a", concurrency=1)], LOOPBACK, NONE)
    await wait_until_on_loop(lambda: len(site.got["a"]) >= 8)
    pausing = False
    while not pausing:
        pausing = not site.at_work["a"] and (await client.topic_stats("t")).leased == 1
    began = monotonic()
    await pusher.stop(LATER_MS)
    assert monotonic() - began < LATER_MS / 2000
    asked = set(site.got["a"])
    found = [await client.get_item(item_id) for item_id in ids]
    assert {item.id for item in found if item.topic == "t.dead"} == asked
    assert {item.state for item in found} == {ItemState.READY}
