"""The simulation is itself tested: with a rule of the hosts taken out, some seed must fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foqs.api.ack_dequeue import AckDequeue
from foqs.buffers.pending_dedup import DedupKeys
from foqs.engine import consumers, dequeue
from foqs.errors import FoqsError, LostReply, NotSent
from foqs.limits.bucket import Bucket, NamespaceTokens
from foqs.peers import forwarder, hash_slots, ready_topics
from foqs.peers.forwarder import Forwarder
from foqs.peers.hash_slots import SlotMigration
from foqs.peers.ready_topics import ReadySubscriber
from foqs.peers.settings_sync import Confirmation
from foqs.policies.settings import Settings
from tests.sim_peers import exchange, throttle_mutants
from tests.sim_peers.mutants import MUTANTS, Patch, mutant
from tests.sim_peers.simulation import simulate
from tests.support import seeds

MANY = 150
TROUBLES = {
    "slots_are_taken_whatever_their_stamp": "slots",
    "a_paused_topic_is_merged": "pauses",
    "committed_leases_of_a_paused_topic_are_delivered": "pauses",
    "paused_items_of_another_host_are_delivered": "pauses",
    "a_resumed_topic_is_not_published": "pauses",
    "a_host_without_an_answer_is_named": "settings",
    "a_change_expects_no_version": "settings",
    "items_stored_since_a_count_are_forgotten": "bounds",
    "news_wait_long_for_a_silent_connection": "silence",
    **dict.fromkeys(throttle_mutants.NAMES, "throttles"),
}
"""Found only in runs with this trouble."""
# Seeds that find what few seeds find.
KNOWN = {
    "an_old_answer_forgets_a_ready_topic": 20,
    "a_topic_is_forgotten_after_a_lost_answer": 7,
    "committed_leases_of_a_paused_topic_are_delivered": 358,
    "a_coordinator_begins_with_tokens": 94,
    "a_token_returns_after_the_next_question": 11,
    "keys_are_asked_for_in_any_order": 8,
}


@mutant
def an_old_answer_forgets_a_ready_topic(patch: Patch) -> None:
    """The topic was published again while the empty answer was sent."""
    original = ReadySubscriber.found_nothing
    patch.setattr(ReadySubscriber, "found_nothing", lambda news, address, key, _: original(news, address, key, 1 << 62))


@mutant
def news_wait_long_for_a_silent_connection(patch: Patch) -> None:
    patch.setattr(ready_topics, "WAIT_MS", 30_000)


@mutant
def a_forwarded_request_is_forwarded_again(patch: Patch) -> None:
    patch.setattr(forwarder, "is_forwarded", lambda request: False)


@mutant
def slots_are_taken_whatever_their_stamp(patch: Patch) -> None:
    """An owner whose record is old takes back slots that moved to another shard since."""
    original = SlotMigration._adopt
    patch.setattr(
        SlotMigration,
        "_adopt",
        lambda moves, shard, slots, stamp: original(moves, shard, slots, max(stamp, shard.queue.keys.last.stamp)),
    )


@mutant
def keys_are_taken_on_any_shard(patch: Patch) -> None:
    patch.setattr(DedupKeys, "takes", lambda keys, digest: True)


@mutant
def an_enqueue_is_repeated_after_a_lost_reply(patch: Patch) -> None:
    def ask(
        self: exchange.Exchange, sender: Any, address: str, method: str, request: Any, timeout_ms: int, done: Any
    ) -> None:
        def answered(response: Any, error: FoqsError | None) -> None:
            if method == "Enqueue" and isinstance(error, LostReply):
                error = NotSent(error.message)
            done(response, error)

        original(self, sender, address, method, request, timeout_ms, answered)

    original = exchange.Exchange.ask
    patch.setattr(exchange.Exchange, "ask", ask)


@mutant
def tokens_are_granted_twice(patch: Patch) -> None:
    original = Bucket.grant

    def grant(bucket: Bucket, holder: str, number: int, wanted: int, now_ms: int) -> int:
        bucket.advance(now_ms)
        level, out = bucket._level, bucket.out
        granted = original(bucket, holder, number, wanted, now_ms)
        bucket._level, bucket.out = level, out
        return granted

    patch.setattr(Bucket, "grant", grant)


@mutant
def a_new_coordinator_begins_with_a_full_bucket(patch: Patch) -> None:
    """Hosts may still spend the tokens that the coordinator before it granted."""
    patch.setattr(hash_slots, "TTL_MS", -10_000)


@mutant
def a_slot_arrives_without_its_rows(patch: Patch) -> None:
    patch.setattr(SlotMigration, "_store", lambda moves, pull, low, rows: moves._arrived(pull))


@mutant
def a_topic_is_forgotten_after_a_lost_answer(patch: Patch) -> None:
    patch.setattr(ReadySubscriber, "_still", lambda news, address, keys, key: None)


@mutant
def an_ack_is_answered_before_its_commit(patch: Patch) -> None:
    """The dequeue of the same request begins at once, and its answer says that the acks succeeded."""
    original = AckDequeue._ack

    def ack(
        self: AckDequeue, request: Any, ids: Any, leases: Any, sifted: Any, now_ms: int, timeout_ms: int, acked: Any
    ) -> None:
        original(self, request, ids, leases, sifted, now_ms, timeout_ms, lambda outcomes: None)
        acked([None] * len(ids))

    patch.setattr(AckDequeue, "_ack", ack)


def _heedless(patch: Patch, module: Any, name: str) -> None:
    """Have a function of an engine work as if no topic was paused."""
    original = getattr(module, name)

    def heedless(state: Any, *args: Any) -> Any:
        pausing, state.policies.pausing = state.policies.pausing, {}
        try:
            return original(state, *args)
        finally:
            state.policies.pausing = pausing

    patch.setattr(module, name, heedless)


@mutant
def a_paused_topic_is_merged(patch: Patch) -> None:
    _heedless(patch, dequeue, "_merge")


@mutant
def committed_leases_of_a_paused_topic_are_delivered(patch: Patch) -> None:
    _heedless(patch, consumers, "_committed")


@mutant
def paused_items_of_another_host_are_delivered(patch: Patch) -> None:
    patch.setattr(Forwarder, "_deliverable", lambda forwarder, address, response, origin: response.items or [])


@mutant
def a_resumed_topic_is_not_published(patch: Patch) -> None:
    """Consumers of other hosts asked for it during the pause, and got nothing."""
    patch.setattr(consumers, "_resume", lambda state, ns, before: iter(()))


@mutant
def a_host_without_an_answer_is_named(patch: Patch) -> None:
    def answered(confirmation: Confirmation, address: str, response: object, error: object) -> None:
        confirmation._add(address, confirmation._settings.version)

    patch.setattr(Confirmation, "_answered", answered)


@mutant
def a_change_expects_no_version(patch: Patch) -> None:
    original = Settings.changed
    patch.setattr(Settings, "changed", lambda settings, entries, remove, **_: original(settings, entries, remove))


@mutant
def items_stored_since_a_count_are_forgotten(patch: Patch) -> None:
    def left(tokens: NamespaceTokens, shards: Any) -> int | None:
        if tokens._quota.stored_items is None or not tokens._counts.keys() >= set(shards):
            return None
        return tokens._quota.stored_items - sum(tokens._counts[shard][0] for shard in shards)

    patch.setattr(NamespaceTokens, "left", left)


@pytest.fixture
def patch() -> Iterator[Patch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_found(name: str, patch: Patch) -> None:
    MUTANTS[name](patch)
    found = seeds.finds(lambda seed: simulate(seed, TROUBLES.get(name, "")), MANY, KNOWN.get(name, 0))
    assert found, f"no seed below {MANY} fails with {name}"
