"""GiveSlot, TakeTokens, Lend and CountItems: fields are checked, and the answer has the rows, tokens or counts."""

from typing import Any

import pytest

from foqs.config.schema import QuotaKeys
from foqs.errors import Invalid, NotServed, Unavailable
from foqs.idl import idl
from foqs.ids import HASH_SLOTS, digest_of, hash_slot_bounds, hash_slot_of
from foqs.limits.bucket import TTL_MS
from foqs.policies.settings import Settings
from foqs.shardmgr.facts import SlotMove, Slots
from foqs.shardmgr.routing import Routing
from tests.api.wire import spec
from tests.sim.memory_store import MemoryStore
from tests.support.one_host import OneHost, put, refused, routing_of

pytestmark = pytest.mark.memory

KEYS = {hash_slot_of(digest_of("n", str(n))): str(n) for n in range(20)}
SLOT, KEY = next(iter(KEYS.items()))


def moving(*slots: int, stamp: int = 2) -> Routing:
    """All slots are on shard 1, here; `slots` move to shard 2."""
    record = Slots(0, (1,) * HASH_SLOTS, {slot: SlotMove(2, stamp) for slot in slots}, stamp)
    return routing_of({1: "a", 2: "b"}, slots=record)


@pytest.fixture
def source() -> OneHost:
    """A host whose shard 1 gives a slot with one key away."""
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    host.ask("Enqueue", ns="n", items=[spec("t", b"x", dedup_key=key) for key in KEYS.values()])
    host.learn(moving(SLOT))
    return host


def tokens(host: OneHost, **fields: Any) -> Any:
    given = {"ns": "n", "holder": "h", "number": 1, "wanted": 2, "held": 0, "back": 0, **fields}
    return host.ask("TakeTokens", **given)


# ------------------------------------------------------------------------------------------ GiveSlot


def test_the_rows_of_a_moving_slot_are_given(source: OneHost) -> None:
    given = source.ask("GiveSlot", shard=1, slot=SLOT, stamp=2, limit=10)
    (row,) = given.keys
    assert row.digest == digest_of("n", KEY)
    assert row.expires_at_ms == source.now_ms + source.limits.dedup_window_ms
    behind = source.ask("GiveSlot", shard=1, slot=SLOT, stamp=2, limit=10, low=hash_slot_bounds(SLOT)[1])
    assert behind.keys == [], "the page from the highest digest on"


def test_a_shard_that_gave_a_slot_refuses_its_keys(source: OneHost) -> None:
    source.ask("GiveSlot", shard=1, slot=SLOT, stamp=2)
    assert not source.engine.state.shards[1].queue.keys.takes_slot(SLOT)
    assert source.engine.state.shards[1].queue.keys.takes_slot((SLOT + 1) % HASH_SLOTS)


def test_a_slot_that_does_not_move_is_not_given(source: OneHost) -> None:
    other = (SLOT + 1) % HASH_SLOTS
    for fields in ({"slot": other, "stamp": 2}, {"slot": SLOT, "stamp": 3}):
        assert type(source.ask("GiveSlot", shard=1, **fields)) is Unavailable
    assert type(source.ask("GiveSlot", shard=2, slot=SLOT, stamp=2)) is NotServed


def test_fields_of_a_give_are_checked(source: OneHost) -> None:
    assert refused(source, "GiveSlot", shard=1, stamp=2) == "shard, slot or stamp is missing"
    assert refused(source, "GiveSlot", slot=SLOT, stamp=2) == "shard, slot or stamp is missing"
    assert refused(source, "GiveSlot", slot=SLOT, shard=1) == "shard, slot or stamp is missing"
    assert refused(source, "GiveSlot", shard=1, slot=HASH_SLOTS, stamp=2) == "slot is 1024, not in 0..1023"
    assert refused(source, "GiveSlot", shard=1, slot=SLOT, stamp=2, low=b"x") == "low has not 16 bytes"
    assert refused(source, "GiveSlot", shard=1, slot=SLOT, stamp=2, limit=0) == "limit is 0, not in 1..10000"


def test_a_give_fails_with_the_shard_that_is_lost(source: OneHost) -> None:
    call = source.begin("GiveSlot", shard=1, slot=SLOT, stamp=2)
    source.engine.lose(source.engine.state.shards[1], source.now_ms)
    assert type(call.answer) is NotServed


# ------------------------------------------------------------------------------------------ TakeTokens


def test_a_coordinator_grants_tokens_that_have_accrued() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}), quotas={"n": QuotaKeys(enqueues_per_second=2, burst=4)})
    host.wait(500)  # observed first
    host.wait(TTL_MS + 600)
    answer = tokens(host, wanted=5)
    assert (answer.granted, answer.kept) == (1, True)
    assert answer.retry_after_ms == 2_000


def test_a_namespace_without_a_quota_has_no_tokens() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}), quotas={"n": QuotaKeys(enqueues_per_second=2)})
    assert type(tokens(host, ns="other")) is Unavailable


@pytest.mark.parametrize("field", ["number", "wanted", "held", "back"])
@pytest.mark.parametrize("value", [None, -1, 1 << 40])
def test_numbers_of_a_question_are_in_their_bounds(field: str, value: int | None) -> None:
    host = OneHost(1, quotas={"n": QuotaKeys(enqueues_per_second=2)})
    given = {"ns": "n", "holder": "h", "number": 1, "wanted": 2, "held": 0, "back": 0, field: value}
    why = refused(host, "TakeTokens", **given)
    assert why == "number, wanted, held or back is missing, or not in its bounds"


