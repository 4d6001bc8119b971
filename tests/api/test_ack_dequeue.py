"""AckAndDequeue: outcomes of acks and the next items in one answer, whatever becomes of either part."""

from dataclasses import replace
from typing import Any

import pytest
from thriftpy2.thrift import TType

from foqs.bounds import Limits
from foqs.engine import dequeue
from foqs.engine.state import State
from foqs.errors import Code, LostReply, NotFound, NotServed, OutcomeUnknown, StaleLease, Unavailable
from foqs.fairness.keys import MOST_TENANCY_BYTES, TopicKey
from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.support.one_host import FORWARDED, Call, OneHost, kinds, put, refused, routing_of, spec, take

pytestmark = pytest.mark.memory

WANTS = [idl.TopicCount("t", 10)]


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


def acks(*items: Any) -> list[Any]:
    return [idl.AckItem(item.id, item.lease) for item in items]


def leased(host: OneHost, *payloads: bytes) -> list[Any]:
    put(host, *payloads)
    return list(take(host).items)


def fields(*items: Any, **more: Any) -> dict[str, Any]:
    return {"ns": "n", "acks": acks(*items), "wants": WANTS, **more}


def both(host: OneHost, *items: Any, **more: Any) -> Call:
    return host.call("AckAndDequeue", **fields(*items, **more))


def payloads(answer: Any) -> list[bytes]:
    return [item.payload for item in answer.items]


def test_acks_and_the_next_items_are_one_answer(host: OneHost) -> None:
    first, second = leased(host, b"a", b"b")
    put(host, b"c", b"d")
    wrong, gone = idl.Item(id=second.id, lease=second.lease + 1), idl.Item(id=1 << 48 | 99, lease=1)
    answer = both(host, first, wrong, gone).answer
    assert kinds(answer) == [None, StaleLease, NotFound]
    assert (payloads(answer), answer.doubtful, answer.error) == ([b"c", b"d"], None, None)
    assert first.id not in host.dbs[1].items
    assert second.id in host.dbs[1].items


