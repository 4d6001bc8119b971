"""Requests as bytes are those that the codec makes of the structs; the codec encodes all unusual ones."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foqs.client import methods
from foqs.client.items import Delivery, ItemSpec
from foqs.client.methods import ack_request, context, context_head, dequeue_request, enqueue_request
from foqs.idl import idl
from foqs.wire.protocol import CALL, Unencodable, encode_struct, message_head

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)


def fields(request: Any) -> bytes:
    return encode_struct(request)[:-1]


@given(NAMES, NAMES, st.binary(max_size=300), I32)
def test_one_item_to_enqueue_is_the_codecs_bytes(ns: str, topic: str, payload: bytes, priority: int) -> None:
    request = idl.EnqueueRequest(ns, [ItemSpec(topic, payload, priority=priority)])
    assert enqueue_request(ns, topic, payload, priority=priority) == fields(request)


@given(NAMES, st.none() | NAMES, st.none() | st.lists(NAMES, max_size=9), st.none() | I32)
def test_one_item_of_a_tenant_is_the_codecs_bytes(
    topic: str, fairness_key: str | None, throttle_keys: list[str] | None, weight: int | None
) -> None:
    options: Any = {"fairness_key": fairness_key, "throttle_keys": throttle_keys, "weight": weight}
    request = idl.EnqueueRequest("n", [ItemSpec(topic, b"x", **options)])
    assert enqueue_request("n", topic, b"x", **options) == fields(request)


@given(NAMES, I64, I64)
def test_one_ack_is_the_codecs_bytes(ns: str, item_id: int, lease: int) -> None:
    request = methods.ACK.request(ns=ns, items=[idl.AckItem(item_id, lease)])
    assert ack_request(ns, item_id, lease) == fields(request)


@given(NAMES, NAMES, I32, I64)
def test_one_topic_to_dequeue_is_the_codecs_bytes(ns: str, topic: str, count: int, wait_ms: int) -> None:
    request = idl.DequeueRequest(ns=ns, wants=[idl.TopicCount(topic, count)], wait_ms=wait_ms)
    assert dequeue_request(ns, {topic: count}, wait_ms, None, None) == fields(request)


@pytest.mark.parametrize(
    "options",
    [
        {"delay_ms": 1}, {"lease_ms": 1}, {"headers": {"a": "b"}}, {"metadata": b""}, {"dedup_key": "k"},
        {"delivery": Delivery.AT_MOST_ONCE}, {"ns": "\ud800"}, {"ns": None}, {"ns": b"n"}, {"topic": b"t"},
        {"topic": []}, {"payload": "text"}, {"payload": bytearray(b"x")}, {"priority": 1 << 31}, {"priority": None},
        {"priority": 1.0}, {"fairness_key": 1}, {"throttle_keys": "key"}, {"throttle_keys": [b"key"]},
        {"throttle_keys": [[]]}, {"weight": 1 << 31}, {"weight": "1"}, {"fairness_key": "a", "delay_ms": 1},
    ],
)  # fmt: skip
def test_an_unusual_item_is_left_to_the_codec(options: dict[str, Any]) -> None:
    usual = {"ns": "n", "topic": "t", "payload": b"x"}
    ns, topic, payload, *_ = (merged := {**usual, **options}).values()
    assert enqueue_request(ns, topic, payload, **{k: v for k, v in merged.items() if k not in usual}) is None


@pytest.mark.parametrize(("ns", "item_id", "lease"), [(None, 1, 1), ("n", "1", 1), ("n", 1, 1 << 63), ("n", 1, None)])
def test_an_unusual_ack_is_left_to_the_codec(ns: Any, item_id: Any, lease: Any) -> None:
    assert ack_request(ns, item_id, lease) is None


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        ({}, (None, None)), ({"a": 1, "b": 1}, (None, None)), ({"a": 1}, (1, None)), ({"a": 1}, (None, 1)),
        ({"a": "1"}, (None, None)), ({None: 1}, (None, None)),
    ],
)  # fmt: skip
def test_an_unusual_dequeue_is_left_to_the_codec(counts: Mapping[Any, Any], options: tuple[Any, Any]) -> None:
    assert dequeue_request("n", counts, 0, *options) is None


@given(st.none() | NAMES, NAMES, st.none() | NAMES, st.integers(1, 1 << 40), I32)
@example(None, "", None, 1, 0)
def test_a_context_ends_each_request(
    token: str | None, request_id: str, traceparent: str | None, timeout_ms: int, number: int
) -> None:
    about = context(context_head(token), request_id, traceparent, timeout_ms)
    for method in vars(methods).values():
        if not isinstance(method, methods.RemoteMethod):
            continue
        whole = idl.RequestContext(token=token, request_id=request_id, traceparent=traceparent, timeout_ms=timeout_ms)
        args = getattr(idl.Foqs, f"{method.name}_args")(method.request(context=whole))
        seqid = number & 0x7FFF_FFFF
        message = message_head(CALL, method.name.encode()) + seqid.to_bytes(4, "big") + encode_struct(args)
        frame = len(message).to_bytes(4, "big") + message
        assert method.encode(method.request(), seqid, context=about) == frame
        assert method.encode(fields(method.request()), seqid, context=about) == frame


def test_a_token_that_cannot_be_sent() -> None:
    with pytest.raises(Unencodable):
        context_head("\ud800")
