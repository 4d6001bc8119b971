"""The simulation is itself tested: with a rule of the hosts taken out, some seed must fail."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from foqs.api.ack_dequeue import AckDequeue
from foqs.bounds import NANO, Quota
from foqs.buffers.pending_dedup import DedupKeys
from foqs.engine import changing, consumers, dequeue
from foqs.engine.changing import Changing
from foqs.engine.engine import Engine
from foqs.engine.item_ops import change_of
from foqs.engine.throttling import Rules, Throttling
from foqs.errors import FoqsError, LostReply, NotSent
from foqs.item import UNREAD, Phase
from foqs.limits.bucket import Ask, Bucket, QuotaTokens, ThrottleTokens
from foqs.limits.throttle_key import ThrottleKey
from foqs.peers import coordinator, forwarded_requests, forwarder, ready_topics
from foqs.peers.forwarder import Forwarder
from foqs.peers.hash_slots import SlotMigration
from foqs.peers.ready_topics import ReadySubscriber
from foqs.peers.settings_sync import Confirmation
from foqs.policies.layers import NamespacePolicies
from foqs.policies.settings import Settings
from tests.kernel.mutants import Mutants, constant
from tests.sim_peers import exchange
from tests.sim_peers.simulation import simulate

MANY = 150
MUTANTS = Mutants()
put, around = MUTANTS.put, MUTANTS.around


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str) -> None:
    MUTANTS.check(name, simulate, MANY)


# --------------------------------------------------------------------------------------------- requests

put("a_forwarded_request_is_forwarded_again", forwarder, "is_forwarded", constant(False), seed=2)
put("a_topic_is_forgotten_after_a_lost_answer", ReadySubscriber, "_still", constant(None), seed=7)
put("news_wait_long_for_a_silent_connection", ready_topics, "WAIT_MS", 30_000, "silence", seed=2)


@around(ReadySubscriber, "found_nothing", seed=9)
def an_old_answer_forgets_a_ready_topic(original: Any, news: Any, address: str, key: Any, _: int) -> None:
    """The topic was published again while the empty answer was sent."""
    original(news, address, key, 1 << 62)


@around(exchange.Exchange, "ask", seed=13)
def an_enqueue_is_repeated_after_a_lost_reply(
    original: Any, self: Any, sender: Any, address: str, method: str, request: Any, timeout_ms: int, done: Any
) -> None:
    def answered(response: Any, error: FoqsError | None) -> None:
        lost = method == "Enqueue" and isinstance(error, LostReply)
        done(response, NotSent(error.message) if lost else error)

    original(self, sender, address, method, request, timeout_ms, answered)


@around(Engine, "ack")
def an_ack_is_answered_before_its_commit(original: Any, self: Engine, call: Any, ids: Any, *about: Any) -> None:
    """The dequeue of the same request begins at once, and its answer says that the acks succeeded."""
    reply = call.reply
    with_dequeue = reply.func.__qualname__ == AckDequeue._settled.__qualname__
    if with_dequeue:
        call.reply = lambda outcomes: None
    original(self, call, ids, *about)
    if with_dequeue:
        reply([None] * len(ids))


# --------------------------------------------------------------------------------------------- slots of keys, quotas

put("keys_are_taken_on_any_shard", DedupKeys, "takes", constant(True), seed=10)
put("a_slot_arrives_without_its_rows", SlotMigration, "_store", lambda moves, pull, low, rows: moves._arrived(pull))
# Hosts may still spend the tokens that the coordinator before it granted.
put("a_new_coordinator_begins_with_a_full_bucket", coordinator, "TTL_MS", -10_000, seed=22)


@around(SlotMigration, "_adopt", "slots", seed=4)
def slots_are_taken_whatever_their_stamp(original: Any, moves: Any, shard: Any, slots: Any, stamp: int) -> Any:
    """An owner whose record is old takes back slots that moved to another shard since."""
    return original(moves, shard, slots, max(stamp, shard.queue.keys.last.stamp))


@around(Bucket, "lend", seed=15)
def tokens_are_granted_twice(original: Any, bucket: Bucket, *about: Any) -> int:
    bucket.advance(about[-1])
    level, out = bucket._level, bucket.out
    granted = original(bucket, *about)
    bucket._level, bucket.out = level, out
    return granted


@around(QuotaTokens, "left", "bounds")
def items_stored_since_a_count_are_forgotten(original: Any, tokens: QuotaTokens, shards: Any) -> int | None:
    if tokens._quota.stored_items is None or not tokens._counts.keys() >= set(shards):
        return None
    return tokens._quota.stored_items - sum(tokens._counts[shard][0] for shard in shards)


# --------------------------------------------------------------------------------------------- settings, pauses


def _heedless(original: Any, state: Any, *args: Any) -> Any:
    """Work as if no topic was paused."""
    pausing, state.policies.pausing = state.policies.pausing, {}
    try:
        return original(state, *args)
    finally:
        state.policies.pausing = pausing


around(dequeue, "_merge", "pauses", name="a_paused_topic_is_merged")(_heedless)
around(consumers, "_committed", "pauses", seed=358, name="committed_leases_of_a_paused_topic_are_delivered")(_heedless)
# Consumers of other hosts asked for it during the pause, and got nothing.
put(
    "a_resumed_topic_is_not_published",
    consumers,
    "_follow_pauses",
    lambda state, ns, before: iter(()),
    "pauses",
    seed=1,
)


@around(Forwarder, "_deliverable", "pauses", seed=30)
def paused_items_of_another_host_are_delivered(original: Any, host: Any, address: str, response: Any, _: Any) -> Any:
    return response


@around(NamespacePolicies, "__init__", "changed")
def the_pause_of_a_tenant_is_not_read(original: Any, policies: Any, entries: Any, *about: Any) -> None:
    texts = {key: json.loads(text) for key, text in entries.items()}
    for value in texts.values():
        value.pop("paused_tenants", None)
    original(policies, {key: json.dumps(value) for key, value in texts.items()}, *about)


# --------------------------------------------------------------------------------------------- changes of items

put("a_change_of_a_leased_item_is_answered_ok", changing, "_leased", constant(True), "changed")


@around(Changing, "__call__", "changed")
def a_leased_item_is_changed(original: Any, op: Changing, shard: Any, item: Any, waits: Any, now_ms: int) -> Any:
    if change_of(item) is None and item.phase is Phase.LEASED and item.expires_at_ms != UNREAD:
        return op._change(shard, item, waits, now_ms, item.expires_at_ms)
    return original(op, shard, item, waits, now_ms)


@around(forwarded_requests.Kind, "part", "changed")
def a_change_at_another_host_has_another_priority(original: Any, kind: Any, request: Any, group: Any) -> Any:
    part = original(kind, request, group)
    if kind is forwarded_requests.CHANGE and part.priority is not None:
        part.priority += 1
    return part


@around(Confirmation, "_answered", "settings", seed=1)
def a_host_without_an_answer_is_named(original: Any, confirmation: Any, address: str, *about: object) -> None:
    confirmation._add(address, confirmation._settings.version)


@around(Settings, "changed", "settings")
def a_change_expects_no_version(original: Any, settings: Settings, entries: Any, remove: Any, **_: Any) -> Any:
    return original(settings, entries, remove)


@around(Settings, "_stamped", "settings")
def a_version_has_no_record(original: Any, settings: Settings, before: Settings, _: Any) -> Settings:
    return replace(settings, log=before.log)


# --------------------------------------------------------------------------------------------- throttles

put("no_flow_keeps_a_token_for_the_next_one", ThrottleKey, "keep", constant(False), "throttles", seed=7)
put("a_coordinator_goes_on_with_the_replaced_rate", ThrottleTokens, "follow", constant(None), "throttles", seed=2)
put("a_host_goes_on_with_the_replaced_throttles", Throttling, "changed", constant(None), "throttles", seed=2)


@around(Bucket, "__init__", "throttles", seed=94)
def a_coordinator_begins_with_tokens(original: Any, bucket: Bucket, quota: Quota, empty_at_ms: int) -> None:
    original(bucket, quota, empty_at_ms)
    bucket._level = bucket._burst * NANO


@around(ThrottleKey, "give_back", "throttles", seed=14)
def a_token_returns_after_the_next_question(original: Any, key: Any, moment: int, now_ms: int) -> bool:
    """The coordinator counts it as spent by then."""
    key.allowance._spent += 1
    return key.allowance.give_back(now_ms)


@around(Throttling, "_resolve", "throttles", seed=7, also=[(ThrottleKey, "unneeded", constant(False))])
def keys_are_asked_for_in_any_order(original: Any, self: Throttling, flow: Any) -> Rules:
    """Two hosts hold a token of one key each, wait for the other one, and do not return theirs. (Where they do, items
    pass in any order.)"""
    rules = original(self, flow)
    if vars(self).setdefault("reversed", self._random() < 0.5):
        flow.rules = rules = rules._replace(keys=rules.keys[::-1])
    return rules


@around(Bucket, "report", "throttles")
def tokens_that_a_host_does_not_report_are_granted_again(
    original: Any, bucket: Bucket, holder: str, ask: Ask, now_ms: int
) -> bool:
    """It may not have had the answer yet, or have spent them."""
    bucket.advance(now_ms)
    out = bucket.out
    kept = original(bucket, holder, ask, now_ms)
    bucket._level = bucket._capped(bucket._level + max(0, out - bucket.out) * NANO)
    return kept
