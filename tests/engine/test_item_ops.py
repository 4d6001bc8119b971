"""What the end of an attempt means for an item, and when work has begun."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.engine import item_ops
from foqs.engine.item_ops import AGAIN, End, Ended, Fate, end_of, may_end
from foqs.errors import FoqsError, StaleLease
from foqs.hooks.protocol import Action, FailureResult
from foqs.ids import shard_of
from foqs.item import Place
from foqs.policies.layers import NamespacePolicies
from foqs.policies.settings import Settings
from foqs.policies.topic_policy import TopicPolicy
from foqs.rows import AT_MOST_ONCE, FailureCause
from tests.engine.laboratory import KEY, Laboratory

FAILED, EXPIRED, REJECTED, HOOK, LIMIT = FailureCause
DEAD, REMOVED = End(Fate.DEAD), End(Fate.REMOVED)
RULE = {"kind": "constant", "first_ms": 700, "jitter": 0}


def policy_of(topic: str = "mail", **entry: Any) -> TopicPolicy:
    return NamespacePolicies({"topic.mail*": json.dumps(entry)}).of(topic)


def later(delay_ms: int) -> End:
    return End(Fate.AGAIN, delay_ms)


@pytest.mark.parametrize(
    ("policy", "attempt", "ended", "end"),
    [
        ({"max_attempts": 3, "retry": RULE}, 2, Ended(FAILED), later(700)),
        ({"max_attempts": 3, "retry": RULE}, 2, Ended(FAILED, delay_ms=9), later(700)),
        ({"max_attempts": 3, "retry": None}, 2, Ended(FAILED, delay_ms=9), later(9)),
        ({"max_attempts": 3, "retry": None}, 2, Ended(FAILED), AGAIN),
        ({"max_attempts": 3, "retry": RULE}, 3, Ended(FAILED), DEAD),
        ({"max_attempts": 3, "retry": RULE}, 9, Ended(FAILED), DEAD),
        ({"max_attempts": 3, "dead": None}, 3, Ended(FAILED), REMOVED),
        ({"max_attempts": 0, "retry": RULE}, 9_999, Ended(FAILED), later(700)),
        ({"max_attempts": 3, "retry": RULE}, 2, Ended(EXPIRED), AGAIN),
        ({"max_attempts": 3, "retry": RULE}, 3, Ended(EXPIRED), DEAD),
        ({"max_attempts": 3, "dead": None}, 3, Ended(EXPIRED), REMOVED),
        ({"max_attempts": 0}, 9_999, Ended(EXPIRED), AGAIN),
        ({"max_attempts": 0}, 1, Ended(REJECTED), DEAD),
        ({"dead": None}, 1, Ended(REJECTED), REMOVED),
        ({"max_attempts": 3}, 2, Ended(LIMIT), AGAIN),
        ({"max_attempts": 3}, 3, Ended(LIMIT), DEAD),
        ({"max_attempts": 3, "dead": None}, 3, Ended(LIMIT), REMOVED),
        ({"max_attempts": 0, "max_total_ms": 50, "retry": RULE}, 1, Ended(FAILED, age_ms=49), later(700)),
        ({"max_attempts": 0, "max_total_ms": 50, "retry": RULE}, 1, Ended(FAILED, age_ms=50), DEAD),
        ({"max_attempts": 0, "max_total_ms": 50, "retry": RULE}, 1, Ended(EXPIRED, age_ms=50), DEAD),
        ({"max_attempts": 0, "retry": RULE}, 1, Ended(FAILED, age_ms=1 << 50), later(700)),
    ],
)
def test_the_end_of_an_attempt(policy: dict[str, Any], attempt: int, ended: Ended, end: End) -> None:
    assert end_of(policy_of(**policy), 7, attempt, ended) == end


def by_script(cause: FailureCause, action: Action | None = None, delay_ms: int | None = None) -> Ended:
    return Ended(cause, age_ms=40, decision=FailureResult(action, delay_ms))


SCRIPT_DEAD, SCRIPT_REMOVED = End(Fate.DEAD, by_script=True), End(Fate.REMOVED, by_script=True)
DROPPED = End(Fate.REMOVED, by_script=True, dropped=True)


@pytest.mark.parametrize(
    ("policy", "attempt", "ended", "end"),
    [
        ({}, 1, by_script(FAILED), later(700)),
        ({}, 1, by_script(FAILED, None, 5), later(5)),
        ({}, 1, by_script(FAILED, Action.RETRY), later(700)),
        ({}, 1, by_script(FAILED, Action.RETRY, 5), later(5)),
        ({}, 1, by_script(FAILED, Action.RETRY, 0), AGAIN),
        ({}, 1, by_script(FAILED, Action.DEAD), SCRIPT_DEAD),
        ({}, 1, by_script(FAILED, Action.DROP), DROPPED),
        ({"dead": None}, 1, by_script(FAILED, Action.DEAD), SCRIPT_REMOVED),
        ({}, 1, by_script(EXPIRED), AGAIN),
        ({}, 1, by_script(EXPIRED, Action.RETRY, 5), later(5)),
        ({}, 1, by_script(EXPIRED, Action.DEAD), SCRIPT_DEAD),
        ({}, 1, by_script(EXPIRED, Action.DROP), DROPPED),
        ({}, 1, by_script(REJECTED), DEAD),
        ({}, 1, by_script(REJECTED, Action.RETRY), later(700)),
        ({}, 1, by_script(REJECTED, Action.RETRY, 5), later(5)),
        ({}, 1, by_script(REJECTED, Action.DEAD), SCRIPT_DEAD),
        ({"max_attempts": 3}, 3, by_script(FAILED, Action.RETRY, 5), DEAD),
        ({"max_attempts": 3}, 3, by_script(REJECTED, Action.RETRY, 5), DEAD),
        ({"max_attempts": 3}, 3, by_script(FAILED, Action.DEAD), DEAD),
        ({"max_attempts": 3}, 3, by_script(FAILED, Action.DROP), DROPPED),
        ({"max_total_ms": 40}, 1, by_script(EXPIRED, Action.RETRY, 5), DEAD),
    ],
)
def test_what_a_script_decides(policy: dict[str, Any], attempt: int, ended: Ended, end: End) -> None:
    """It cannot give more than the policy's attempts and time."""
    assert end_of(policy_of(**({"retry": RULE} | policy)), 7, attempt, ended) == end