def test_an_ack_is_answered_after_its_commit_only(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    put(host, b"b")
    call = host.begin("AckAndDequeue", **fields(item))
    (sent,) = host.send()
    host.send()
    assert not call.answers
    assert host.engine.ready(("n", "t")) == 1, "no lease begins before the answer can be given"
    host.arrive(*sent)
    assert not call.answers, "the batch is being applied"
    host.run()
    assert (kinds(call.answer), payloads(call.answer)) == ([None], [b"b"])


def test_without_acks_it_is_a_dequeue(host: OneHost) -> None:
    call = both(host, wait_ms=60_000)
    assert not call.answers
    put(host, b"a")
    assert (call.answer.outcomes, payloads(call.answer)) == ([], [b"a"])
    assert both(host, wait_ms=0).answer.items == []
    assert host.ask("AckAndDequeue", ns="n", wants=WANTS).outcomes == []


def test_outcomes_do_not_wait_for_a_first_item(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    call = both(host, item, wait_ms=60_000)
    assert (kinds(call.answer), call.answer.items) == ([None], [])


def test_an_empty_answer_says_that_the_topic_is_paused(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    assert both(host).answer.reason is None
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"paused": true}'}))
    put(host, b"b")
    answer = both(host, item).answer
    assert (kinds(answer), answer.items, answer.reason) == ([None], [], "paused")
    assert take(host).reason == "paused"
    host.engine.apply_settings(Settings("n", 2, {"topic.t": "{}"}))
    answer = both(host).answer
    assert (payloads(answer), answer.reason) == ([b"b"], None)


def test_it_says_what_a_dequeue_says() -> None:
    def fields_of(struct: Any) -> set[tuple[str, int]]:
        return {(spec[1], spec[0]) for spec in struct.thrift_spec.values()}

    between_hosts = {("news_version", TType.I64)}
    assert fields_of(idl.DequeueResponse) - between_hosts <= fields_of(idl.AckAndDequeueResponse)


def test_a_wrong_request_acks_nothing(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    assert refused(host, "AckAndDequeue", **fields(item) | {"wants": []}) == "wants is empty"
    assert refused(host, "AckAndDequeue", **fields(item) | {"ns": None}) == "ns is missing"
    assert refused(host, "AckAndDequeue", **fields(item, lease_ms=1)).startswith("lease_ms")
    assert refused(host, "AckAndDequeue", **fields(*[item] * 10_001)) == "acks has 10001 entries, more than 10000"
    assert item.id in host.dbs[1].items


def test_an_item_of_another_namespace_is_not_found(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    assert kinds(both(host, item, ns="other").answer) == [NotFound]


def test_a_stopping_host_takes_the_acks(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    put(host, b"b")
    host.engine.drain(host.now_ms)
    answer = both(host, item).answer
    assert (kinds(answer), answer.items) == ([None], [])
    assert (answer.error.code, answer.error.message) == (Code.UNAVAILABLE, "the host is shutting down")
    assert item.id not in host.dbs[1].items
    assert both(host).answer.error.code == Code.UNAVAILABLE


def test_a_host_that_begins_to_stop_answers_the_acks(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    put(host, b"b")
    call = host.begin("AckAndDequeue", **fields(item))
    host.engine.drain(host.now_ms)
    host.run()
    assert (kinds(call.answer), call.answer.error.code) == ([None], Code.UNAVAILABLE)


def test_full_buffers_refuse_the_dequeue_alone(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    host.engine.state.budget.take(1 << 30)
    answer = both(host, item).answer
    assert (kinds(answer), answer.error.code, answer.error.retry_after_ms) == ([None], Code.OVERLOADED, 100)
    assert host.engine.state.counters.refused[Code.OVERLOADED] == 1


@pytest.mark.parametrize(("sent", "unsettled"), [(False, Unavailable), (True, OutcomeUnknown)])
def test_a_silent_shard_delays_the_items_by_little(sent: bool, unsettled: type) -> None:
    host = OneHost(1, 2)
    held: dict[int, Any] = {}
    while len(held) < 2:
        held.update((item.id >> 48, item) for item in leased(host, b"a"))
    while put(host, b"b")[0] >> 48 != 2:
        take(host)
    shard = host.engine.state.shards[1]
    if not sent:  # another batch is in flight
        shard.owner.confirm_wanted = True
        host.engine.state.touch(shard)
        assert [one.number for one, _ in host.send()] == [1]
    call = host.begin("AckAndDequeue", **fields(held[1], held[2]))
    settings = host.engine.state.config.host
    for _ in range(settings.confirm_ms + settings.merge_wait_ms + 1):
        for one, batch in host.send():
            if one.number == 2:
                host.arrive(one, batch)
        host.now_ms += 1
        host.engine.tick(host.now_ms)
    assert kinds(call.answer) == [unsettled, None]
    assert payloads(call.answer) == [b"b"]


def test_a_consumer_that_is_gone_gets_no_leases(host: OneHost) -> None:
    (item,) = leased(host, b"a")
    put(host, b"b")
    call = host.begin("AckAndDequeue", **fields(item))
    call.lost()
    host.run()
    assert call.tries == 0
    assert item.id not in host.dbs[1].items, "the ack was taken"
    assert [found.attempt for found in take(host).items] == [1]


# ------------------------------------------------------------------------------------------ several at once


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of items that each merge was asked for."""
    made: list[int] = []
    merge = dequeue._merge

    def counted(state: State, able: Any, key: TopicKey, count: int, now_ms: int) -> Any:
        made.append(count)
        return merge(state, able, key, count, now_ms)

    monkeypatch.setattr(dequeue, "_merge", counted)
    return made


def together(host: OneHost, *requests: dict[str, Any]) -> list[Any]:
    """Return the answers to requests whose acks one transaction carries out."""
    calls = [host.begin("AckAndDequeue", **request) for request in requests]
    host.run()
    return [call.answer for call in calls]


def one(item: Any, count: int = 1, **more: Any) -> dict[str, Any]:
    return fields(item, **{"wants": [idl.TopicCount("t", count)]} | more)


def test_dequeues_that_begin_together_share_one_merge(host: OneHost, merges: list[int]) -> None:
    items = leased(host, b"a", b"b", b"c", b"d")
    put(host, b"1", b"2", b"3", b"4")
    merges.clear()
    answers = together(host, one(items[0], 2), *[one(item) for item in items[1:]])
    assert merges == [5]
    assert [payloads(answer) for answer in answers] == [[b"1", b"2"], [b"3"], [b"4"], []]
    assert [kinds(answer) for answer in answers] == [[None]] * 4
    assert host.engine.state.counters.window_hits == 4


def test_dequeues_of_other_topics_or_of_several_are_served_too(host: OneHost, merges: list[int]) -> None:
    items = leased(host, b"a", b"b", b"c", b"d")
    put(host, b"1", b"2", b"3")
    host.ask("Enqueue", ns="n", items=[spec("u", b"4")])
    merges.clear()
    u, both_topics = [idl.TopicCount("u", 1)], [idl.TopicCount("u", 1), idl.TopicCount("t", 1)]
    answers = together(host, one(items[0]), one(items[1], wants=u), one(items[2], wants=both_topics), one(items[3]))
    assert merges[0] == 2
    assert [payloads(answer) for answer in answers] == [[b"1"], [b"4"], [b"3"], [b"2"]]


def test_a_consumer_that_is_gone_gets_no_item(host: OneHost) -> None:
    items = leased(host, b"a", b"b", b"c")
    put(host, b"1", b"2")
    calls = [host.begin("AckAndDequeue", **one(item)) for item in items]
    calls[0].lost()
    host.run()
    assert calls[0].tries == 0
    assert [payloads(call.answer) for call in calls[1:]] == [[b"1"], [b"2"]]


def test_together_each_worker_gets_no_more_than_its_limit(host: OneHost) -> None:
    host.engine.apply_settings(Settings("n", 1, {"topic.t": '{"per_worker": 2}'}))
    put(host, *[b"a"] * 3)
    of_x, of_y = take(host, count=2, worker="x").items, take(host, count=1, worker="y").items
    put(host, *[b"b"] * 9)
    requests = (one(of_x[0], 5, worker="x"), one(of_y[0], 5, worker="y"))
    assert [len(answer.items) for answer in together(host, *requests)] == [1, 2]


# ------------------------------------------------------------------------------------------ other hosts


def clustered() -> OneHost:
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}))


THERE = idl.Item(id=2 << 48 | 9, lease=5)


def test_the_ack_of_another_hosts_item_is_forwarded() -> None:
    host = clustered()
    (item,) = leased(host, b"a")
    put(host, b"b")
    call = both(host, item, THERE, context=idl.RequestContext(request_id="r"))
    (sent,) = host.to("Ack")
    assert (sent.address, sent.request.items, sent.request.ns) == ("b:1", acks(THERE), "n")
    assert (sent.request.context.request_id, sent.request.context.hops) == ("r", 1)
    assert not call.answers
    host.reply("Ack", idl.AckResponse([idl.ItemOutcome()]))
    assert (kinds(call.answer), payloads(call.answer)) == ([None, None], [b"b"])


def test_a_forwarded_request_takes_no_second_hop() -> None:
    host = clustered()
    assert kinds(both(host, THERE, context=FORWARDED).answer) == [NotServed]
    assert not host.to("Ack") + host.to("Dequeue")


def elsewhere(host: OneHost, *items: Any, **more: Any) -> Call:
    """A request whose items are known to be on the other host."""
    host.reply("WatchTopics", idl.WatchTopicsResponse(1, False, [idl.TopicNews("n", "t", 3)]))
    return both(host, *items, **more)


def test_the_items_of_another_host_come_with_the_outcomes() -> None:
    host = clustered()
    (item,) = leased(host, b"a")
    call = elsewhere(host, item)
    (sent,) = host.to("Dequeue")
    assert (sent.request.ns, sent.request.wants) == ("n", WANTS)
    assert sent.request.max_bytes == Limits().frame_bytes - 1024 - 1 - 10 * (192 + 2 + MOST_TENANCY_BYTES)
    host.reply("Dequeue", idl.DequeueResponse([idl.Item(id=7, payload=b"x")], [8]))
    assert (kinds(call.answer), payloads(call.answer), call.answer.doubtful) == ([None], [b"x"], [8])


def test_a_forwarded_dequeue_that_is_lost_keeps_the_outcomes() -> None:
    host = clustered()
    (item,) = leased(host, b"a")
    call = elsewhere(host, item)
    host.reply("Dequeue", LostReply("cut"))
    assert (kinds(call.answer), call.answer.items) == ([None], [])
    assert call.answer.error.code == Code.OUTCOME_UNKNOWN
    assert call.doubts == [(0, "cut")]


# ------------------------------------------------------------------------------------------ the frame


def test_outcomes_leave_less_room_for_items(host: OneHost) -> None:
    items = leased(host, *[b"a"] * 10)
    put(host, *[b"x" * 100] * 40)
    assert host.service is not None
    largest_bytes = 100 + 1 + 1
    host.service.host.limits = replace(
        Limits(), frame_bytes=1024 + 10 + 4 * 300, payload_bytes=100, metadata_bytes=1, headers_bytes=1
    )
    answer = both(host, *items, wants=[idl.TopicCount("t", 40)]).answer
    assert (kinds(answer), len(answer.items)) == ([None] * 10, 4)
    host.service.host.limits = replace(host.service.host.limits, frame_bytes=1024 + 1 + largest_bytes + 192)
    answer = both(host, answer.items[0]).answer
    assert (kinds(answer), answer.items, answer.error) == ([None], [], None)


def test_a_dequeue_without_room_is_not_forwarded() -> None:
    host = clustered()
    (item,) = leased(host, b"a")
    assert host.service is not None
    host.service.host.limits = replace(
        Limits(), frame_bytes=2_000, payload_bytes=100, metadata_bytes=1, headers_bytes=1
    )
    call = elsewhere(host, item)
    assert (kinds(call.answer), call.answer.items, host.to("Dequeue")) == ([None], [], [])
