"""The place of an item after an attempt: the last of its priority if the attempt failed, else the old one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from foqs.engine import item_ops
from foqs.engine.explain import of_item
from foqs.engine.listing import Releasing
from foqs.engine.state import Callbacks
from foqs.hooks.protocol import Action, Decided, FailedAttempt, FailureResult
from foqs.idl import idl
from foqs.policies.settings import Settings
from foqs.rows import FailureCause
from tests.engine.laboratory import KEY, Laboratory
from tests.engine.test_redrive import redrive
from tests.sim.audit import audit

LEASE_MS = 1_000
AT_ONCE = {"kind": "constant", "first_ms": 0, "longest_ms": 0}
End = Callable[[Laboratory, int], None]


def laboratory(script: FailureResult | None = None, **policy: Any) -> Laboratory:
    """`script`: what the topic's script answers to each failure."""

    def ask(_: FailedAttempt, decided: Decided) -> None:
        decided(script, lab.now_ms)

    lab = Laboratory(1, callbacks=Callbacks(ask_script=ask))
    if script is not None:
        policy["hooks"] = {"on_failure": "decide"}
    entries = {"topic.topic": json.dumps(policy), "script.decide": "function on_failure() end"}
    lab.engine.apply_settings(Settings("ns", 1, entries))
    return lab


def by_nack(lab: Laboratory, item_id: int) -> None:
    lab.operate(item_id, item_ops.fail(lab.lease_of(item_id), 0, None, "no"))


def by_reject(lab: Laboratory, item_id: int) -> None:
    lab.operate(item_id, item_ops.reject(lab.lease_of(item_id), "no"))


def by_time(lab: Laboratory, item_id: int) -> None:
    lab.go_on(LEASE_MS + 100)  # the scan after a script's answer


def by_time_unwritten(lab: Laboratory, item_id: int) -> None:
    """The database does not answer until the lease is over."""
    lab.ring(LEASE_MS)


def by_an_operator(lab: Laboratory, item_id: int) -> None:
    releasing = Releasing(lab.engine.state, KEY, None, lab.now_ms, lambda *_: None)
    lab.engine.release(releasing, lab.now_ms, 5_000)


RETRY_NOW = FailureResult(Action.RETRY, 0)
FAILURES: dict[str, tuple[End, dict[str, Any]]] = {
    "rule": (by_nack, {"retry": AT_ONCE}),
    "asked": (by_nack, {"retry": None}),
    "script": (by_nack, {"script": RETRY_NOW}),
    "reject kept by a script": (by_reject, {"script": RETRY_NOW}),
    "time": (by_time, {}),
    "time, decided by a script": (by_time, {"script": RETRY_NOW}),
    "time, with a bound": (by_time, {"max_total_ms": 60_000}),
    "time, not written": (by_time_unwritten, {}),
    "operator": (by_an_operator, {}),
    "operator, with a bound": (by_an_operator, {"max_total_ms": 60_000}),
}


@pytest.mark.parametrize("passed_ms", [0, 5], ids=["in one millisecond", "later"])
@pytest.mark.parametrize("how", FAILURES)
def test_an_item_that_failed_is_the_last_of_its_priority(how: str, passed_ms: int) -> None:
    end, about = FAILURES[how]
    lab = laboratory(**about)
    failing, other, less = lab.stored(lab.item(), lab.item(), lab.item(priority=1))
    assert lab.taken(count=1, lease_ms=LEASE_MS) == [failing]
    lab.go_on(passed_ms)
    (later,) = lab.stored()
    end(lab, failing)
    lab.settle()
    audit(lab.engine.state.shards[1], lab.dbs[1])
    assert [lab.taken(count=1) for _ in range(4)] == [[other], [later], [failing], [less]]
    assert lab.engine.state.shards[1].memory.known[failing].attempt == 2
    (newest,) = lab.stored()
    lab.reopen()
    lab.go_on(1)
    assert newest in lab.taken()


def released(lab: Laboratory, item_id: int) -> None:
    lab.operate(item_id, item_ops.release(lab.lease_of(item_id)))


def nacked(lab: Laboratory, item_id: int) -> None:
    lab.operate(item_id, item_ops.nack(lab.lease_of(item_id), 0, None))


def not_begun(lab: Laboratory, item_id: int) -> None:
    lab.operate(item_id, item_ops.extend(lab.lease_of(item_id), 0, begun=False))
    lab.go_on(LEASE_MS)


def not_begun_unwritten(lab: Laboratory, item_id: int) -> None:
    lab.operate(item_id, item_ops.extend(lab.lease_of(item_id), 0, begun=False))
    lab.ring(LEASE_MS)