@pytest.mark.parametrize(
    ("ended", "end"),
    [(Ended(FAILED), later(700)), (Ended(EXPIRED), AGAIN), (Ended(LIMIT), AGAIN), (Ended(REJECTED), REMOVED)],
)
def test_a_dead_letter_does_not_die_again(ended: Ended, end: End) -> None:
    policy = policy_of("mail.dlq", max_attempts=1, max_total_ms=1, retry=RULE)
    assert end_of(policy, 7, 99, ended._replace(age_ms=99)) == end


@pytest.mark.parametrize(
    ("policy", "attempt", "may"),
    [
        ({"max_attempts": 3}, 2, False),
        ({"max_attempts": 3}, 3, True),
        ({"max_attempts": 0}, 9_999, False),
        ({"max_attempts": 0, "max_total_ms": 1}, 1, True),
        ({"hooks": {"on_failure": "s"}}, 1, True),
        ({"hooks": {"on_enqueue": "s"}}, 1, False),
    ],
)
def test_whether_the_end_of_a_lease_may_be_more(policy: dict[str, Any], attempt: int, may: bool) -> None:
    assert may_end(policy_of(**policy), attempt) is may


LEASE_MS = 1_000


def attempt(lab: Laboratory, item_id: int) -> int:
    """Return the attempt of the item's next delivery."""
    assert lab.taken(lease_ms=LEASE_MS) == [item_id]
    return lab.engine.state.shards[shard_of(item_id)].memory.known[item_id].attempt


def mark(lab: Laboratory, item_id: int, *, begun: bool) -> list[FoqsError | None]:
    lease = lab.lease_of(item_id)
    return lab.operate(item_id, item_ops.extend(lease, 0, begun))


