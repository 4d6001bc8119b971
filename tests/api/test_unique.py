"""Unique work on one host: when a dedup_key is free again, and what a redrive does with it."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Invalid, NotFound
from foqs.idl import idl
from foqs.ids import Until, digest_of
from foqs.policies.settings import Settings
from foqs.rules import ItemRules, RetryRule, pack_lane, unpack_rules, unpack_until
from tests.support.one_host import OneHost, kinds, messages, put, spec

D = idl.DedupUntil
DEAD = '{"max_attempts": 1, "dead": {"topic": "dead"}}'


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


def unique(host: OneHost, payload: bytes = b"x", until: int = D.DONE, topic: str = "t", **given: Any) -> Any:
    """The outcome of an enqueue with the key `k`."""
    (outcome,) = host.ask(
        "Enqueue", ns="n", items=[spec(topic, payload, dedup_key="k", dedup_until=until, **given)]
    ).outcomes
    return outcome


def new(host: OneHost, payload: bytes = b"x", until: int = D.DONE, **given: Any) -> int:
    outcome = unique(host, payload, until, **given)
    assert (outcome.error, outcome.duplicate) == (None, None)
    return int(outcome.id)


def known(host: OneHost, payload: bytes = b"x", until: int = D.DONE, **given: Any) -> int:
    outcome = unique(host, payload, until, **given)
    assert (outcome.error, outcome.duplicate) == (None, True)
    return int(outcome.id)


def leased(host: OneHost, topic: str = "t") -> Any:
    (item,) = host.ask("Dequeue", ns="n", wants=[idl.TopicCount(topic, 1)]).items
    return item


def done(host: OneHost, item: Any) -> None:
    assert kinds(host.ask("Ack", items=[idl.AckItem(item.id, item.lease)])) == [None]


def fail(host: OneHost, item: Any) -> None:
    assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease, failed=True, reason="bad")])) == [None]


def redrive(host: OneHost) -> Any:
    return host.ask("RedriveItems", ns="n", topic="dead")


# ------------------------------------------------------------------------------------------ when a key is free


def test_a_key_is_free_when_its_item_is_done(host: OneHost) -> None:
    first = new(host, b"one")
    assert known(host, b"two") == first
    item = leased(host)
    host.wait(1_000)
    assert known(host) == first
    done(host, item)
    second = new(host, b"one")
    assert second != first
    assert (host.dbs[1].dedup[digest_of("n", "k")].id, list(host.dbs[1].held)) == (second, [second])
    done(host, leased(host))
    assert not host.dbs[1].dedup
    assert not host.dbs[1].held


def test_a_key_is_free_when_its_item_has_started(host: OneHost) -> None:
    first = new(host, until=D.STARTED)
    assert known(host, until=D.STARTED) == first
    item = leased(host)
    assert known(host, until=D.STARTED) == first  # the lease is not written
    host.wait(1_000)
    second = new(host, until=D.STARTED)
    assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease, release=True)])) == [None]
    assert known(host, until=D.STARTED) == second
    assert not host.dbs[1].held.keys() - {second}


def test_an_item_that_is_given_back_unwritten_has_not_started(host: OneHost) -> None:
    first = new(host, until=D.STARTED)
    item = leased(host)
    assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease, release=True)])) == [None]
    host.wait(1_000)
    assert known(host, until=D.STARTED) == first


@pytest.mark.parametrize("until", [D.STARTED, D.DONE])
@pytest.mark.parametrize("end", ["delete", "ttl", "ack", "dead"])
def test_each_end_frees_the_key(host: OneHost, until: int, end: str) -> None:
    host.settings.apply(Settings("n", 1, {"topic.t": DEAD}))
    first = new(host, until=until, ttl_ms=5_000 if end == "ttl" else None)
    match end:
        case "delete":
            assert kinds(host.ask("DeleteItems", ids=[first])) == [None]
        case "ttl":
            host.wait(6_000)
        case "ack":
            done(host, leased(host))
        case "dead":
            fail(host, leased(host))
            assert host.ask("GetItem", id=first).item.topic == "dead"
    assert new(host, until=until) != first


def test_a_failed_attempt_does_not_free_the_key_until_done(host: OneHost) -> None:
    first = new(host)
    fail(host, leased(host))
    assert known(host) == first


def test_the_next_owner_frees_the_key(host: OneHost) -> None:
    first = new(host)
    host.reopen(clean=False)
    host.wait(60_000)
    assert known(host) == first
    done(host, leased(host))
    assert new(host) != first


def test_payloads_are_compared_under_the_window_alone(host: OneHost) -> None:
    first = new(host, b"one", D.WINDOW)
    assert "another topic or payload" in unique(host, b"two", D.DONE).error.message
    assert known(host, b"one", D.DONE) == first
    host.wait(host.limits.dedup_window_ms + 1)
    second = new(host, b"one", D.DONE)
    assert known(host, b"two", D.WINDOW) == second
    host.wait(host.limits.dedup_window_ms + 1)
    assert known(host, b"three") == second
    assert "another topic or payload" in unique(host, b"one", topic="u").error.message


def test_the_window_of_a_delayed_item_begins_late(host: OneHost) -> None:
    window_ms = host.limits.dedup_window_ms
    first = new(host, until=D.WINDOW, delay_ms=10_000)
    host.wait(window_ms + 9_000)
    assert known(host, until=D.WINDOW) == first
    host.wait(2_000)
    assert new(host, until=D.WINDOW) != first


def test_wrong_values_are_invalid(host: OneHost) -> None:
    answer = host.ask("Enqueue", ns="n", items=[spec("t", b"x", dedup_until=D.DONE), spec("t", b"x", dedup_until=7)])
    assert kinds(answer) == [Invalid, Invalid]
    assert messages(answer) == ["dedup_until needs a dedup_key", "dedup_until is 7, not WINDOW, STARTED or DONE"]
    assert not host.dbs[1].items


def test_rules_are_stored_with_the_end_of_keys() -> None:
    for rules in (None, ItemRules(max_attempts=3, retry=RetryRule("constant", 5))):
        for until in (0, *Until):
            stored = pack_lane(rules, until)
            assert (unpack_rules(stored), unpack_until(stored)) == (rules, until)
    assert pack_lane(None, 0) == b""


def test_an_item_with_a_key_shows_its_own_rules(host: OneHost) -> None:
    rules = idl.ItemRules(max_attempts=3)
    first = new(host, rules=rules)
    assert host.ask("GetItem", id=first).item.rules == rules
    assert leased(host).rules == rules
    assert kinds(host.ask("DeleteItems", ids=[first])) == [None]
    new(host)
    assert leased(host).rules is None


# ------------------------------------------------------------------------------------------ redrives


def test_a_redrive_takes_the_key_again(host: OneHost) -> None:
    host.settings.apply(Settings("n", 1, {"topic.t": DEAD}))
    first = new(host)
    fail(host, leased(host))
    answer = redrive(host)
    assert (answer.at_least, answer.skipped_duplicate) == (1, None)
    assert known(host) == first
    host.wait(120_000)  # the claim is over
    assert known(host) == first
    done(host, leased(host))
    assert new(host) != first
    assert len(host.dbs[1].held) == 1


def test_a_redrive_skips_an_item_whose_key_is_taken(host: OneHost) -> None:
    host.settings.apply(Settings("n", 1, {"topic.t": DEAD}))
    dead = new(host)
    fail(host, leased(host))
    put(host, b"plain")
    fail(host, leased(host))
    live = new(host)
    answer = redrive(host)
    assert (answer.at_least, answer.at_most, answer.skipped_duplicate) == (1, 1, 1)
    assert host.ask("GetItem", id=dead).item.topic == "dead"
    assert known(host) == live
    host.wait(120_000)
    assert known(host) == live
    assert kinds(host.ask("DeleteItems", ids=[live])) == [None]
    assert redrive(host).at_least == 1
    assert known(host) == dead


def test_a_take_is_undone_when_its_item_stays_dead(host: OneHost) -> None:
    """The owner is lost between the take and the move."""
    host.settings.apply(Settings("n", 1, {"topic.t": DEAD}))
    dead = new(host)
    fail(host, leased(host))
    call = host.begin("RedriveItems", ns="n", topic="dead")
    while digest_of("n", "k") not in host.dbs[1].dedup:
        for shard, batch in host.send():
            host.arrive(shard, batch)
    assert call.answers == []
    host.reopen(clean=False)
    assert known(host) == dead
    assert host.ask("GetItem", id=dead).item.topic == "dead"
    host.wait(61_000)
    host.wait(1_000)
    assert new(host) != dead


def test_a_deleted_dead_letter_leaves_no_row(host: OneHost) -> None:
    host.settings.apply(Settings("n", 1, {"topic.t": DEAD}))
    dead = new(host)
    fail(host, leased(host))
    assert list(host.dbs[1].held) == [dead]
    assert kinds(host.ask("DeleteItems", ids=[dead])) == [None]
    assert not host.dbs[1].held
    assert type(host.ask("GetItem", id=dead)) is NotFound


# ------------------------------------------------------------------------------------------ cancelled by key


def cancel(host: OneHost, **given: Any) -> Any:
    return host.ask("CancelItem", ns="n", dedup_key="k", **given)


@pytest.mark.parametrize("until", [D.WINDOW, D.STARTED, D.DONE])
def test_a_cancelled_item_is_gone_and_its_key_free(host: OneHost, until: int) -> None:
    first = new(host, until=until)
    assert (cancel(host).id, cancel(host).__class__) == (first, NotFound)
    assert type(host.ask("GetItem", id=first)) is NotFound
    assert new(host, b"other", until=until) != first
    assert len(host.dbs[1].dedup) == 1


def test_a_leased_item_is_cancelled_on_request_alone(host: OneHost) -> None:
    first = new(host)
    item = leased(host)
    assert cancel(host) == idl.CancelItemResponse(first, False)
    assert known(host) == first
    assert cancel(host, leased=True) == idl.CancelItemResponse(first, True)
    assert kinds(host.ask("ExtendLease", items=[idl.ExtendItem(item.id, item.lease)])) == [NotFound]
    assert new(host) != first


def test_an_item_that_has_ended_is_not_cancelled(host: OneHost) -> None:
    first = new(host, until=D.WINDOW)
    done(host, leased(host))
    assert cancel(host) == idl.CancelItemResponse(first, False)
    assert known(host, until=D.WINDOW) == first


# ------------------------------------------------------------------------------------------ a new body

R = idl.OnDuplicate.REPLACE


def replace(host: OneHost, payload: bytes = b"new", until: int = D.DONE, **given: Any) -> tuple[int, bool | None]:
    """The id of the item that has the key, and whether it was replaced."""
    outcome = unique(host, payload, until, on_duplicate=R, **given)
    assert (outcome.error, outcome.duplicate) == (None, True)
    return outcome.id, outcome.replaced


@pytest.mark.parametrize("until", [D.WINDOW, D.STARTED, D.DONE])
def test_an_item_that_has_not_begun_gets_the_new_body(host: OneHost, until: int) -> None:
    first, other = new(host, until=until), put(host, b"other")[0]
    given = {"metadata": b"m", "headers": {"a": "b"}, "priority": -5}
    assert [replace(host, body, until, **given) for body in (b"new", b"newest")] == [(first, True)] * 2
    host.wait(1_000)
    item = leased(host)
    assert (item.id, item.payload, item.metadata, item.headers) == (first, b"newest", b"m", {"a": "b"})
    assert (item.priority, item.attempt) == (-5, 1)
    done(host, item)
    assert leased(host).id == other


@pytest.mark.parametrize("before_ms", [None, 100, 60_000])
@pytest.mark.parametrize("after_ms", [None, 5_000])
def test_a_new_body_comes_with_its_time(host: OneHost, before_ms: int | None, after_ms: int | None) -> None:
    first = new(host, delay_ms=before_ms)
    assert replace(host, delay_ms=after_ms) == (first, True)
    if after_ms is not None:
        host.wait(after_ms - 1_000)
        assert not host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t", 1)]).items
        host.wait(2_000)
    assert (leased(host).payload, host.dbs[1].items[first].payload) == (b"new", b"new")


def test_an_item_that_has_begun_keeps_its_body(host: OneHost) -> None:
    first = new(host)
    item = leased(host)
    assert replace(host) == (first, None)
    assert kinds(host.ask("Nack", items=[idl.NackItem(item.id, item.lease)])) == [None]
    assert replace(host) == (first, None)
    item = leased(host)
    assert item.payload == b"x"
    done(host, item)
    outcome = unique(host, b"new", on_duplicate=R)
    assert (outcome.duplicate, outcome.replaced) == (None, None)


def test_an_item_that_is_gone_is_not_replaced(host: OneHost) -> None:
    first = new(host, until=D.WINDOW)
    done(host, leased(host))
    assert replace(host, until=D.WINDOW) == (first, None)


def test_a_dead_letter_is_not_replaced(host: OneHost) -> None:
    host.settings.apply(Settings("n", 1, {"topic.t": DEAD}))
    first = new(host, until=D.WINDOW)
    fail(host, leased(host))
    assert replace(host, until=D.WINDOW) == (first, None)


@pytest.mark.parametrize("until", [D.WINDOW, D.DONE])
def test_an_item_of_another_topic_is_not_replaced(host: OneHost, until: int) -> None:
    first = new(host, until=until)
    outcome = unique(host, b"new", until, topic="u", on_duplicate=R)
    assert outcome.error.message.startswith("the dedup_key was enqueued with another topic")
    assert host.dbs[1].items[first].payload == b"x"


def test_the_last_of_equal_keys_in_a_request_counts(host: OneHost) -> None:
    items = [spec("t", payload, dedup_key="k", on_duplicate=R) for payload in (b"a", b"b", b"c")]
    first, *others = host.ask("Enqueue", ns="n", items=items).outcomes
    assert (first.duplicate, [(one.id, one.replaced) for one in others]) == (None, [(first.id, True)] * 2)
    assert leased(host).payload == b"c"


@pytest.mark.parametrize("given", [{"on_duplicate": 3, "dedup_key": "k"}, {"on_duplicate": R}])
def test_a_bad_choice_is_refused(host: OneHost, given: dict[str, Any]) -> None:
    (outcome,) = host.ask("Enqueue", ns="n", items=[spec("t", b"x", **given)]).outcomes
    assert outcome.error.message.startswith("on_duplicate ")