@pytest.mark.parametrize("end", [released, nacked, not_begun, not_begun_unwritten])
def test_an_item_that_did_not_fail_keeps_its_place(end: End) -> None:
    lab = laboratory()
    first, *others = lab.stored(*[lab.item() for _ in range(3)])
    assert lab.taken(count=1, lease_ms=LEASE_MS) == [first]
    lab.go_on(3)
    end(lab, first)
    lab.settle()
    assert [lab.taken(count=1) for _ in range(3)] == [[first], *[[other] for other in others]]


@pytest.mark.parametrize("window_rows", [4, 10_000])
def test_an_item_that_always_fails_blocks_no_item(window_rows: int) -> None:
    """Also in a window that knows a part of the lane. The clock stands still: all happens in one millisecond."""
    lab = laboratory(retry=None, max_attempts=0)
    object.__setattr__(lab.engine.state.shards[1].config, "window_rows", window_rows)
    failing, *others = [lab.stored()[0] for _ in range(40)]
    lab.reopen()
    done: list[int] = []
    for _ in range(400):
        for item_id in lab.taken(count=1):
            if item_id == failing:
                by_nack(lab, item_id)
            else:
                lab.ack((item_id, lab.lease_of(item_id)))
                done.append(item_id)
        lab.settle()
        audit(lab.engine.state.shards[1], lab.dbs[1])
        if len(done) == len(others):
            break
    assert done == others, "in their order"
    assert lab.taken() == [failing]


def test_two_items_that_fail_take_turns() -> None:
    lab = laboratory(retry=None, max_attempts=0)
    both = lab.stored(lab.item(), lab.item())
    seen = []
    for _ in range(10):
        (item_id,) = lab.taken(count=1)
        seen.append(item_id)
        by_nack(lab, item_id)
        lab.settle()
        lab.go_on(1)
    assert seen == both * 5


def test_an_explanation_counts_from_the_new_place() -> None:
    lab = laboratory(retry=None)
    ids = lab.stored(*[lab.item() for _ in range(3)])
    lab.taken(count=1)
    by_nack(lab, ids[0])
    lab.settle()
    shard = lab.engine.state.shards[1]
    found = of_item(lab.engine.state, shard, shard.memory.known[ids[0]], lab.now_ms)
    (behind,) = [reason for reason in found.reasons if reason.code == idl.Reason.BEHIND_IN_LANE]
    assert behind.count == 2


# ------------------------------------------------------------------------------------------ how old it is


def dead(lab: Laboratory) -> dict[int, FailureCause]:
    return {row.id: FailureCause(row.cause) for row in lab.dbs[1].failures.values()}


ENDS: dict[str, tuple[End, FailureCause]] = {
    "nack": (by_nack, FailureCause.FAILED),
    "time": (by_time, FailureCause.EXPIRED),
    "operator": (by_an_operator, FailureCause.EXPIRED),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("delayed_ms", [0, 3_600_000])
def test_the_total_time_counts_from_the_first_possible_delivery(how: str, reopened: bool, delayed_ms: int) -> None:
    """Not from the enqueue of a delayed item, and not again from each later delay."""
    end, cause = ENDS[how]
    lab = laboratory(max_total_ms=10_000, max_attempts=0, retry={"kind": "constant", "first_ms": 3_000, "jitter": 0})
    (item_id,) = lab.stored(lab.item(delay_ms=delayed_ms))
    lab.go_on(delayed_ms)
    start_ms, attempts = lab.now_ms, 0
    while not dead(lab):
        assert lab.now_ms < start_ms + 20_000
        if lab.taken(lease_ms=LEASE_MS) == [item_id]:
            attempts += 1
            lab.go_on(500)
            end(lab, item_id)
            lab.settle()
            if reopened:
                lab.reopen()
        lab.go_on(100)
    assert dead(lab) == {item_id: cause}
    assert attempts > 1
    assert 10_000 <= lab.now_ms - start_ms < 14_500


def test_a_plain_delay_does_not_reset_the_total_time() -> None:
    lab = laboratory(max_total_ms=10_000)
    (item_id,) = lab.stored()
    for _ in range(2):
        assert lab.taken() == [item_id]
        lab.operate(item_id, item_ops.nack(lab.lease_of(item_id), 6_000, None))
        lab.settle()
        lab.go_on(6_000)
    assert lab.taken() == [item_id]
    by_nack(lab, item_id)
    lab.settle()
    assert dead(lab)


def test_a_redrive_begins_the_total_time_again() -> None:
    lab = laboratory(max_total_ms=10_000, max_attempts=0, retry=None)
    (item_id,) = lab.stored()
    for _ in range(2):
        lab.go_on(9_000)
        assert lab.taken() == [item_id]
        by_nack(lab, item_id)
        lab.settle()
        assert not dead(lab)
        lab.go_on(1_000)
        assert lab.taken() == [item_id]
        by_nack(lab, item_id)
        lab.settle()
        assert dead(lab) == {item_id: FailureCause.FAILED}
        assert redrive(lab).redriven == 1
