"""Dead letters return to their topics, page by page, also to topics that are closed or full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.engine import item_ops
from foqs.engine.dead_letters import (
    START,
    FailureListing,
    Granted,
    GroupKey,
    PageAsk,
    PageOutcome,
    RedrivePage,
    Refused,
)
from foqs.errors import FoqsError, NotServed, Overloaded, Unavailable
from foqs.fairness.keys import TopicKey
from foqs.policies.failures import FailureFilter, fingerprint
from foqs.policies.settings import Settings
from foqs.rows import FailureCause, FailureGroup
from foqs.store.protocol import StoreDown
from tests.engine.laboratory import KEY, Laboratory

DEAD = ("ns", "topic.dlq")
ALL = FailureFilter()
REJECTED = FailureCause.REJECTED


def dead_letters(lab: Laboratory, *reasons: str, key: tuple[str, str] = KEY, **about: Any) -> list[int]:
    """Store an item for each of `reasons`, and have a consumer reject it for that reason."""
    ids = lab.stored(*[lab.item(**about) for _ in reasons], key=key)
    for item_id in lab.taken(keys=[key], count=len(ids)):
        lab.operate(item_id, item_ops.reject(lab.lease_of(item_id), reasons[ids.index(item_id)]))
    lab.settle()
    assert lab.dbs[1].failures.keys() >= set(ids)
    return ids


def begun(lab: Laboratory, *, most: int = 500, timeout_ms: int = 5_000, **how: Any) -> list[Any]:
    answers: list[PageOutcome | FoqsError] = []
    ask = PageAsk(DEAD, how.pop("shard", 1), how.pop("after", None), how.pop("wanted", ALL), most, **how)
    RedrivePage(lab.engine.state, ask, answers.append).begin(lab.now_ms, lab.now_ms + timeout_ms)
    return answers


def redrive(lab: Laboratory, **how: Any) -> PageOutcome:
    answers = begun(lab, **how)
    lab.settle()
    (outcome,) = answers
    assert isinstance(outcome, PageOutcome)
    return outcome


def listed(lab: Laboratory, limit: int = 100, after: GroupKey | None = None, wanted: FailureFilter = ALL) -> Any:
    answers: list[Any] = []
    listing = FailureListing(
        lab.engine.state, DEAD, wanted, limit, after, lambda *found: answers.append(found), answers.append
    )
    listing.begin(lab.now_ms + 5_000)
    lab.settle()
    (answer,) = answers
    return answer


def test_a_dead_letter_returns_to_its_topic() -> None:
    lab = Laboratory(1)
    (item_id,) = dead_letters(lab, "it broke", priority=4)
    lab.engine.state.policies.apply(Settings("ns", 1, {"topic.topic": json.dumps({"ttl_ms": 7_000})}))
    lab.go_on(50)
    found = redrive(lab)
    assert found == PageOutcome(1, 0, 0, None, {(fingerprint("it broke"), REJECTED): 1}, items={item_id: "topic"})
    db = lab.dbs[1]
    body, row = db.items[item_id], db.ready[item_id]
    assert db.failures == {}
    assert db.lanes[row.lane][1:3] == (b"ns", b"topic")
    assert (row.priority, row.deliver_after_ms, row.attempt) == (4, lab.now_ms, 0)
    assert (body.deliver_after_ms, body.expires_at_ms) == (lab.now_ms, lab.now_ms + 7_000)
    assert redrive(lab) == PageOutcome()
    assert lab.engine.state.counters.namespaces.of("ns").redriven == 1
    assert lab.taken() == [item_id]
    assert lab.engine.state.shards[1].memory.known[item_id].attempt == 1


@pytest.mark.parametrize("reopened", [False, True])
def test_an_item_of_any_state_but_leased_returns(reopened: bool) -> None:
    """In a window, delayed, or in no memory; and where a lane row is missing, it is made."""
    lab = Laboratory(1)
    plain, delayed, leased = dead_letters(lab, "a", "b", "c")
    lab.taken(keys=[DEAD])
    lab.operate(plain, item_ops.release(lab.lease_of(plain)))
    lab.operate(delayed, item_ops.nack(lab.lease_of(delayed), 60_000, None))
    lab.settle()
    if reopened:
        lab.go_on(200)  # leases are written
        lab.reopen()
    outcome = redrive(lab, to_topic="elsewhere")
    assert (outcome.redriven, outcome.leased, outcome.next) == (2, 1, None)
    assert lab.dbs[1].failures.keys() == {leased}
    assert sorted(lab.taken(keys=[("ns", "elsewhere")])) == [plain, delayed]
    assert not lab.taken(keys=[DEAD])


def test_items_without_a_failure_stay() -> None:
    lab = Laboratory(1)
    dead_letters(lab, "a")
    stored = lab.stored(key=DEAD)
    assert redrive(lab).redriven == 1
    assert lab.taken(keys=[DEAD]) == stored


@pytest.mark.parametrize("most", [1, 2, 3, 500])
def test_no_more_than_asked_for_and_none_twice(most: int) -> None:
    lab = Laboratory(1)
    ids = dead_letters(lab, "a", "b", "c", "d", "e")
    after, pages, count = None, [], len(ids)
    while count:
        outcome = redrive(lab, most=min(most, count), after=after)
        assert outcome.redriven <= most
        pages.append(outcome.redriven)
        count -= outcome.redriven
        after = outcome.next
    assert sum(pages) == 5
    assert sorted(lab.taken()) == ids
    assert lab.dbs[1].failures == {}


def test_two_redrives_at_once_share_the_items() -> None:
    lab = Laboratory(1)
    ids = dead_letters(lab, *"abcde")
    first, second = begun(lab, most=3), begun(lab, most=3)
    lab.settle()
    assert first[0].redriven + second[0].redriven + redrive(lab).redriven == 5
    assert sorted(lab.taken()) == ids


def test_groups_have_their_own_bound() -> None:
    lab = Laboratory(1)
    dead_letters(lab, "out of memory 1", "out of memory 2", "no route", "out of memory 3", "no route")
    memory, route = fingerprint("out of memory 1"), fingerprint("no route")
    taken = {(route, int(REJECTED)): 1}
    assert redrive(lab, per_group=2, taken=taken).taken == {(memory, REJECTED): 2, (route, REJECTED): 1}
    left = redrive(lab, per_group=1, after=(memory, 0), taken={(memory, int(REJECTED)): 1})
    assert left.taken == ({(route, REJECTED): 1} if route > memory else {})


def test_a_filter_and_a_dry_run() -> None:
    lab = Laboratory(1)
    dead_letters(lab, "a", "b")
    named = lab.item()
    named.headers = b'{"customer": "acme", "x": "y"}'
    (item_id,) = lab.stored(named)
    lab.operate(lab.taken()[0], item_ops.reject(lab.lease_of(item_id), "a"))
    lab.settle()
    for wanted, count in (
        (ALL, 3),
        (FailureFilter(headers={"customer": "acme"}), 1),
        (FailureFilter(headers={"customer": "other"}), 0),
        (FailureFilter(reason_contains=b"a"), 2),
        (FailureFilter(cause=FailureCause.EXPIRED), 0),
    ):
        assert redrive(lab, wanted=wanted, dry_run=True).redriven == count
    assert len(lab.dbs[1].failures) == 3
    assert redrive(lab, wanted=FailureFilter(headers={"customer": "acme"})).redriven == 1
    assert lab.taken() == [item_id]


def test_an_item_that_is_being_removed_is_left_alone() -> None:
    lab = Laboratory(1)
    (item_id,) = dead_letters(lab, "a")
    answers = begun(lab)
    (sent,) = lab.send()
    lab.operate(item_id, item_ops.delete)
    lab.arrive(*sent)
    lab.settle()
    assert answers == [PageOutcome()]
    assert item_id not in lab.dbs[1].items


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_late_ack_ends_an_item_that_is_being_redriven(in_flight: bool) -> None:
    """Its lease ended by time, and no other consumer has got it."""
    lab = Laboratory(1)
    lab.engine.state.policies.apply(Settings("ns", 1, {"topic.topic": json.dumps({"max_attempts": 1})}))
    lab.stored()
    (item_id,) = lab.taken(lease_ms=100)
    lease = lab.lease_of(item_id)
    lab.go_on(1_000)
    assert lab.dbs[1].failures
    answers = begun(lab)
    (read,) = lab.send()
    lab.arrive(*read)
    move = lab.send() if in_flight else []
    acked = lab.ack((item_id, lease))
    for sent in move:
        lab.arrive(*sent)
    lab.settle()
    assert acked == [None]
    assert answers[0].redriven == 1
    assert (lab.dbs[1].items, lab.dbs[1].failures) == ({}, {})


def test_a_failed_transaction_is_repeated() -> None:
    lab = Laboratory(1)
    dead_letters(lab, "a", "b")
    lab.faults[1].commits.extend(["busy"])
    answers = begun(lab)
    lab.settle()
    assert answers == []
    lab.go_on(100)
    assert answers[0].redriven == 2


def test_unsent_moves_are_withdrawn_and_sent_ones_unknown() -> None:
    lab = Laboratory(1)
    dead_letters(lab, "a")
    answers = begun(lab, timeout_ms=100)
    (read,) = lab.send()
    lab.arrive(*read)
    lab.send()
    lab.ring(100)
    assert [(one.redriven, one.unknown) for one in answers] == [(0, 1)]
    lab = Laboratory(1)
    dead_letters(lab, "a")
    answers = begun(lab, timeout_ms=100)
    (read,) = lab.send()
    lab.arrive(*read)
    lab.ring(100)
    assert isinstance(answers[0], Unavailable)
    lab.settle()
    assert len(lab.dbs[1].failures) == 1
    assert len(lab.taken(keys=[DEAD])) == 1


def test_a_page_that_is_refused_in_part_is_asked_for_again() -> None:
    """The next page begins where it began; where all of it is refused, nothing was changed."""
    lab = Laboratory(1)
    first, second = dead_letters(lab, "a", "a")
    answers = begun(lab)
    (read,) = lab.send()
    lab.arrive(*read)
    ((shard, move),) = lab.send()
    lab.arrive(shard, move, BatchResult(Outcome.COMMITTED, rejected={first: "no"}))
    assert answers == [PageOutcome(1, 0, 0, START, {(fingerprint("a"), REJECTED): 1}, items={second: "topic"})]
    lab = Laboratory(1)
    dead_letters(lab, "a", "b")
    lab.faults[1].commits.append("full")
    answers = begun(lab)
    lab.settle()
    assert isinstance(answers[0], Unavailable)
    assert len(lab.dbs[1].failures) == 2


def test_a_shard_that_cannot_be_asked() -> None:
    lab = Laboratory(1, pending_rows=1)
    dead_letters(lab, "a")
    assert isinstance(begun(lab, shard=2)[0], NotServed)
    shard = lab.engine.state.shards[1]
    shard.owner.grace_from_ms = lab.now_ms
    assert isinstance(begun(lab)[0], Unavailable)
    shard.owner.grace_from_ms = None
    lab.enqueue()
    assert isinstance(begun(lab)[0], Overloaded)
    lab.settle()
    answers = begun(lab)
    lab.engine.lose(shard, lab.now_ms)
    assert isinstance(answers[0], NotServed)


def test_a_read_that_fails_is_repeated_or_given_up() -> None:
    lab = Laboratory(1)
    dead_letters(lab, "a")
    lab.faults[1].reads.append(StoreDown("gone"))
    answers = begun(lab, timeout_ms=60_000)
    lab.settle()
    assert answers == []
    lab.go_on(30_000)
    assert answers[0].redriven == 1
    lab = Laboratory(1)
    dead_letters(lab, "b")
    answers = begun(lab, timeout_ms=100)
    lab.ring(100)
    assert isinstance(answers[0], Unavailable)
    assert not lab.engine.state.shards[1].queue.dead_reads


def group(reason: str, ids: Sequence[int], at_ms: int) -> FailureGroup:
    return FailureGroup(fingerprint(reason), REJECTED, len(ids), at_ms, at_ms, ids[0], reason.encode())


def test_groups_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Laboratory(1)
    reasons = [f"reason {letter}" for letter in "abcdefg"]
    ids = {reason: dead_letters(lab, reason, reason) for reason in reasons}
    expected = sorted(group(reason, ids[reason], lab.now_ms) for reason in reasons)
    for rows in (1, 3, 10_000):
        monkeypatch.setattr("foqs.engine.dead_letters.ROWS", rows)
        for limit in (1, 3, 7, 100):
            found: list[FailureGroup] = []
            after, more = None, True
            while more:
                page, more = listed(lab, limit, after)
                assert len(page) == min(limit, 7 - len(found))
                found += page
                after = found[-1][:2]
            assert found == expected
    assert listed(lab, wanted=FailureFilter(cause=FailureCause.FAILED)) == ([], False)


def test_a_listing_that_gets_no_answer() -> None:
    lab = Laboratory(1)
    dead_letters(lab, "a")
    answers: list[Any] = []
    listing = FailureListing(lab.engine.state, DEAD, ALL, 1, None, lambda *found: answers.append(found), answers.append)
    listing.begin(lab.now_ms + 100)
    lab.ring(100)
    assert isinstance(answers[0], Unavailable)
    assert not lab.engine.state.shards[1].queue.dead_reads


OTHER = ("ns", "other")
FULL = Overloaded("the topic is full", 200)


class Rooms:
    """Admits up to `left` items of each topic, at once or when a test says so. `held` counts tokens that are neither
    spent nor given back."""

    def __init__(self, **left: int) -> None:
        self.left = left
        self.held = 0
        self.waiting: list[tuple[str, int, Granted]] = []
        self.at_once = True

    def admit(self, key: TopicKey, items: int, _deadline_ms: int, granted: Granted) -> None:
        self.waiting.append((key[1], items, granted))
        if self.at_once:
            self.answer()

    def answer(self) -> None:
        topic, items, granted = self.waiting.pop(0)
        got = min(items, self.left[topic])
        self.left[topic] -= got
        self.held += got

        def settle(unused: int) -> None:
            assert 0 <= unused <= got
            self.held -= got
            self.left[topic] += unused

        granted(got, None if got == items else FULL, settle)


def laboratory(**policies: Any) -> Laboratory:
    """Topics `topic` and `other` have their dead letters in one topic."""
    lab = Laboratory(1)
    apply(lab, 1, **policies)
    return lab


def apply(lab: Laboratory, version: int, **policies: Any) -> None:
    own = {"topic": {}, "other": {"dead": {"topic": DEAD[1]}}}
    entries = {f"topic.{name}": json.dumps(own[name] | policies.get(name, {})) for name in own}
    lab.engine.apply_settings(Settings("ns", version, entries))


def begin(lab: Laboratory, rooms: Rooms | None = None, most: int = 500, **how: Any) -> list[PageOutcome | FoqsError]:
    answers: list[PageOutcome | FoqsError] = []
    ask = PageAsk(DEAD, 1, how.pop("after", None), ALL, most, **how)
    page = RedrivePage(lab.engine.state, ask, answers.append, rooms.admit if rooms is not None else None)
    page.begin(lab.now_ms, lab.now_ms + 5_000)
    return answers


def redrive_within(lab: Laboratory, rooms: Rooms | None = None, **how: Any) -> PageOutcome:
    answers = begin(lab, rooms, **how)
    lab.settle()
    (outcome,) = answers
    assert isinstance(outcome, PageOutcome)
    return outcome


def counts(outcome: PageOutcome) -> tuple[int, dict[str, int]]:
    assert sum(outcome.taken.values()) == outcome.redriven
    return outcome.redriven, {topic: refused.items for topic, refused in outcome.refused.items()}


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_closed_topic_stops_no_other_topic(dry_run: bool) -> None:
    lab = laboratory(topic={"closed": True})
    apply(lab, 2)
    closed, others = dead_letters(lab, "a", "b"), dead_letters(lab, "a", "b", "c", key=OTHER)
    apply(lab, 3, topic={"closed": True})
    outcome = redrive_within(lab, dry_run=dry_run)
    assert counts(outcome) == (3, {"topic": 2})
    error = outcome.refused["topic"].error
    assert isinstance(error, Unavailable)
    assert error.message == "the topic topic is closed to enqueues until `foqs topic open topic --ns ns`"
    assert lab.dbs[1].failures.keys() == {*closed, *(others if dry_run else ())}
    apply(lab, 4)
    assert counts(redrive_within(lab)) == (5 if dry_run else 2, {})


def test_a_paused_topic_takes_its_items() -> None:
    lab = laboratory()
    dead_letters(lab, "a")
    apply(lab, 2, topic={"paused": True})
    assert counts(redrive_within(lab)) == (1, {})


@pytest.mark.parametrize("most", [1, 2, 500])
def test_a_full_topic_takes_what_fits(most: int) -> None:
    lab = laboratory(topic={"max_stored": 9})
    dead_letters(lab, *"abcde")
    others = dead_letters(lab, *"abc", key=OTHER)
    rooms, after, moved, refused = Rooms(topic=2), None, 0, 0
    while True:
        outcome = redrive_within(lab, rooms, most=most, after=after)
        moved += outcome.redriven
        refused += counts(outcome)[1].get("topic", 0)
        assert all(one == Refused(one.items, FULL) for one in outcome.refused.values())
        assert (outcome.redriven <= most, rooms.held) == (True, 0)
        after = outcome.next
        if after is None:
            break
    assert (moved, refused, rooms.left) == (5, 3, {"topic": 0})
    assert len(lab.dbs[1].failures) == 3
    assert sorted(lab.taken(keys=[OTHER])) == others


def test_rows_that_changed_while_room_was_asked_for() -> None:
    """They are read again: an item that is gone by then is not moved, and its token returns."""
    lab = laboratory(topic={"max_stored": 9})
    gone, leased, stays = dead_letters(lab, "a", "b", "c")
    rooms = Rooms(topic=9)
    rooms.at_once = False
    answers = begin(lab, rooms)
    lab.settle()
    ((topic, items, _),) = rooms.waiting
    assert (topic, items, answers) == ("topic", 3, [])
    taken = lab.taken(keys=[DEAD])
    lab.ack((gone, lab.lease_of(gone)))
    for item_id in set(taken) - {gone, leased}:
        lab.operate(item_id, item_ops.release(lab.lease_of(item_id)))
    lab.settle()
    rooms.answer()
    lab.settle()
    assert [(one.redriven, one.leased) for one in answers] == [(1, 1)]
    assert (rooms.held, rooms.left) == (0, {"topic": 8})
    assert lab.dbs[1].failures.keys() == {leased}
    assert lab.taken() == [stays]


def test_room_that_comes_too_late_is_given_back() -> None:
    lab = laboratory(topic={"max_stored": 9})
    dead_letters(lab, "a")
    rooms = Rooms(topic=9)
    rooms.at_once = False
    answers = begin(lab, rooms)
    lab.settle()
    lab.ring(5_000)
    assert isinstance(answers[0], Unavailable)
    rooms.answer()
    lab.settle()
    assert (rooms.held, rooms.left, len(lab.dbs[1].failures), len(answers)) == (0, {"topic": 9}, 1, 1)


def test_room_of_items_that_the_database_refuses_is_given_back() -> None:
    lab = laboratory(topic={"max_stored": 9})
    dead_letters(lab, "a", "b")
    lab.faults[1].commits.append("full")
    rooms = Rooms(topic=9)
    answers = begin(lab, rooms)
    lab.settle()
    assert isinstance(answers[0], Unavailable)
    assert (rooms.held, rooms.left) == (0, {"topic": 9})


def test_one_topic_for_all() -> None:
    lab = laboratory()
    dead_letters(lab, "a")
    dead_letters(lab, "b", key=OTHER)
    apply(lab, 2, other={"max_stored": 1})
    assert counts(redrive_within(lab, Rooms(other=1), to_topic="other")) == (1, {"other": 1})
    apply(lab, 3, other={"closed": True})
    assert counts(redrive_within(lab, to_topic="other")) == (0, {"other": 1})
    assert counts(redrive_within(lab, to_topic="elsewhere")) == (1, {})


def test_a_canary_takes_another_item_of_its_group() -> None:
    lab = laboratory()
    dead_letters(lab, "a")
    dead_letters(lab, "a", key=OTHER)
    apply(lab, 2, topic={"closed": True})
    assert counts(redrive_within(lab, per_group=1)) == (1, {"topic": 1})
