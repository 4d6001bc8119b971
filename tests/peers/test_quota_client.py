"""Enqueues in a namespace with a quota: questions to the coordinator, waits, refusals, and tokens that return."""

from typing import Any

import pytest

from foqs.config.schema import QuotaKeys
from foqs.errors import NotSent, OutcomeUnknown, Overloaded, Unavailable
from foqs.idl import idl
from foqs.limits.bucket import TTL_MS
from foqs.peers import quota_client
from foqs.peers.borrower import ANSWER_MS
from foqs.peers.coordinator import BEAT_MS
from foqs.peers.quota_client import RETRY_MS
from foqs.shardmgr.facts import Slots
from tests.api.wire import spec
from tests.support.one_host import Call, OneHost, kinds, messages, routing_of

pytestmark = pytest.mark.memory

QUOTAS = {"n": QuotaKeys(enqueues_per_second=10)}


@pytest.fixture
def host() -> OneHost:
    """It has shard 1; the coordinator is host "b"."""
    return away()


def away(**options: Any) -> OneHost:
    slots = Slots(0, (2,) * 1024, {}, 1)
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}, slots=slots), quotas=QUOTAS, **options)


def put(host: OneHost, items: int = 1, ns: str = "n", **fields: Any) -> Call:
    return host.call("Enqueue", ns=ns, items=[spec("t", b"x", **fields)] * items)


def grant(host: OneHost, granted: int, *, kept: bool = True, retry_after_ms: int = 0) -> Any:
    """Answer the oldest question; return it."""
    return host.reply("TakeTokens", idl.TakeTokensResponse(granted, kept, retry_after_ms))


def test_an_enqueue_waits_for_the_tokens_of_its_coordinator(host: OneHost) -> None:
    call = put(host, 3)
    assert not call.answers
    (sent,) = host.to("TakeTokens")
    assert (sent.address, sent.request.ns, sent.request.wanted, sent.request.held) == ("b:1", "n", 3, 0)
    grant(host, 3)
    assert kinds(call.answer) == [None] * 3
    assert host.engine.state.counters.quota_admitted == 3


def test_items_that_the_answer_does_not_cover_are_refused(host: OneHost) -> None:
    call = put(host, 3)
    grant(host, 2, retry_after_ms=100)
    assert kinds(call.answer) == [None, None, Overloaded]
    assert messages(call.answer)[2] == "the namespace's quota is used up"
    assert call.answer.outcomes[2].error.retry_after_ms == 100
    assert (host.engine.state.counters.quota_admitted, host.engine.state.counters.quota_refused) == (2, 1)


def test_enqueues_are_served_first_come_first_served(host: OneHost) -> None:
    first, second = put(host, 2), put(host)
    assert len(host.to("TakeTokens")) == 1, "one question at a time"
    grant(host, 2)
    assert kinds(first.answer) == [None, None]
    assert not second.answers
    assert grant(host, 1).wanted == 1
    assert kinds(second.answer) == [None]


def test_other_namespaces_do_not_wait(host: OneHost) -> None:
    put(host)
    assert kinds(put(host, ns="other").answer) == [None]


def test_without_an_answer_only_held_tokens_are_spent(host: OneHost) -> None:
    call = put(host, 2)
    host.reply("TakeTokens", NotSent("gone"))
    assert kinds(call.answer) == [Overloaded] * 2
    assert call.answer.outcomes[0].error.retry_after_ms == RETRY_MS


def test_an_enqueue_waits_no_longer_than_its_caller(host: OneHost) -> None:
    context = idl.RequestContext(timeout_ms=300)
    call = host.call("Enqueue", ns="n", items=[spec("t")], context=context)
    host.wait(299)
    assert not call.answers
    host.wait(1)
    assert messages(call.answer) == ["the coordinator of the quota did not answer in time"]
    grant(host, 1)
    assert len(call.answers) == 1


def test_tokens_of_items_that_stored_nothing_return(host: OneHost) -> None:
    """The beat gives back the tokens that no enqueue needs."""
    host.engine.state.shards[1].owner.takes_new = False
    call = put(host, 2)
    grant(host, 2)
    full = idl.EnqueueOutcome(error=idl.ItemError(4, "full", 10))
    host.reply("Enqueue", idl.EnqueueResponse([full, full]))
    assert kinds(call.answer) == [Overloaded] * 2
    host.wait(BEAT_MS)
    asked = grant(host, 0)
    assert (asked.wanted, asked.held, asked.back) == (0, 0, 2)