def extend(lab: Laboratory, item_id: int, lease_ms: int = LEASE_MS) -> FoqsError | None:
    answers = lab.operate(item_id, item_ops.extend(lab.lease_of(item_id), lease_ms))
    lab.settle()
    (answer,) = answers
    return answer


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(("begun", "counted"), [((), 1), ((False,), 0), ((False, True), 1), ((True, False), 0)])
def test_an_expired_lease_counts_work_that_was_begun(written: bool, begun: tuple[bool, ...], counted: int) -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=LEASE_MS)
    for one in begun:
        assert mark(lab, item_id, begun=one) == [None], "at once, as nothing is written"
    if written:
        lab.go_on(LEASE_MS // 2)
        assert lab.engine.state.shards[1].memory.known[item_id].place is Place.TIMER
        lab.go_on(LEASE_MS)
    else:  # the database does not answer until the lease is over
        lab.ring(LEASE_MS)
        lab.settle()
    assert attempt(lab, item_id) == counted + 1


def test_the_items_behind_those_that_begin_are_not_begun() -> None:
    lab = Laboratory(1)
    ids = lab.stored(*[lab.item() for _ in range(4)])
    assert lab.taken(lease_ms=LEASE_MS, begins=1) == ids
    mark(lab, ids[2], begun=True)
    lab.go_on(LEASE_MS)
    began = [ids[0], ids[2]]
    assert lab.taken() == [ids[1], ids[3], *began], "what failed is behind the rest"
    known = lab.engine.state.shards[1].memory.known
    assert [known[item_id].attempt for item_id in ids] == [2, 1, 2, 1]


def test_a_mark_does_not_move_the_leases_end() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=LEASE_MS)
    lab.go_on(LEASE_MS // 2)
    mark(lab, item_id, begun=True)
    lab.go_on(LEASE_MS // 2 - 1)
    assert lab.engine.ready(KEY) == 0
    lab.go_on(1)
    assert lab.engine.ready(KEY) == 1


def test_a_mark_needs_the_lease() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=LEASE_MS)
    (answer,) = lab.operate(item_id, item_ops.extend(5, 0, False))
    assert isinstance(answer, StaleLease)
    lab.go_on(LEASE_MS)
    assert attempt(lab, item_id) == 2


def test_an_at_most_once_item_is_dropped_though_it_was_not_begun() -> None:
    """The word that its consumer began may have been lost."""
    lab = Laboratory(1)
    lab.stored(lab.item(delivery=AT_MOST_ONCE))
    lab.taken(lease_ms=LEASE_MS, begins=0)
    lab.go_on(2 * LEASE_MS)
    assert lab.engine.state.counters.removed == {"dropped": 1}


def test_a_new_owner_counts_every_attempt() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=LEASE_MS, begins=0)
    lab.go_on(LEASE_MS // 2)
    lab.reopen()
    lab.go_on(LEASE_MS)
    assert attempt(lab, item_id) == 2


# ------------------------------------------------------------------------------------------ stuck work


@pytest.fixture
def lab() -> Laboratory:
    """Items of the topic are stuck after 10 s."""
    made = Laboratory(1)
    made.engine.state.policies.apply(Settings(KEY[0], 1, {f"topic.{KEY[1]}": json.dumps({"stuck_after_ms": 10_000})}))
    return made


def extended_until_it_ends(lab: Laboratory, item_id: int) -> tuple[int, FoqsError | None]:
    """Extend the lease whenever a half of it is over. Return after how many ms the item is ready, and the last
    answer."""
    begun_ms, answer = lab.now_ms, None
    while not lab.engine.ready(KEY):
        if (lab.now_ms - begun_ms) % (LEASE_MS // 2) == 0 and answer is None:
            answer = extend(lab, item_id)
        lab.go_on(100)
        assert lab.now_ms < begun_ms + 60_000
    return lab.now_ms - begun_ms, answer


def test_a_lease_is_not_extended_beyond_stuck_after(lab: Laboratory) -> None:
    (item_id,) = lab.stored()
    lab.taken(lease_ms=LEASE_MS)
    after_ms, answer = extended_until_it_ends(lab, item_id)
    assert (after_ms, answer) == (10_000, None)
    assert attempt(lab, item_id) == 2, "it counts as by time"


def test_an_extension_after_stuck_after_is_refused(lab: Laboratory) -> None:
    """A lease that was long from the beginning still stands then."""
    (item_id,) = lab.stored()
    lab.taken(lease_ms=30_000)
    lab.go_on(10_000)
    answer = extend(lab, item_id)
    assert isinstance(answer, StaleLease)
    assert "stuck_after_ms (10000)" in answer.message
    acked = lab.ack((item_id, lab.lease_of(item_id)))
    lab.settle()
    assert acked == [None]


def test_a_new_owner_counts_from_its_opening(lab: Laboratory) -> None:
    (item_id,) = lab.stored()
    lab.taken(lease_ms=LEASE_MS)
    lab.go_on(500)
    lease = lab.lease_of(item_id)
    lab.reopen()
    lab.lease_of = lambda _: lease  # type: ignore[method-assign]
    assert extended_until_it_ends(lab, item_id)[0] == 10_000


def test_a_lease_that_left_memory_counts_from_its_last_extension(lab: Laboratory) -> None:
    (item_id,) = lab.stored()
    lab.go_on(50_000)
    lab.taken(lease_ms=LEASE_MS)
    lab.go_on(500)
    shard = lab.engine.state.shards[1]
    item = shard.memory.known[item_id]
    lease, given_ms = item.lease, lab.now_ms - 500
    shard.memory.forget(item)
    answers = lab.operate(item_id, item_ops.extend(lease, LEASE_MS))
    lab.settle()
    assert answers == [None]
    given = shard.memory.known[item_id].given
    assert given is not None
    assert given.at_ms == given_ms


def test_a_clock_that_is_set_does_not_make_work_stuck(lab: Laboratory) -> None:
    (item_id,) = lab.stored()
    lab.taken(lease_ms=LEASE_MS)
    lab.now_ms += 3_600_000
    lab.engine.clock_set(3_600_000)
    assert extend(lab, item_id) is None


def test_without_a_policy_nothing_is_stuck() -> None:
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=LEASE_MS)
    for _ in range(100):
        assert extend(lab, item_id) is None
        lab.go_on(LEASE_MS // 2)
    assert lab.engine.ready(KEY) == 0
