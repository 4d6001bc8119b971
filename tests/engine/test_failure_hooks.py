"""Scripts that decide about failed items: when one is asked, and what its answer does."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from foqs.engine import asked_scripts, item_ops
from foqs.engine.asked_scripts import WAIT_MS
from foqs.engine.state import Callbacks
from foqs.errors import FoqsError, NotServed, StaleLease, Unavailable
from foqs.hooks.protocol import Action, Decided, FailedAttempt, FailureResult
from foqs.policies.settings import Settings
from foqs.rows import AT_MOST_ONCE, FailureCause
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.test_expiry import written

Outcome = FailureResult | FoqsError | None
RETRY = {"kind": "constant", "first_ms": 700, "jitter": 0}
FAIL = partial(item_ops.fail, delay_ms=0, metadata=None, reason="")
REJECT = partial(item_ops.reject, reason="")
DEAD, DROP, LATER = FailureResult(Action.DEAD), FailureResult(Action.DROP), FailureResult(Action.RETRY, 5_000)


class Scripts:
    """Answers at once with `outcome`, or keeps the calls in `open`."""

    def __init__(self, outcome: Outcome = None, *, keeps: bool = False) -> None:
        self.lab: Laboratory
        self.asked: list[FailedAttempt] = []
        self.open: list[Decided] = []
        self.outcome = outcome
        self._keeps = keeps

    def ask(self, attempt: FailedAttempt, decided: Decided) -> None:
        self.asked.append(attempt)
        if self._keeps:
            self.open.append(decided)
        else:
            decided(self.outcome, self.lab.now_ms)

    def answer(self, outcome: Outcome = None) -> None:
        """Answer the first open call."""
        self.open.pop(0)(outcome, self.lab.now_ms)
        self.lab.settle()


def laboratory(scripts: Scripts, policy: dict[str, Any] | None = None, **host: Any) -> Laboratory:
    scripts.lab = lab = Laboratory(1, callbacks=Callbacks(ask_script=scripts.ask), **host)
    with_hook = {"hooks": {"on_failure": "decide"}, "retry": RETRY} | (policy or {})
    entries = {"topic.topic": json.dumps(with_hook), "script.decide": "function on_failure() end"}
    lab.engine.apply_settings(Settings("ns", 1, entries))
    return lab


def leased(lab: Laboratory, lease_ms: int = 60_000) -> tuple[int, int]:
    """Return the id and the lease of a new item."""
    item = lab.item(b"12345")
    item.headers = b'{"customer": "acme"}'
    (item_id,) = lab.stored(item)
    lab.taken(lease_ms=lease_ms)
    return item_id, lab.lease_of(item_id)


def failed(lab: Laboratory, item_id: int, lease: int, reason: str = "") -> list[FoqsError | None]:
    answers = lab.operate(item_id, item_ops.fail(lease, 0, None, reason))
    lab.settle()
    return answers


# ------------------------------------------------------------------------------------------ nacks


def test_a_script_reads_the_item_whose_body_was_dropped() -> None:
    scripts = Scripts()
    lab = laboratory(scripts)
    item_id, lease = leased(lab)
    assert lab.engine.state.shards[1].memory.known[item_id].body is None
    assert failed(lab, item_id, lease, "no such user") == [None]
    attempt = FailedAttempt(KEY, b'{"customer": "acme"}', 5, 0, 1, FailureCause.FAILED, "no such user", None)
    assert scripts.asked == [attempt]


def test_a_script_may_choose_the_delay() -> None:
    lab = laboratory(Scripts(LATER))
    item_id, lease = leased(lab)
    failed(lab, item_id, lease)
    lab.go_on(4_999)
    assert lab.taken() == []
    lab.go_on(1)
    assert lab.taken() == [item_id]


def test_a_script_may_give_an_item_up() -> None:
    lab = laboratory(Scripts(DEAD))
    item_id, lease = leased(lab)
    failed(lab, item_id, lease, "no such user")
    (failure,) = lab.dbs[1].failures.values()
    assert (failure.id, failure.cause, failure.reason) == (item_id, FailureCause.HOOK, b"no such user")
    assert lab.engine.state.counters.namespaces.of("ns").dead == {"hook": 1}


def test_a_script_may_drop_an_item() -> None:
    lab = laboratory(Scripts(DROP))
    assert failed(lab, *leased(lab)) == [None]
    assert not lab.dbs[1].items
    assert lab.engine.state.counters.removed == {"hook": 1}


def test_a_script_may_keep_a_rejected_item() -> None:
    scripts = Scripts(LATER)
    lab = laboratory(scripts)
    item_id, lease = leased(lab)
    answers = lab.operate(item_id, item_ops.reject(lease, "why"))
    lab.settle()
    assert answers == [None]
    assert (scripts.asked[0].cause, scripts.asked[0].reason) == (FailureCause.REJECTED, "why")
    lab.go_on(5_000)
    assert lab.taken() == [item_id]


@pytest.mark.parametrize(
    ("outcome", "policy", "op", "nacked", "dead", "removed"),
    [
        (None, {}, partial(item_ops.nack, delay_ms=0, metadata=None), 1, {}, {}),
        (None, {}, partial(item_ops.nack, delay_ms=500, metadata=None), 1, {}, {}),
        (None, {}, FAIL, 1, {}, {}),
        (None, {"max_attempts": 1}, FAIL, 0, {"failed": 1}, {}),
        (None, {"max_attempts": 1, "dead": None}, FAIL, 0, {}, {"exhausted": 1}),
        (DEAD, {}, FAIL, 0, {"hook": 1}, {}),
        (None, {}, REJECT, 0, {"rejected": 1}, {}),
        (None, {"dead": None}, REJECT, 0, {}, {"rejected": 1}),
        (LATER, {}, REJECT, 1, {}, {}),
        (FailureResult(Action.RETRY, 0), {}, REJECT, 1, {}, {}),
    ],
)
def test_a_nack_counts_once(
    outcome: Outcome, policy: dict[str, Any], op: Callable[[int], item_ops.Op], nacked: int, dead: dict[str, int],
    removed: dict[str, int],
) -> None:  # fmt: skip
    """An item that its topic keeps, a dead letter and a removal are three counts."""
    lab = laboratory(Scripts(outcome), policy)
    item_id, lease = leased(lab)
    answers = lab.operate(item_id, op(lease))
    lab.settle()
    assert answers == [None]
    counts = lab.engine.state.counters.namespaces.of("ns")
    assert (counts.nacked, counts.dead, counts.removed) == (nacked, dead, removed)


def test_the_policys_time_bounds_a_script() -> None:
    lab = laboratory(Scripts(LATER), {"max_total_ms": 500})
    item_id, lease = leased(lab)
    lab.go_on(500)
    lab.operate(item_id, item_ops.reject(lease, "why"))
    lab.settle()
    assert [failure.cause for failure in lab.dbs[1].failures.values()] == [FailureCause.REJECTED]


def test_a_refused_nack_changes_nothing() -> None:
    lab = laboratory(Scripts(Unavailable("the script fails", 900)))
    item_id, lease = leased(lab)
    (error,) = failed(lab, item_id, lease)
    assert isinstance(error, Unavailable)
    assert error.retry_after_ms == 900
    acked = lab.ack((item_id, lease))
    lab.settle()
    assert acked == [None]


@pytest.mark.parametrize("policy", [{"hooks": None}, {"hooks": {"on_enqueue": "decide"}}])
def test_no_script_is_asked_without_a_hook(policy: dict[str, Any]) -> None:
    scripts = Scripts(DROP)
    lab = laboratory(scripts, policy)
    failed(lab, *leased(lab))
    assert scripts.asked == []
    assert len(lab.dbs[1].items) == 1


def test_no_script_is_asked_about_acks_and_plain_nacks() -> None:
    scripts = Scripts(DROP)
    lab = laboratory(scripts)
    lab.ack(leased(lab))
    item_id, lease = leased(lab)
    lab.operate(item_id, item_ops.nack(lease, 0, None))
    item_id, lease = leased(lab)
    lab.operate(item_id, item_ops.release(lease))
    lab.settle()
    assert scripts.asked == []


def test_no_script_is_asked_about_another_lease() -> None:
    scripts = Scripts(DROP)
    lab = laboratory(scripts)
    item_id, lease = leased(lab)
    (error,) = failed(lab, item_id, lease + 1)
    assert isinstance(error, StaleLease)
    assert scripts.asked == []


def test_an_at_most_once_item_ends_without_its_script() -> None:
    scripts = Scripts(LATER)
    lab = laboratory(scripts)
    (item_id,) = lab.stored(lab.item(delivery=AT_MOST_ONCE))
    lab.taken()
    failed(lab, item_id, lab.lease_of(item_id))
    assert (scripts.asked, lab.dbs[1].items) == ([], {})


def test_a_lease_that_ended_while_the_script_was_asked_is_stale() -> None:
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    item_id, lease = leased(lab)
    answers = failed(lab, item_id, lease)
    lab.operate(item_id, item_ops.release(lease))
    lab.settle()
    assert lab.taken() == [item_id]
    scripts.answer(DROP)
    assert [type(answer) for answer in answers] == [StaleLease]
    assert lab.lease_of(item_id) not in (0, lease)


def test_a_shard_that_is_closed_before_the_answer_keeps_its_item() -> None:
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    item_id, lease = leased(lab)
    answers = failed(lab, item_id, lease)
    lab.engine.drained(lab.engine.state.shards[1], lab.now_ms)
    scripts.answer(DROP)
    assert [type(answer) for answer in answers] == [NotServed]
    assert item_id in lab.dbs[1].items


def test_a_request_that_ends_before_its_script_changes_nothing() -> None:
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    item_id, lease = leased(lab)
    answers = lab.operate(item_id, item_ops.fail(lease, 0, None, ""), timeout_ms=400)
    lab.settle()
    lab.ring(400)
    assert [type(answer) for answer in answers] == [Unavailable]
    scripts.answer(DROP)
    assert item_id in lab.dbs[1].items


def test_an_item_that_is_gone_when_its_body_is_read_is_not_found() -> None:
    lab = laboratory(Scripts(LATER))
    item_id, lease = leased(lab)
    answers = lab.operate(item_id, item_ops.fail(lease, 0, None, ""))
    lab.ack((item_id, lease))
    lab.settle()
    assert len(answers) == 1
    assert isinstance(answers[0], FoqsError)
    assert not lab.dbs[1].items


# ------------------------------------------------------------------------------------------ ends by time


def test_a_script_decides_about_a_lease_that_ended_by_time() -> None:
    scripts = Scripts(DEAD)
    lab = laboratory(scripts)
    item_id = written(lab)
    lab.go_on(900)
    assert scripts.asked == [FailedAttempt(KEY, None, 7, 0, 1, FailureCause.EXPIRED, "", WAIT_MS)]
    assert [failure.cause for failure in lab.dbs[1].failures.values()] == [FailureCause.HOOK]
    assert item_id in lab.dbs[1].items


@pytest.mark.parametrize("reopened", [False, True])
def test_a_script_may_delay_an_item_whose_lease_ended(reopened: bool) -> None:
    scripts = Scripts(LATER)
    lab = laboratory(scripts)
    item_id = written(lab)
    if reopened:
        lab.reopen()
    lab.go_on(900)
    assert len(scripts.asked) == 1
    assert lab.taken() == []
    lab.go_on(5_000)
    assert lab.taken() == [item_id]
    assert lab.engine.state.shards[1].memory.known[item_id].attempt == 2


def test_a_lease_that_was_never_written_ends_through_the_scan() -> None:
    scripts = Scripts(DROP)
    lab = laboratory(scripts)
    leased(lab, lease_ms=100)
    lab.go_on(1_000)
    assert (len(scripts.asked), lab.dbs[1].items) == (1, {})


@pytest.mark.parametrize("outcome", [None, Unavailable("the script fails")])
def test_without_an_answer_the_policy_decides(outcome: Outcome) -> None:
    lab = laboratory(Scripts(outcome))
    item_id = written(lab)
    lab.go_on(900)
    assert lab.taken() == [item_id]


def test_the_row_stays_while_the_script_is_asked() -> None:
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    item_id = written(lab)
    (late_id,) = lab.stored(lab.item(delay_ms=850))
    lab.go_on(1_000)
    assert (len(scripts.asked), item_id in lab.dbs[1].timer) == (1, True)
    assert lab.taken() == [late_id]
    scripts.answer(DROP)
    lab.go_on(100)
    assert item_id not in lab.dbs[1].items
    assert len(lab.engine.state.shards[1].queue.asked) == 0


def test_an_answer_by_older_settings_is_not_used() -> None:
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    item_id = written(lab)
    lab.go_on(820)
    scripts.answer(DROP)
    lab.engine.apply_settings(Settings("ns", 2, {}))
    lab.go_on(100)
    assert lab.taken() == [item_id]


def test_an_ack_while_the_script_is_asked_counts() -> None:
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    item_id = written(lab)
    lease = lab.lease_of(item_id)
    lab.go_on(900)
    acked = lab.ack((item_id, lease))
    lab.settle()
    assert acked == [None]
    scripts.answer(LATER)
    lab.go_on(11_000)
    written(lab)
    lab.go_on(900)
    assert len(lab.engine.state.shards[1].queue.asked) == 1  # the old answer was dropped, the new script is being asked


def test_after_a_slow_script_policies_decide_for_a_second() -> None:
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    written(lab)
    lab.go_on(800 + WAIT_MS)
    scripts.answer(None)
    lab.go_on(100)
    lab.taken(lease_ms=200)
    lab.go_on(900)
    assert len(scripts.asked) == 1
    assert len(lab.taken(lease_ms=200)) == 1
    lab.go_on(900)
    assert len(scripts.asked) == 2


def test_an_item_that_was_not_begun_returns_without_its_script() -> None:
    scripts = Scripts(DROP)
    lab = laboratory(scripts)
    (item_id,) = lab.stored()
    lab.taken(lease_ms=500, begins=0)
    lab.go_on(900)
    assert scripts.asked == []
    assert lab.taken() == [item_id]
    assert lab.engine.state.shards[1].memory.known[item_id].attempt == 1


@pytest.mark.parametrize("same_time", [False, True])
def test_a_stuck_script_holds_up_no_lease_of_another_topic(same_time: bool) -> None:
    """A scan reads 5 rows at a time, and 23 leases of the topic ended first."""
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts, scan_rows=5)
    other = ("ns", "other")
    stuck = lab.stored(*(lab.item() for _ in range(23)))
    (other_id,) = lab.stored(lab.item(), key=other)
    assert lab.taken(count=23, lease_ms=1_000) == stuck
    assert lab.taken(keys=[other], lease_ms=1_000 + (not same_time)) == [other_id]
    lab.go_on(1_100)
    assert len(scripts.open) == 23
    assert other_id not in lab.dbs[1].timer
    assert lab.dbs[1].timer.keys() == set(stuck)
    for _ in stuck:
        scripts.answer(DROP)
    lab.go_on(100)
    assert lab.dbs[1].items.keys() == {other_id}
    assert lab.engine.state.shards[1].queue.timers.from_ms > lab.now_ms - 1_000


def test_a_topic_asks_about_so_many_leases_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_scripts, "MOST_OPEN", 3)
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    ids = lab.stored(*(lab.item() for _ in range(8)))
    lab.taken(lease_ms=1_000)
    lab.go_on(1_100)
    assert len(scripts.asked) == 3
    scripts.answer(DROP)
    lab.go_on(100)
    assert (len(scripts.asked), len(lab.dbs[1].items)) == (4, 7)
    while scripts.open:
        scripts.answer(DROP)
        lab.go_on(60)
    assert len(scripts.asked) == len(ids)
    assert not lab.dbs[1].items
    assert not lab.engine.state.shards[1].queue.asked._open


def test_a_topics_own_calls_leave_each_one_its_time() -> None:
    """A thousand leases end at once, and the pool answers two calls a millisecond."""
    scripts = Scripts(keeps=True)
    lab = laboratory(scripts)
    lab.stored(*(lab.item() for _ in range(1_000)))
    assert len(lab.taken(count=1_000, lease_ms=1_000)) == 1_000
    asked_ms: list[int] = []
    waits_ms: list[int] = []
    while lab.dbs[1].items:
        lab.go_on(1)
        asked_ms += [lab.now_ms] * (len(scripts.asked) - len(asked_ms))
        for _ in scripts.open[:2]:
            waits_ms.append(lab.now_ms - asked_ms[len(waits_ms)])
            scripts.open.pop(0)(DROP, lab.now_ms)
    assert len(waits_ms) == 1_000
    assert max(waits_ms) < WAIT_MS // 2
