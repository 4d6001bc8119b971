"""Bytes of usual requests and replies equal the codec's, and a call for one item equals a batch of one."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TCyBufferedTransport, TMemoryBuffer

from foqs.client import Client, Invalid, methods
from foqs.client.items import Delivery, Item, ItemSpec, Lease
from foqs.client.methods import (
    ack_and_dequeue_response,
    ack_request,
    context,
    context_head,
    dequeue_request,
    dequeue_response,
    enqueue_request,
    enqueue_response,
    items_response,
)
from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.wire.client_codec import RemoteMethod
from foqs.wire.protocol import CALL, Malformed, Unencodable, encode_struct, message_head
from tests.client.peer import Act, Peer, encode_reply, failed, refused, script


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"priority": 1 << 31}, "priority is 2147483648: it must be an integer from -2147483648 to 2147483647"),
        ({"priority": "secret"}, "priority is of type str: it must be an integer from -2147483648 to 2147483647"),
        ({"delay_ms": -(1 << 63) - 1}, "delay_ms is -9223372036854775809: it must be an integer from .*"),
        ({"ttl_ms": 10**5000}, "ttl_ms has 16610 bits: it must be an integer from .*"),
        ({"headers": {"a": 1}}, "headers holds a wrong value: it must be a mapping of texts to texts"),
        ({"topic": "\ud800"}, "topic is not valid Unicode"),
        ({"fairness_key": 1}, "fairness_key is of type int: it must be text"),
        ({"throttle_keys": [1]}, "throttle_keys holds a wrong value: it must be a list of texts"),
        ({"weight": "high"}, "weight is of type str: it must be an integer .*"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_range(peer, client_of, fields, problem):
    spec = ItemSpec(**{"topic": "t", "payload": b"x", **fields})
    good, bad = client_of(peer).enqueue_many([ItemSpec("t", b"x"), spec])
    assert good == 1
    with pytest.raises(Invalid, match=f"^{problem}$"):
        raise bad


def test_one_text_is_no_sequence_of_throttle_keys(peer, client_of):
    with pytest.raises(Invalid, match="throttle_keys is one text"):
        ItemSpec("t", b"x", throttle_keys="acme")
    with pytest.raises(Invalid, match="throttle_keys is one text"):
        client_of(peer).enqueue("t", b"x", throttle_keys="acme")


I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)


def fields(request: Any) -> bytes:
    return encode_struct(request)[:-1]


IDS = st.integers(1, (1 << 63) - 1)


@given(NAMES, NAMES, st.none() | IDS)
def test_one_item_in_order_is_the_codecs_bytes(topic: str, order_key: str, batch: int | None) -> None:
    request = idl.EnqueueRequest("n", [ItemSpec(topic, b"x", order_key=order_key, batch=batch)])
    assert enqueue_request("n", topic, b"x", order_key=order_key, batch=batch) == fields(request)


@given(NAMES, NAMES, st.binary(max_size=300), I32)
def test_one_item_to_enqueue_is_the_codecs_bytes(ns: str, topic: str, payload: bytes, priority: int) -> None:
    request = idl.EnqueueRequest(ns, [ItemSpec(topic, payload, priority=priority)])
    assert enqueue_request(ns, topic, payload, priority=priority) == fields(request)


@given(NAMES, st.none() | NAMES, st.none() | st.lists(NAMES, max_size=9), st.none() | I32, st.none() | IDS)
def test_one_item_of_a_tenant_is_the_codecs_bytes(
    topic: str,
    fairness_key: str | None,
    throttle_keys: list[str] | None,
    weight: int | None,
    batch: int | None,
) -> None:
    options: Any = {"fairness_key": fairness_key, "throttle_keys": throttle_keys, "weight": weight, "batch": batch}
    request = idl.EnqueueRequest("n", [ItemSpec(topic, b"x", **options)])
    assert enqueue_request("n", topic, b"x", **options) == fields(request)


@given(st.none() | st.binary(max_size=9), st.none() | st.dictionaries(NAMES, NAMES, max_size=3), st.none() | NAMES)
def test_one_item_with_texts_is_the_codecs_bytes(
    metadata: bytes | None, headers: dict[str, str] | None, dedup_key: str | None
) -> None:
    options: Any = {"metadata": metadata, "headers": headers, "dedup_key": dedup_key, "fairness_key": "f"}
    request = idl.EnqueueRequest("n", [ItemSpec("t", b"x", **options)])
    assert enqueue_request("n", "t", b"x", **options) == fields(request)


@given(NAMES, I64, I64)
def test_one_ack_is_the_codecs_bytes(ns: str, item_id: int, lease: int) -> None:
    request = methods.ACK.request(ns=ns, items=[idl.AckItem(item_id, lease)])
    assert ack_request(ns, item_id, lease) == fields(request)


COUNTS = st.dictionaries(NAMES, I32, max_size=3)
OPTIONS = st.fixed_dictionaries(
    {}, optional={"lease_ms": I64, "max_bytes": I64, "worker": NAMES, "begins": I32, "most": I32}
)


WEIGHTS = st.none() | COUNTS


def wanted(counts: dict[str, int], holding: dict[str, int] | None, weights: dict[str, int] | None) -> list[Any]:
    return [
        idl.TopicCount(topic, count, holding and holding[topic], None, (weights or {}).get(topic))
        for topic, count in counts.items()
    ]


@given(NAMES, COUNTS, I64, OPTIONS, st.none() | st.just(True), st.booleans(), WEIGHTS, st.booleans())
def test_topics_to_dequeue_are_the_codecs_bytes(
    ns: str, counts: dict[str, int], wait_ms: int, options: dict[str, Any], ledger: bool | None, holds: bool,
    weights: dict[str, int] | None, weighs_all: bool,
) -> None:  # fmt: skip
    weights = counts if weighs_all else weights
    holding = {topic: count ^ 1 for topic, count in counts.items()} if holds else None
    wants = wanted(counts, holding, weights)
    request = idl.DequeueRequest(ns=ns, wants=wants, wait_ms=wait_ms, ledger=ledger, **options)
    made = dequeue_request(ns, counts, wait_ms, ledger=ledger, holding=holding, weights=weights, **options)
    assert made == fields(request)


@given(NAMES, st.lists(st.builds(Lease, I64, I64), max_size=3), COUNTS, OPTIONS, st.booleans(), st.booleans())
def test_acks_with_a_dequeue_are_the_codecs_bytes(
    ns: str, acks: list[Lease], counts: dict[str, int], options: dict[str, Any], holds: bool, weighs: bool
) -> None:
    holding = {topic: count ^ 1 for topic, count in counts.items()} if holds else None
    weights = counts if weighs else None
    entries = [idl.AckItem(*ack) for ack in acks]
    request = idl.AckAndDequeueRequest(ns=ns, acks=entries, wants=wanted(counts, holding, weights), **options)
    made = dequeue_request(ns, counts, None, holding=holding, acks=acks, weights=weights, **options)
    assert made == fields(request)


@pytest.mark.parametrize(
    "options",
    [
        {"delay_ms": 1}, {"lease_ms": 1}, {"headers": {"a": b"b"}}, {"headers": {1: "b"}}, {"headers": [("a", "b")]},
        {"headers": {"a": "\ud800"}}, {"metadata": ""}, {"metadata": bytearray(b"m")}, {"dedup_key": b"k"},
        {"delivery": Delivery.AT_MOST_ONCE}, {"ns": "\ud800"}, {"ns": None}, {"ns": b"n"}, {"topic": b"t"},
        {"topic": []}, {"payload": "text"}, {"payload": bytearray(b"x")}, {"priority": 1 << 31}, {"priority": None},
        {"priority": 1.0}, {"fairness_key": 1}, {"throttle_keys": "key"}, {"throttle_keys": [b"key"]},
        {"throttle_keys": [[]]}, {"weight": 1 << 31}, {"weight": "1"}, {"fairness_key": "a", "delay_ms": 1},
        {"batch": 0}, {"batch": "1"}, {"batch": True}, {"batch": 1 << 63},
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
        ({"a": "1"}, {}),
        ({"\ud800": 1}, {}),
        ({"a": 1}, {"lease_ms": "1"}),
        ({"a": 1}, {"worker": 1}),
        ({"a": "1"}, {"weights": {"a": 2}}),
    ],
)
def test_the_codec_names_the_fault_of_a_dequeue(counts: Mapping[Any, Any], options: dict[str, Any]) -> None:
    acks = [Lease(1, 2)]
    for method, request in (
        (methods.DEQUEUE, dequeue_request("n", counts, 0, **options)),
        (methods.ACK_AND_DEQUEUE, dequeue_request("n", counts, None, acks=acks, **options)),
    ):
        assert request.wants == wanted(dict(counts), None, options.get("weights"))
        with pytest.raises(Unencodable):
            method.encode(request, 1)


@given(st.none() | NAMES, st.none() | NAMES, NAMES, st.none() | NAMES, st.integers(1, 1 << 40), I32)
@example(None, None, "", None, 1, 0)
def test_a_context_ends_each_request(
    token: str | None, program: str | None, request_id: str, traceparent: str | None, timeout_ms: int, number: int
) -> None:
    about = context(context_head(token, program), request_id, traceparent, timeout_ms)
    for method in vars(methods).values():
        if not isinstance(method, methods.RemoteMethod):
            continue
        whole = idl.RequestContext(
            token=token, request_id=request_id, traceparent=traceparent, timeout_ms=timeout_ms, client=methods.CLIENT,
            program=program,
        )  # fmt: skip
        args = getattr(idl.Foqs, f"{method.name}_args")
        expected = args(method.request(context=whole))
        seqid = number & 0x7FFF_FFFF
        head = message_head(CALL, method.name.encode()) + seqid.to_bytes(4, "big")
        message = head + encode_struct(expected)
        for request in (method.request(), fields(method.request())):
            frame = method.encode(request, seqid, context=about)
            assert (frame[:4], frame[4 : 4 + len(head)]) == (len(message).to_bytes(4, "big"), head)
            # The same bytes but for the place of the client: a codec writes the fields of a struct in their order.
            assert len(frame) == 4 + len(message)
            sent = args()
            TCyBinaryProtocol(TCyBufferedTransport(TMemoryBuffer(frame[4 + len(head) :]))).read_struct(sent)
            assert sent == expected


def test_a_token_that_cannot_be_sent() -> None:
    with pytest.raises(Unencodable):
        context_head("\ud800")


FIELDS = [name.removeprefix("_") for name in Item.__slots__]
ITEMS = st.builds(
    idl.Item, id=I64, lease=I64, attempt=I32, ns=NAMES, topic=NAMES, priority=I32, payload=st.binary(max_size=300),
    metadata=st.none() | st.binary(max_size=20), headers=st.none() | st.dictionaries(NAMES, NAMES, max_size=3),
    delivery=I32, deliver_after_ms=I64, enqueued_at_ms=I64, lease_expires_at_ms=I64, fairness_key=st.none() | NAMES,
    throttle_keys=st.none() | st.lists(NAMES, max_size=8),
)  # fmt: skip
STORED = st.builds(lambda id: idl.EnqueueResponse([idl.EnqueueOutcome(id)]), I64)
DONE = st.builds(lambda count: idl.AckResponse([idl.ItemOutcome()] * count), st.integers(1, 3))
LEASED = st.builds(lambda items: idl.DequeueResponse(items=items), st.lists(ITEMS, max_size=1))
ITEM = idl.Item(1, 2, 3, "n", "t", 0, b"x", delivery=1, deliver_after_ms=0, enqueued_at_ms=0, lease_expires_at_ms=0)
BOTH = st.builds(
    lambda acks, items: idl.AckAndDequeueResponse([idl.ItemOutcome()] * acks, items),
    st.integers(0, 3), st.lists(ITEMS, max_size=1),
)  # fmt: skip
USUAL = {
    methods.ENQUEUE: (STORED, enqueue_response),
    methods.DEQUEUE: (LEASED, dequeue_response),
    methods.ACK_AND_DEQUEUE: (BOTH, ack_and_dequeue_response),
}
USUAL |= dict.fromkeys((methods.ACK, methods.NACK, methods.EXTEND), (DONE, items_response))
CODEC = {method: RemoteMethod(method.name, Item) for method in USUAL}
NUMBER = 7


def reply(method: RemoteMethod, response: Any) -> bytes:
    return encode_reply(method.name, response, NUMBER)[4:]


def start(method: RemoteMethod) -> int:
    return 12 + len(method.name)


def read(method: RemoteMethod, frame: bytes) -> Any:
    """What callers read of the response in `frame`, or the kind of the error."""
    try:
        response = method.decode(frame, NUMBER)
    except (FoqsError, Malformed) as error:
        return type(error)
    if method.name in ("Dequeue", "AckAndDequeue"):
        items = response.items and [[getattr(item, name) for name in FIELDS] for item in response.items]
        acked = [repr(one.error) for one in response.outcomes or ()] if method.name == "AckAndDequeue" else None
        rest = [getattr(response, name, None) for name in ("doubtful", "news_version", "retry_after_ms", "reason")]
        return items or [], acked, rest, response.per_worker, getattr(response, "error", None)
    fields = ("id", "error", "duplicate") if method.name == "Enqueue" else ("error",)
    return [[repr(getattr(outcome, name)) for name in fields] for outcome in response.outcomes or ()]


@pytest.mark.parametrize("method", USUAL, ids=repr)
@given(st.data())
def test_a_usual_reply_reads_as_with_the_codec(method: RemoteMethod, data: st.DataObject) -> None:
    responses, direct = USUAL[method]
    frame = reply(method, data.draw(responses))
    assert direct(frame, start(method)) is not None
    assert read(method, frame) == read(CODEC[method], frame)


@pytest.mark.parametrize("method", USUAL, ids=repr)
@given(st.data())
def test_a_damaged_reply_reads_as_with_the_codec(method: RemoteMethod, data: st.DataObject) -> None:
    frame = bytearray(reply(method, data.draw(USUAL[method][0])))
    for at in data.draw(st.lists(st.integers(start(method), len(frame) - 1), max_size=3)):
        frame[at] = data.draw(st.integers(0, 15))
    damaged = bytes(frame[: data.draw(st.integers(start(method), len(frame)))])
    direct = USUAL[method][1](damaged, start(method))
    assert direct is None or read(method, damaged) == read(CODEC[method], damaged)


@pytest.mark.parametrize(
    ("method", "response"),
    [
        (methods.ENQUEUE, idl.EnqueueResponse([idl.EnqueueOutcome(1, duplicate=True)])),
        (methods.ENQUEUE, idl.EnqueueResponse([idl.EnqueueOutcome(error=failed(1))])),
        (methods.ENQUEUE, idl.EnqueueResponse([idl.EnqueueOutcome(1), idl.EnqueueOutcome(2)])),
        (methods.ACK, idl.AckResponse([idl.ItemOutcome(failed(2))])),
        (methods.ACK, idl.AckResponse([])),
        (methods.DEQUEUE, idl.DequeueResponse([ITEM, ITEM])),
        (methods.DEQUEUE, idl.DequeueResponse([], doubtful=[1])),
        (methods.DEQUEUE, idl.DequeueResponse([], news_version=1)),
        (methods.DEQUEUE, idl.DequeueResponse([], reason="paused")),
        (methods.DEQUEUE, idl.DequeueResponse([], retry_after_ms=5)),
        (methods.DEQUEUE, idl.DequeueResponse([idl.Item(1, 2, 3, "n", "t", 0, b"x", metadata=b"m")])),
        (methods.DEQUEUE, idl.DequeueResponse([idl.Item(1, 2, 3, "n", "t", 0, b"x", throttle_keys=list("abcdefghi"))])),
        (methods.DEQUEUE, idl.DequeueResponse([idl.Item(1, 2, 3, "n", "t", 0, b"x", expires_at_ms=1)])),
        (methods.ACK_AND_DEQUEUE, idl.AckAndDequeueResponse([idl.ItemOutcome(failed(2))], [ITEM])),
        (methods.ACK_AND_DEQUEUE, idl.AckAndDequeueResponse([idl.ItemOutcome()], [ITEM, ITEM])),
        (methods.ACK_AND_DEQUEUE, idl.AckAndDequeueResponse([idl.ItemOutcome()], [], error=failed(5))),
        (methods.ACK_AND_DEQUEUE, idl.AckAndDequeueResponse([idl.ItemOutcome()], [], reason="paused")),
        (methods.ACK_AND_DEQUEUE, idl.AckAndDequeueResponse([idl.ItemOutcome()], [ITEM], per_worker={"t": 1})),
    ],
)
def test_an_unusual_reply_is_left_to_the_codec(method: RemoteMethod, response: Any) -> None:
    frame = reply(method, response)
    assert USUAL[method][1](frame, start(method)) is None
    assert read(method, frame) == read(CODEC[method], frame)


FIRST_ID = 1  # of the items of a `Peer`
ACTS: list[tuple[Any, ...]] = [
    (),
    *((act,) for act in Act if act not in (Act.SILENT, Act.IGNORE)),
    *((refused(code, 1),) for code in range(1, 10)),
    (refused(4, 1), refused(5, 1)),
    (Act.CLOSE_BEFORE, refused(1)),
    (TApplicationException(1, "no"),),
    (TApplicationException(6, "no"),),
]


def answers(response: Any, outcome: Any) -> list[tuple[Any, ...]]:
    """Responses with errors of the item, and with another number of outcomes."""
    single = [(response([outcome(error=failed(code, 1))]),) for code in range(1, 10)]
    return [
        *single,
        (response([]),),
        (response([outcome(), outcome()]),),
        (response([outcome(error=failed(4, 1))]),) * 2,
    ]


def ending(new_peer: Callable[..., Peer], client_of: Callable[..., Client], method: str, acts: Any, call: Any) -> Any:
    """What the caller gets, and the requests that the host got."""
    peer = new_peer(script(method, *acts))
    client = client_of(peer)
    client._router.begin = lambda: None  # the requests for its routing may come at any time
    leased: list[Any] = []
    if method == "Ack":
        client.enqueue("t", b"x")
        leased = client.dequeue("t")
    try:
        outcome = call(client, *leased)
    except FoqsError as error:
        outcome = error
    if isinstance(outcome, FoqsError):
        outcome = (type(outcome), outcome.message.replace(peer.address, "address"), outcome.request_id is None)
    return outcome, len(peer.named(method)), list(peer.items), peer.acked


@pytest.mark.parametrize("options", [{"priority": 3}, {"dedup_key": "k", "headers": {"a": "b"}}], ids=str)
@pytest.mark.parametrize("acts", ACTS + answers(idl.EnqueueResponse, idl.EnqueueOutcome), ids=str)
def test_an_enqueue(
    new_peer: Callable[..., Peer], client_of: Callable[..., Client], acts: tuple[Any, ...], options: Any
) -> None:
    def many(client: Client) -> object:
        return client.enqueue_many([ItemSpec("t", b"x", **options)])[0]

    single = ending(new_peer, client_of, "Enqueue", acts, lambda client: client.enqueue("t", b"x", **options))
    assert single == ending(new_peer, client_of, "Enqueue", acts, many)


@pytest.mark.parametrize("acts", ACTS + answers(idl.AckResponse, idl.ItemOutcome), ids=str)
def test_an_ack(new_peer: Callable[..., Peer], client_of: Callable[..., Client], acts: tuple[Any, ...]) -> None:
    single = ending(new_peer, client_of, "Ack", acts, Client.ack)
    assert single == ending(new_peer, client_of, "Ack", acts, lambda client, item: client.ack_many([item])[0])


def test_an_ack_of_a_lost_lease(new_peer: Callable[..., Peer], client_of: Callable[..., Client]) -> None:
    def wrong(call: Callable[[Client, Lease], Any]) -> Callable[[Client, Any], Any]:
        return lambda client, item: call(client, Lease(item.id, item.lease + 1))

    single = ending(new_peer, client_of, "Ack", (), wrong(Client.ack))
    assert single == ending(new_peer, client_of, "Ack", (), wrong(lambda client, item: client.ack_many([item])[0]))
    assert single[2] == [FIRST_ID]
