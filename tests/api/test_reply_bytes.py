"""Replies as bytes are those that the codec makes of the structs of `responses`; the codec encodes all unusual ones."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.api import responses
from foqs.api.validation import headers as stored
from foqs.bounds import LIMITS
from foqs.counters import Counters
from foqs.errors import FoqsError, NotFound, Overloaded
from foqs.idl import idl
from foqs.item import Item
from foqs.rows import AT_LEAST_ONCE, AT_MOST_ONCE, Body
from foqs.rules import ItemRules, RetryRule
from foqs.second_answer import Duplicate
from foqs.wire.protocol import encode_struct
from tests.support.lanes import lone_lane
from tests.support.one_host import Call

pytestmark = pytest.mark.memory

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.integers(0, 1 << 50)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
REFUSED: list[FoqsError] = [Overloaded("full", 20), NotFound("gone")]


RULES = st.sampled_from(
    [None, ItemRules(max_attempts=3), ItemRules(RetryRule("exponential", 100, factor=2.0), exact_attempts=False)]
)
TENANCIES = st.just(("", ())) | st.tuples(st.just("") | NAMES, st.lists(NAMES, max_size=8).map(tuple))


def lane_of(
    names: tuple[str, str], tenancy: tuple[str, tuple[str, ...]] = ("", ()), rules: ItemRules | None = None
) -> Any:
    return lone_lane(names[1], ns=names[0], tenancy=tenancy, rules=rules)


# No lane is drawn: hypothesis keeps a weak reference to each drawn value, and a lane of the compiled wheel does not
# clear it when it ends (docs/decisions.md).
@st.composite
def items(draw: Any, lanes: Any) -> Any:
    lane = lanes[draw(st.integers(0, len(lanes) - 1))]
    expires_at_ms, metadata = draw(st.just(0) | TIMES), draw(st.none() | st.binary(max_size=9))
    headers = draw(st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3).map(lambda found: stored(found, LIMITS)))
    delivery = draw(st.sampled_from([AT_LEAST_ONCE, AT_MOST_ONCE]))
    order_key, checkpoint = draw(st.none() | NAMES), draw(st.none() | st.binary(max_size=9))
    body = Body(
        draw(I64), 1, draw(I32), draw(TIMES), draw(TIMES), expires_at_ms, 5, delivery, draw(st.binary(max_size=300)),
        metadata, headers, None if order_key is None else order_key.encode(), checkpoint=checkpoint,
        batch=draw(st.just(0) | st.integers(1, (1 << 63) - 1)),
    )  # fmt: skip
    item = Item(body.id, lane, body.priority, draw(TIMES), draw(I32), draw(I64), 0, body)
    item.lease_expires_at_ms = draw(TIMES)
    return item


@st.composite
def replies(draw: Any) -> Any:
    """Items of a few lanes, in any order."""
    names = draw(st.lists(st.tuples(st.tuples(NAMES, NAMES), TENANCIES, RULES), min_size=1, max_size=3))
    return draw(st.lists(items([lane_of(*each) for each in names]), max_size=12))


def by_codec(found: list[Any]) -> bytes:
    return encode_struct(idl.DequeueResponse([responses.leased(item) for item in found]))


class Sent(Call):
    """A request whose answer is kept as it is given: bytes, or a struct."""

    sent: Any = None

    def reply(self, response: Any) -> bool:
        self.sent = response
        return True


def enqueued(outcomes: list[int | FoqsError]) -> Any:
    call = Sent("Enqueue", idl.EnqueueRequest())
    responses.answer_enqueue(call, Counters(), outcomes)  # type: ignore[arg-type]
    return call.sent


def settled(method: str, outcomes: list[FoqsError | None]) -> Any:
    call = Sent(method, idl.AckRequest())
    responses.answer_items(call, getattr(idl, f"{method}Response"), Counters(), None, outcomes)  # type: ignore[arg-type]
    return call.sent


@given(st.lists(I64, min_size=1, max_size=300))
def test_ids_of_an_enqueue_are_the_codecs_bytes(ids: list[int]) -> None:
    outcomes: list[int | FoqsError] = list(ids)
    structs = responses.enqueue_outcomes(Call("Enqueue", idl.EnqueueRequest()), outcomes, Counters())
    assert enqueued(outcomes) == encode_struct(idl.EnqueueResponse(structs))


@given(st.lists(I64, max_size=5), st.sampled_from([Duplicate(7), *REFUSED]), st.lists(I64, max_size=5))
def test_an_unusual_outcome_of_an_enqueue_is_left_to_the_codec(before: list[int], odd: Any, after: list[int]) -> None:
    assert len(enqueued([*before, odd, *after]).outcomes) == len(before) + 1 + len(after)


@pytest.mark.parametrize("method", ["Ack", "Nack", "ExtendLease", "DeleteItems"])
@given(count=st.integers(1, 300))
def test_acked_items_are_the_codecs_bytes(method: str, count: int) -> None:
    structs = responses.item_outcomes(Call(method, idl.AckRequest()), [None] * count, Counters())
    made = encode_struct(getattr(idl, f"{method}Response")(structs))
    assert settled(method, [None] * count) == made


@given(st.integers(0, 5), st.sampled_from(REFUSED), st.integers(0, 5))
def test_a_refused_ack_is_left_to_the_codec(before: int, error: FoqsError, after: int) -> None:
    outcomes = settled("Ack", [*[None] * before, error, *[None] * after]).outcomes
    assert [one.error is not None for one in outcomes] == [False] * before + [True] + [False] * after


@given(replies())
def test_leased_items_are_the_codecs_bytes(found: list[Any]) -> None:
    assert responses.dequeue_response(found) == by_codec(found)


@given(st.lists(st.sampled_from([None, *REFUSED]), max_size=5), replies())
def test_outcomes_and_leased_items_are_the_codecs_bytes(outcomes: list[FoqsError | None], found: list[Any]) -> None:
    call = Call("AckAndDequeue", idl.AckAndDequeueRequest())
    structs = responses.item_outcomes(call, outcomes, Counters())
    acked = encode_struct(idl.AckResponse(structs))
    usual = responses.dequeue_response(found)
    both = idl.AckAndDequeueResponse(structs, [responses.leased(item) for item in found])
    assert responses.ack_and_dequeue_response(len(structs), acked, usual) == encode_struct(both)
    if outcomes.count(None) == len(outcomes):
        assert responses.ack_and_dequeue_response(len(structs), b"", usual) == encode_struct(both)