def test_tokens_of_stored_items_do_not_return(host: OneHost) -> None:
    put(host, 2)
    grant(host, 2)
    host.wait(BEAT_MS)
    assert not host.to("TakeTokens"), "none is held"


def test_tokens_of_items_that_may_be_stored_do_not_return(host: OneHost) -> None:
    call = host.begin("Enqueue", ns="n", items=[spec("t")], context=idl.RequestContext(timeout_ms=100))
    sent = host.to("TakeTokens")[0]
    host.sent.remove(sent)
    sent.done(idl.TakeTokensResponse(1, True, 0), None)
    host.send()
    host.now_ms += 100
    host.engine.tick(host.now_ms)
    assert kinds(call.answer) == [OutcomeUnknown]
    host.wait(BEAT_MS)
    assert not host.to("TakeTokens")


def test_an_answer_for_tokens_that_ran_out_returns_none(host: OneHost) -> None:
    """The items were refused after the tokens had become void: they must not be spent again."""
    call = host.begin("Enqueue", ns="n", items=[spec("t")])
    sent = host.to("TakeTokens")[0]
    host.sent.remove(sent)
    sent.done(idl.TakeTokensResponse(1, True, 0), None)
    host.monotonic_ms += TTL_MS
    host.ring()  # the beat finds that they ran out
    host.sent.clear()
    host.engine.lose(host.engine.state.shards[1], host.now_ms)
    assert kinds(call.answer) == [Unavailable]
    host.wait(BEAT_MS)
    assert not host.to("TakeTokens"), "none is held"


def test_a_clock_that_is_set_changes_no_token(host: OneHost) -> None:
    put(host)
    grant(host, 5)
    for by_ms in (-500_000, 900_000):
        host.now_ms += by_ms
        assert kinds(put(host).answer) == [None]


def test_tokens_end_by_the_monotonic_clock(host: OneHost) -> None:
    put(host)
    grant(host, 5)
    host.monotonic_ms += TTL_MS
    call = put(host)
    assert not call.answers
    assert host.to("TakeTokens")[-1].request.held == 0


def test_questions_are_numbered_without_end(host: OneHost) -> None:
    """A lease that was forgotten and made again: the coordinator ignores a number that it knows."""
    put(host)
    first = grant(host, 1).number
    for _ in range(20):
        host.wait(BEAT_MS)
    put(host)
    assert host.to("TakeTokens")[-1].request.number > first


def test_a_lone_host_coordinates_all_namespaces() -> None:
    host = OneHost(1, quotas=QUOTAS)
    assert kinds(put(host, 1).answer) == [Overloaded], "none has accrued"
    host.wait(300)
    assert kinds(put(host, 4).answer) == [None, None, None, Overloaded]


def test_a_coordinator_here_is_asked_without_a_message() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}), quotas=QUOTAS)
    host.wait(BEAT_MS)
    host.wait(TTL_MS + BEAT_MS)
    assert kinds(put(host).answer) == [None]
    assert not host.to("TakeTokens")


def test_a_question_here_that_is_not_answered_is_given_up() -> None:
    """The shard's database hangs, so this host cannot confirm that it coordinates."""
    host = OneHost(1, routing=routing_of({1: "a"}), quotas=QUOTAS)
    host.now_ms += 5_000
    call = host.begin("Enqueue", ns="n", items=[spec("t")])
    host.send()
    host.monotonic_ms += ANSWER_MS
    host.ring()
    assert messages(call.answer) == ["the namespace's quota is used up"]


def test_slots_without_an_owner_are_reported_at_each_beat() -> None:
    host = OneHost(1, routing=routing_of({}), quotas=QUOTAS)
    assert host.shared == 0
    host.wait(BEAT_MS)
    host.wait(BEAT_MS)
    assert host.shared == 2


def test_a_stopping_host_beats_no_more(host: OneHost) -> None:
    put(host)
    grant(host, 5)
    host.engine.drain(host.now_ms)
    host.wait(BEAT_MS)
    host.wait(BEAT_MS)
    assert not host.to("TakeTokens")


def test_namespaces_in_use_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_client, "_MOST_ACCOUNTS", 1)
    host = OneHost(1, quotas={**QUOTAS, "m": QUOTAS["n"]})
    put(host)
    assert messages(put(host, ns="m").answer) == ["too many namespaces and topics with a quota are in use"]


def test_full_buffers_let_no_enqueue_wait(host: OneHost) -> None:
    host.engine.state.budget.take(1 << 30)
    assert messages(put(host).answer) == ["the host's buffers are full"]
