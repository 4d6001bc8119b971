"""Outcomes and items as the structs of the contract: fields, codes, counters, and log lines about unknown outcomes."""

import pytest

from foqs.api import responses
from foqs.counters import Counters, Namespaces
from foqs.errors import PROTOCOL_VERSION, Code, FoqsError, Forbidden, NotServed, OutcomeUnknown, Overloaded, StaleLease
from foqs.idl import idl
from foqs.item import Item
from foqs.rows import AT_MOST_ONCE, Body
from foqs.second_answer import Duplicate
from tests.support.lanes import lone_lane
from tests.support.one_host import Call

pytestmark = pytest.mark.memory


def counters() -> Counters:
    return Counters(Namespaces(8))


BODY = Body(7, 1, 3, 20, 10, 0, 0, AT_MOST_ONCE, b"x", None, None)


def test_an_enqueue_is_answered_by_an_id_or_an_error_each() -> None:
    call, seen = Call("Enqueue", idl.EnqueueRequest()), counters()
    made = responses.enqueue_outcomes(call, [7, Duplicate(8), Overloaded("full", 20)], seen)
    assert [(one.id, one.duplicate) for one in made] == [(7, None), (8, True), (None, None)]
    error = made[2].error
    assert (error.code, error.message, error.retry_after_ms) == (Code.OVERLOADED, "full", 20)
    assert (made[0].error, made[1].error) == (None, None)
    assert seen.duplicates == 1
    assert seen.refused[Code.OVERLOADED] == 1


def test_unknown_outcomes_are_logged_once_with_their_number() -> None:
    errors = [OutcomeUnknown("first"), Forbidden("no"), OutcomeUnknown("second")]
    call = Call("Enqueue", idl.EnqueueRequest())
    responses.enqueue_outcomes(call, [*errors, 7], counters())
    assert call.doubts == [(2, "first")]
    call = Call("Ack", idl.AckRequest())
    responses.item_outcomes(call, [None, *errors], counters())
    assert call.doubts == [(2, "first")]


def test_known_outcomes_are_not_logged() -> None:
    call = Call("Ack", idl.AckRequest())
    made = responses.item_outcomes(call, [None, StaleLease("old")], counters())
    assert [one.error and one.error.code for one in made] == [None, Code.STALE_LEASE]
    assert call.doubts == []


@pytest.mark.parametrize(("version", "code"), [(None, Code.UNAVAILABLE), (PROTOCOL_VERSION, Code.NOT_OWNER)])
def test_only_hosts_get_not_owner(version: int | None, code: Code) -> None:
    call = Call("Ack", idl.AckRequest(context=idl.RequestContext(peer_version=version)))
    (made,) = responses.item_outcomes(call, [NotServed()], counters())
    assert (made.error.code, made.error.retry_after_ms) == (code, 0)
    (made,) = responses.enqueue_outcomes(call, [NotServed()], counters())
    assert made.error.code == code


def test_a_caller_without_a_context_never_gets_not_owner() -> None:
    errors: list[FoqsError | None] = [NotServed("moved")]
    (made,) = responses.item_outcomes(Call("Ack", idl.AckRequest()), errors, counters())
    assert (made.error.code, made.error.message) == (Code.UNAVAILABLE, "moved")


def test_a_leased_item_has_its_lease_and_its_times() -> None:
    item = Item(BODY.id, lone_lane("t", ns="n"), BODY.priority, 20, 2, 99, 0, BODY)
    item.lease_expires_at_ms = 500
    made = responses.leased(item)
    assert (made.id, made.ns, made.topic, made.priority, made.payload) == (7, "n", "t", 3, b"x")
    assert (made.lease, made.attempt, made.deliver_after_ms, made.lease_expires_at_ms) == (99, 2, 20, 500)
    assert (made.delivery, made.enqueued_at_ms) == (AT_MOST_ONCE, 10)
    assert (made.metadata, made.headers, made.expires_at_ms, made.state) == (None, None, None, None)


def test_an_item_that_is_only_looked_at_has_no_lease() -> None:
    looked_at = BODY._replace(metadata=b"m", headers=b'{"a": "b"}', expires_at_ms=900)
    shown = responses.shown(("n", "t"), looked_at, 1, 3, 500, None)
    assert (shown.lease, shown.attempt, shown.state, shown.lease_expires_at_ms) == (0, 1, 3, 500)
    assert (shown.metadata, shown.headers, shown.expires_at_ms) == (b"m", {"a": "b"}, 900)
    assert shown.deliver_after_ms == 20