def test_names_of_a_question_are_checked() -> None:
    host = OneHost(1, quotas={"n": QuotaKeys(enqueues_per_second=2)})
    assert refused(host, "TakeTokens", holder="h") == "ns is missing"
    assert refused(host, "TakeTokens", ns="n") == "holder is missing"
    assert refused(host, "CountItems") == "ns is missing"


# ------------------------------------------------------------------------------------------ Lend


def lent(host: OneHost, *asks: Any) -> list[Any]:
    response = host.ask("Lend", holder="h", tokens=[idl.TokenAsk(*ask) for ask in asks])
    return [(grant.granted, grant.kept, grant.retry_after_ms) for grant in response.tokens]


def test_a_coordinator_lends_tokens_of_each_key() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}))
    entries = {"throttle.api": '{"per_second": 2, "burst": 4}', "throttle.c:*": '{"per_second": 1}'}
    host.settings.apply(Settings("n", 1, entries))
    host.wait(500)  # observed first
    host.wait(TTL_MS + 600)
    asks = [("n", "api", 1, 5, 0, 0), ("n", "c:7", 2, 1, 0, 0), ("n", "other", 3, 1, 0, 0)]
    assert lent(host, *asks) == [(1, True, 400), (0, True, 400), (None, None, None)]


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (("n", "api", 1, 5, 0, -1), "number, wanted, held or back is missing, or not in its bounds"),
        (("n", None, 1, 5, 0, 0), "key is missing"),
        (("n", "a*", 1, 5, 0, 0), "a throttle key does not end in *"),
        (("n", b"\xff", 1, 5, 0, 0), "the name is not UTF-8"),
        (("n", b"\xff*", 1, 5, 0, 0), "the name is not UTF-8"),
        ((None, "api", 1, 5, 0, 0), "ns is missing"),
    ],
)
def test_questions_for_tokens_of_keys_are_checked(ask: tuple[Any, ...], why: str) -> None:
    host = OneHost(1)
    assert refused(host, "Lend", holder="h", tokens=[idl.TokenAsk(*ask)]) == why
    assert refused(host, "Lend", tokens=[idl.TokenAsk("n", "api", 1, 5, 0, 0)]) == "holder is missing"
    assert refused(host, "Lend", holder="h", tokens=[]) == "tokens and slots: 1 to 10000 are needed, not 0"


def test_a_wrong_question_for_tokens_fails_alone() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}))
    host.settings.apply(Settings("n", 1, {"throttle.api": '{"per_second": 2}', "throttle.s": '{"concurrency": 2}'}))
    host.wait(500)
    host.wait(TTL_MS + 600)
    asks = [("n", "a*", 1, 1, 0, 0), ("n", "api", 1, 0, 0, 0), ("n", "api", 2, -1, 0, 0), ("n", b"\xff", 1, 1, 0, 0)]
    assert [granted for granted, _, _ in lent(host, *asks)] == [None, 0, None, None]
    slots = [idl.SlotAsk("n", key, 1, 1, 1, 0, 0, 1, 0, 0) for key in ("a*", "s", "", b"\xff")]
    grants = host.ask("Lend", holder="h", slots=slots).slots
    assert [grant.granted is None for grant in grants] == [True, False, True, True]


def test_a_wrong_key_of_slots_is_skipped() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}))
    host.settings.apply(Settings("n", 1, {"throttle.s": '{"concurrency": 2}'}))
    put(host, b"x", throttle_keys=["s"])
    keys = [idl.SlotKey("n", key, 1) for key in ("s", b"\xff", "s")]
    (count,) = host.ask("CountSlots", keys=keys, shards=[1]).shards
    (alone,) = host.ask("CountSlots", keys=keys[:1], shards=[1]).shards
    assert count.leased == [alone.leased[0], -1, alone.leased[0]]
    assert refused(host, "CountSlots", keys=keys[1:2], shards=[1]) == "the name is not UTF-8"
    assert (
        host.ask("TellSlots", news=[idl.SlotNews("n", "a*", 1), idl.SlotNews("n", "s", 1)]) == idl.TellSlotsResponse()
    )
    assert refused(host, "TellSlots", news=[idl.SlotNews("n", "a*", 1)]) == "a throttle key does not end in *"


def test_a_wrong_topic_of_a_report_is_skipped() -> None:
    host = OneHost(1, routing=routing_of({1: "a"}))
    put(host, b"x", priority=3)
    urgent = [idl.TopicUrgency("n", ""), idl.TopicUrgency("n", "t")]
    (found,) = host.ask("TellShares", host="b", urgent=urgent, topics=[idl.TopicShare("n", "t", [])]).urgent
    assert (found.ns, found.topic, found.priority) == ("n", "t", 3)
    wrong = host.ask("TellShares", host="b", urgent=urgent[:1])
    assert (type(wrong), str(wrong)) == (Invalid, "topic must have 1 to 255 bytes")


# ------------------------------------------------------------------------------------------ CountItems


def test_items_of_a_namespace_are_counted_by_shard() -> None:
    host = OneHost(1, 2, routing=routing_of({1: "a", 2: "a"}))
    put(host, *[b"x"] * 5)
    host.ask("Enqueue", ns="other", items=[spec("t")])
    counts = host.ask("CountItems", ns="n").shards
    assert sum(counts.values()) == 5
    assert counts.keys() == {1, 2}


def test_a_shard_that_another_owner_has_is_not_counted() -> None:
    host = OneHost(1, 2, routing=routing_of({1: "a", 2: "a"}))
    put(host, *[b"x"] * 4)
    host.now_ms += 1  # its last confirmation is from before the question
    MemoryStore(host.dbs[2]).open("b", take_over=True)
    assert host.ask("CountItems", ns="n").shards.keys() == {1}


def test_a_lone_host_counts_without_asking_its_databases() -> None:
    assert OneHost(1).ask("CountItems", ns="n").shards == {1: 0}
