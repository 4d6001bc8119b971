"""ListFailures and RedriveItems: wrong input, one host, and the pages that go to other hosts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.engine.listing import cursor_of
from foqs.errors import Code, Invalid, LostReply, NotServed, Unavailable
from foqs.idl import idl
from foqs.ids import make_id
from foqs.policies.settings import Settings
from tests.support.one_host import FORWARDED, OneHost, put, refused, routing_of, take

pytestmark = pytest.mark.memory

REJECTED = idl.FailureCause.REJECTED
DEAD = {"ns": "n", "topic": "t.dlq"}


@pytest.fixture
def host() -> OneHost:
    return OneHost(1)


@pytest.fixture
def member() -> OneHost:
    """A host with shard 1; host "b" has shard 2."""
    return OneHost(1, routing=routing_of({1: "a", 2: "b"}))


def dead(host: OneHost, *reasons: str, **about: Any) -> list[int]:
    """Store an item for each of `reasons` and reject it for that reason."""
    ids = put(host, *[b"x" for _ in reasons], **about)
    items = sorted(take(host, len(reasons)).items, key=lambda item: item.id)
    nacks = [
        idl.NackItem(item.id, item.lease, reason=reason, reject=True)
        for item, reason in zip(items, reasons, strict=True)
    ]
    host.ask("Nack", ns="n", items=nacks)
    return ids


def redrive(host: OneHost, **fields: Any) -> Any:
    return host.ask("RedriveItems", **DEAD, **fields)


def numbers(answer: Any) -> tuple[int, int, int, bool, list[int]]:
    return (answer.at_least, answer.at_most, answer.skipped_leased, answer.more, answer.missing_shards)


# ------------------------------------------------------------------------------------------ one host


def test_groups_of_one_host(host: OneHost) -> None:
    ids = dead(host, "timeout after 5 ms", "timeout after 71 ms", "no route")
    answer = host.ask("ListFailures", **DEAD)
    groups = {group.sample_reason: group for group in answer.groups}
    assert groups.keys() == {"timeout after 5 ms", "no route"}
    timeout = groups["timeout after 5 ms"]
    assert (timeout.cause, timeout.count, timeout.sample_id) == (REJECTED, 2, ids[0])
    assert timeout.first_died_at_ms == timeout.last_died_at_ms == host.now_ms
    assert (answer.cursor, answer.missing) == (None, [])
    first = host.ask("ListFailures", **DEAD, limit=1)
    second = host.ask("ListFailures", **DEAD, limit=1, cursor=first.cursor)
    assert [*first.groups, *second.groups] == answer.groups
    assert second.cursor is None
    assert host.ask("ListFailures", **DEAD, cause=idl.FailureCause.EXPIRED).groups == []
    assert host.ask("ListFailures", ns="n", topic="t").groups == []


def test_redrive_on_one_host(host: OneHost) -> None:
    ids = dead(host, "a", "b", "c")
    leased = host.ask("Dequeue", ns="n", wants=[idl.TopicCount("t.dlq", 1)]).items[0].id
    assert numbers(redrive(host, dry_run=True)) == (2, 2, 1, False, [])
    assert numbers(redrive(host, count=1))[:2] == (1, 1)
    assert redrive(host).more is False
    assert sorted(item.id for item in take(host).items) == [item for item in ids if item != leased]
    assert numbers(redrive(host)) == (0, 0, 1, False, [])


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"reason_contains": "timeout"}, 2),
        ({"reason_contains": "Timeout"}, 0),
        ({"cause": REJECTED, "min_attempts": 1, "max_attempts": 1}, 3),
        ({"min_attempts": 2}, 0),
        ({"origin_topic": "t"}, 3),
        ({"origin_topic": "u"}, 0),
        ({"fairness_key": "acme"}, 3),
        ({"fairness_key": "zenith"}, 0),
        ({"fairness_key": ""}, 0),
        ({"died_before_ms": 1}, 0),
        ({"died_after_ms": 1}, 3),
        ({"headers": {"a": "b"}}, 3),
        ({"headers": {"a": "c"}}, 0),
        ({"fingerprint": 1}, 0),
    ],
)
def test_redrive_with_a_filter(host: OneHost, given: dict[str, Any], count: int) -> None:
    dead(host, "timeout 1", "timeout 2", "other", headers={"a": "b"}, fairness_key="acme")
    assert redrive(host, filter=idl.FailureFilter(**given)).at_least == count
    assert len(take(host).items) == count


def named(answer: Any) -> dict[int, str]:
    return {one.id: one.topic for one in answer.items}


def test_redriven_items_are_named(host: OneHost) -> None:
    ids = dead(host, "a", "b", "c")
    assert len(named(redrive(host, dry_run=True, count=2))) == 2
    first = named(redrive(host, count=1, to_topic="u"))
    second = named(redrive(host))
    assert set(first.values()) == {"u"}
    assert set(second.values()) == {"t"}
    assert sorted(first | second) == ids
    assert named(redrive(host)) == {}


def test_an_answer_names_the_first_hundred_items(host: OneHost) -> None:
    ids = dead(host, *["a"] * 101)
    answer = redrive(host)
    assert (answer.at_least, sorted(named(answer))) == (101, ids[:100])


def test_one_item_is_redriven(host: OneHost) -> None:
    """And it alone, among items of its group."""
    _, chosen, _ = ids = dead(host, "a", "a", "a")
    (group,) = host.ask("ListFailures", **DEAD).groups
    other = idl.FailureFilter(group.fingerprint + 1, item_id=chosen)
    assert redrive(host, filter=other).at_least == 0
    found = redrive(host, filter=idl.FailureFilter(group.fingerprint, item_id=chosen))
    assert (named(found), found.more, found.missing_shards) == ({chosen: "t"}, False, [])
    assert [item.id for item in take(host).items] == [chosen]
    assert named(redrive(host, filter=idl.FailureFilter(item_id=ids[0]))) == {ids[0]: "t"}


def test_a_pace_spreads_the_items(host: OneHost) -> None:
    dead(host, *"abcdef")
    call = host.call("RedriveItems", **DEAD, pace_per_second=2)
    counts = []
    while not call.answers:
        counts.append(len(take(host).items))
        host.wait(500)
    assert counts == [1] * 6
    assert numbers(call.answer) == (6, 6, 0, False, [])


def test_a_call_ends_with_its_time(host: OneHost) -> None:
    dead(host, *"abcdef")
    context = idl.RequestContext(timeout_ms=1_000)
    call = host.call("RedriveItems", **DEAD, pace_per_second=2, context=context)
    while not call.answers:
        host.wait(100)
    assert numbers(call.answer) == (2, 2, 0, True, [])


def test_to_another_topic(host: OneHost) -> None:
    dead(host, "a")
    assert redrive(host, to_topic="quarantine").at_least == 1
    assert len(host.ask("Dequeue", ns="n", wants=[idl.TopicCount("quarantine", 2)]).items) == 1


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topic": ""}, "topic must have"),
        ({"ns": None}, "ns is missing"),
        ({"count": -1}, "count is -1"),
        ({"per_fingerprint": 0}, "per_fingerprint is 0"),
        ({"pace_per_second": 0}, "pace_per_second is 0"),
        ({"to_topic": ""}, "to_topic must have"),
        ({"to_topic": "t.dlq"}, "to_topic is the dead-letter topic itself"),
        ({"filter": idl.FailureFilter(cause=6)}, "cause is 6"),
        ({"filter": idl.FailureFilter(reason_contains="")}, "reason_contains must have"),
        ({"filter": idl.FailureFilter(reason_contains="x" * 1_025)}, "reason_contains must have"),
        ({"filter": idl.FailureFilter(reason_contains=b"\xff")}, "reason_contains is not UTF-8"),
        ({"filter": idl.FailureFilter(min_attempts=-1)}, "min_attempts is -1"),
        ({"filter": idl.FailureFilter(min_attempts=3, max_attempts=2)}, "min_attempts is 3"),
        ({"filter": idl.FailureFilter(headers={"a": "x" * 5_000})}, "headers have"),
        ({"filter": idl.FailureFilter(fairness_key="x" * 256)}, "fairness_key: a name has 1 to 255 bytes"),
        ({"filter": idl.FailureFilter(fairness_key=b"\xff")}, "fairness_key is not UTF-8"),
        ({"filter": idl.FailureFilter(origin_topic="")}, "origin_topic must have"),
        ({"shard": 1}, "set by hosts only"),
        ({"cursor": "x"}, "set by hosts only"),
        ({"context": FORWARDED}, "shard is missing"),
        ({"context": FORWARDED, "shard": 1, "count": 501}, "count is 501"),
        ({"context": FORWARDED, "shard": 1, "count": 1, "cursor": "x"}, "cursor"),
    ],
)
def test_a_wrong_redrive(host: OneHost, fields: dict[str, Any], why: str) -> None:
    assert why in refused(host, "RedriveItems", **{**DEAD, **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"topic": None}, "topic is missing"),
        ({"limit": 0}, "limit is 0"),
        ({"limit": 1_001}, "limit is 1001"),
        ({"cause": 9}, "cause is 9"),
        ({"cursor": "x"}, "cursor"),
    ],
)
def test_a_wrong_listing(host: OneHost, fields: dict[str, Any], why: str) -> None:
    assert why in refused(host, "ListFailures", **{**DEAD, **fields})


# ------------------------------------------------------------------------------------------ closed and full topics


def policies(host: OneHost, version: int, **topics: Any) -> None:
    entries = {f"topic.{name}": json.dumps(policy) for name, policy in topics.items()}
    host.settings.apply(Settings("n", version, entries))


def stay(answer: Any) -> list[tuple[str, int, int]]:
    return [(one.topic, one.items, one.error.code) for one in answer.refused]


@pytest.mark.parametrize("to_topic", [None, "t"])
def test_a_closed_topic_takes_no_dead_letter(host: OneHost, to_topic: str | None) -> None:
    dead(host, "a", "b")
    policies(host, 1, t={"closed": True})
    for dry_run in (True, False):
        answer = redrive(host, to_topic=to_topic, dry_run=dry_run)
        assert (answer.at_least, answer.at_most) == (0, 0)
        assert stay(answer) == [("t", 2, Code.UNAVAILABLE)]
        assert answer.refused[0].error.message == "the topic t is closed to enqueues until `foqs topic open t --ns n`"
    assert redrive(host, to_topic="u", count=1).at_least == 1
    policies(host, 2, t={"paused": True})
    answer = redrive(host)
    assert (answer.at_least, answer.refused) == (1, [])


def test_a_topic_that_is_closed_during_a_redrive(host: OneHost) -> None:
    dead(host, *"abcdef")
    call = host.call("RedriveItems", **DEAD, pace_per_second=2)
    host.wait(400)
    host.wait(400)
    assert not call.answers
    policies(host, 1, t={"closed": True})
    while not call.answers:
        host.wait(500)
    back = len(take(host).items)
    assert 0 < back < 6
    assert (call.answer.at_least, call.answer.at_most) == (back, back)
    assert stay(call.answer) == [("t", 6 - back, Code.UNAVAILABLE)]


def test_a_full_topic_takes_what_fits(host: OneHost) -> None:
    """Its stored items count, and so do those that just returned. The dead letters that stay do not."""
    dead(host, *"abcde")
    put(host, b"live")
    policies(host, 1, t={"max_stored": 3})
    call = host.call("RedriveItems", **DEAD)
    while not call.answers:
        host.wait(20)
    assert (call.answer.at_least, stay(call.answer)) == (2, [("t", 3, Code.OVERLOADED)])
    assert "the topic t is full (max_stored 3)" in call.answer.refused[0].error.message
    assert len(take(host).items) == 3
    policies(host, 2, t={})
    assert redrive(host).at_least == 3


# ------------------------------------------------------------------------------------------ other hosts


def test_refused_items_of_all_hosts_are_added(member: OneHost) -> None:
    dead(member, "a")
    policies(member, 1, t={"closed": True})
    call = member.call("RedriveItems", **DEAD)
    error = idl.ItemError(Code.OVERLOADED, "full", 200)
    other = page(1)
    other.refused = [
        idl.RefusedTopic("t", 4, idl.ItemError(Code.UNAVAILABLE, "closed")),
        idl.RefusedTopic("v", 1, error),
    ]
    member.reply("RedriveItems", other)
    assert (call.answer.at_least, stay(call.answer)) == (1, [("t", 5, Code.UNAVAILABLE), ("v", 1, Code.OVERLOADED)])


def test_a_refusal_ends_a_redrive_to_one_topic(member: OneHost) -> None:
    dead(member, "a")
    call = member.call("RedriveItems", **DEAD, to_topic="u")
    other = page(3, cursor_of(5, 2 << 48))
    other.refused = [idl.RefusedTopic("u", 1, idl.ItemError(Code.UNAVAILABLE, "closed", 1_000))]
    assert member.to("RedriveItems")[0].request.to_topic == "u"
    member.reply("RedriveItems", other)
    assert (numbers(call.answer), stay(call.answer)) == ((4, 4, 0, True, []), [("u", 1, Code.UNAVAILABLE)])
    assert not member.to("RedriveItems")


def test_a_forwarded_page_says_what_stays(member: OneHost) -> None:
    dead(member, "a", "b")
    policies(member, 1, t={"closed": True})
    answer = member.ask("RedriveItems", **DEAD, shard=1, count=9, context=FORWARDED)
    assert (answer.at_least, stay(answer), answer.cursor) == (0, [("t", 2, Code.UNAVAILABLE)], None)


def page(redriven: int, cursor: str | None = None, unknown: int = 0, leased: int = 0, groups: Any = ()) -> Any:
    return idl.RedriveItemsResponse(redriven, redriven + unknown, leased, cursor is not None, [], cursor, list(groups))


def test_pages_of_another_host(member: OneHost) -> None:
    dead(member, "a", "b")
    call = member.call("RedriveItems", **DEAD, count=900, filter=idl.FailureFilter(cause=REJECTED))
    asked = member.to("RedriveItems")[0].request
    assert (asked.shard, asked.count, asked.cursor, asked.filter.cause) == (2, 500, None, REJECTED)
    assert asked.context.hops == 1
    cursor = cursor_of(5, 2 << 48)
    member.reply("RedriveItems", page(500, cursor))
    asked = member.reply("RedriveItems", page(100, None, leased=3))
    assert (asked.count, asked.cursor) == (398, cursor)
    assert numbers(call.answer) == (602, 602, 3, False, [])


def test_only_the_shard_of_one_item_is_asked(member: OneHost) -> None:
    (item_id,) = dead(member, "a")
    assert named(redrive(member, filter=idl.FailureFilter(item_id=item_id))) == {item_id: "t"}
    call = member.call("RedriveItems", **DEAD, filter=idl.FailureFilter(item_id=make_id(2, 9)))
    other = page(1)
    other.items = [idl.RedrivenItem(make_id(2, 9), "u")]
    assert member.reply("RedriveItems", other).filter.item_id == make_id(2, 9)
    assert named(call.answer) == {make_id(2, 9): "u"}


def test_a_canary_over_all_hosts(member: OneHost) -> None:
    dead(member, "a", "b")
    call = member.call("RedriveItems", **DEAD, per_fingerprint=1)
    asked = member.to("RedriveItems")[0].request
    assert asked.per_fingerprint == 1
    assert [group.count for group in asked.taken] == [1, 1]
    other = idl.FailureGroup(REJECTED, 5, 1)
    member.reply("RedriveItems", page(1, groups=[other]))
    assert numbers(call.answer) == (3, 3, 0, False, [])


def test_a_forwarded_page_counts_the_items_taken_before(member: OneHost) -> None:
    dead(member, "a", "b")
    group = member.ask("ListFailures", **DEAD, context=FORWARDED).groups[0]
    taken = [idl.FailureGroup(group.cause, group.fingerprint, 1)]
    asked = {**DEAD, "shard": 1, "count": 9, "context": FORWARDED}
    answer = member.ask("RedriveItems", **asked, per_fingerprint=1, taken=taken)
    assert (answer.at_least, answer.at_most, answer.cursor) == (1, 1, None)
    assert [(one.fingerprint == group.fingerprint, one.count) for one in answer.taken] == [(False, 1)]
    assert type(member.ask("RedriveItems", **{**asked, "shard": 2})) is NotServed


def test_a_lost_reply_leaves_a_range(member: OneHost) -> None:
    dead(member, "a")
    call = member.call("RedriveItems", **DEAD, count=600)
    member.reply("RedriveItems", LostReply("gone"))
    member.wait(100)
    assert member.reply("RedriveItems", page(3)).count == 99
    assert numbers(call.answer) == (4, 504, 0, False, [])


def test_a_lost_reply_may_have_used_up_the_count(member: OneHost) -> None:
    dead(member, "a")
    call = member.call("RedriveItems", **DEAD, count=10)
    member.reply("RedriveItems", LostReply("gone"))
    member.wait(100)
    assert numbers(call.answer) == (1, 10, 0, True, [])


def test_a_lost_reply_ends_a_canary(member: OneHost) -> None:
    """Which groups the items are of is not known, so no more of them are redriven."""
    member.learn(routing_of({1: "a", 2: "b", 3: "c"}))
    call = member.call("RedriveItems", **DEAD, per_fingerprint=1)
    member.reply("RedriveItems", LostReply("gone"))
    assert numbers(call.answer) == (0, 500, 0, True, [2])


def test_a_lost_dry_run_changed_nothing(member: OneHost) -> None:
    call = member.call("RedriveItems", **DEAD, dry_run=True)
    member.reply("RedriveItems", LostReply("gone"))
    member.wait(100)
    member.reply("RedriveItems", page(2))
    assert numbers(call.answer) == (2, 2, 0, False, [])


def test_a_shard_that_moves_is_asked_for_again(member: OneHost) -> None:
    call = member.call("RedriveItems", **DEAD)
    member.reply("RedriveItems", NotServed())
    member.learn(routing_of({1: "a", 2: "c"}))
    member.wait(100)
    assert member.to("RedriveItems")[0].address == "c:1"
    member.reply("RedriveItems", page(4))
    assert numbers(call.answer) == (4, 4, 0, False, [])


def test_a_shard_without_an_owner_is_named_at_last(member: OneHost) -> None:
    member.learn(routing_of({1: "a"}, unowned=(2,)))
    call = member.call("RedriveItems", **DEAD)
    for _ in range(60):
        member.wait(100)
    assert numbers(call.answer) == (0, 0, 0, False, [2])


def test_an_owner_that_hangs_is_unknown_at_the_end(member: OneHost) -> None:
    call = member.call("RedriveItems", **DEAD, count=7, context=idl.RequestContext(timeout_ms=5_000))
    member.wait(5_000)
    assert numbers(call.answer) == (0, 7, 0, True, [2])
    member.reply("RedriveItems", page(7))
    assert len(call.answers) == 1


def test_a_host_that_refuses_for_good_is_left(member: OneHost) -> None:
    call = member.call("RedriveItems", **DEAD)
    member.reply("RedriveItems", Invalid("unknown method"))
    assert numbers(call.answer) == (0, 0, 0, False, [2])


def test_groups_of_several_hosts_are_merged(member: OneHost) -> None:
    ids = dead(member, "a", "a")
    call = member.call("ListFailures", **DEAD)
    own = member.ask("ListFailures", **DEAD, context=FORWARDED).groups[0]
    theirs = idl.FailureGroup(own.cause, own.fingerprint, 3, 5, member.now_ms + 9, 2 << 48, "a")
    member.reply("ListFailures", idl.ListFailuresResponse([theirs], None, []))
    (group,) = call.answer.groups
    assert (group.count, group.first_died_at_ms, group.last_died_at_ms) == (5, 5, member.now_ms + 9)
    assert group.sample_id in (ids[0], 2 << 48)
    assert call.answer.missing == []


def test_hosts_that_do_not_answer_are_named(member: OneHost) -> None:
    member.learn(routing_of({1: "a", 2: "b"}, unowned=(3,)))
    dead(member, "a")
    call = member.call("ListFailures", **DEAD)
    member.reply("ListFailures", Unavailable("busy"))
    assert len(call.answer.groups) == 1
    assert call.answer.missing == ["b:1", "shard 3"]
