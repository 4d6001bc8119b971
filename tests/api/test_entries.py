"""Entries of a request that are wrong, or that repeat another one: each fails alone, or shares an outcome."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.api.item_life import sift, sifted_acks
from foqs.bounds import Limits
from foqs.errors import Invalid, NotFound, StaleLease
from foqs.idl import idl
from foqs.wire.server_codec import RequestDecoder
from tests.api.wire import spec
from tests.rpc.serving import decode, message
from tests.support.one_host import Call, OneHost, kinds, messages, put, routing_of, take

pytestmark = pytest.mark.memory

DECODER = RequestDecoder(idl.Foqs, ["Enqueue", "Ack", "Nack", "ExtendLease", "DeleteItems", "AckAndDequeue"], Limits())
ITEMS = 4
GONE = 1 << 48 | 999_999
ALL_TOPICS = ("t", "t.dlq")


def leased(host: OneHost, count: int = ITEMS, **fields: Any) -> list[Any]:
    put(host, *(b"%d" % number for number in range(count)), **fields)
    return list(take(host).items)


def forget(host: OneHost) -> None:
    """Drop the items from memory, when their leases are written."""
    host.wait(1_000)
    host.reopen()


def request_of(method: str, entries: Sequence[Any]) -> Any:
    if method == "DeleteItems":
        return idl.DeleteItemsRequest(list(entries))
    if method == "AckAndDequeue":
        return idl.AckAndDequeueRequest("n", list(entries), [idl.TopicCount("none", 1)])
    if method == "Enqueue":
        return idl.EnqueueRequest("n", list(entries))
    return getattr(idl, f"{method}Request")(list(entries), "n")


def ask(host: OneHost, method: str, entries: Sequence[Any]) -> Any:
    """The response to a request that travels as bytes."""
    call = Call(method, decode(DECODER, message(method, request_of(method, entries))))
    host.methods[method](call)
    host.run()
    return call.answer


def state(host: OneHost) -> list[Any]:
    """The state of all items, without ids and leases."""
    return sorted(
        (one.topic, one.payload, one.attempt, one.state, one.deliver_after_ms, one.lease_expires_at_ms, one.metadata,
         one.failure and one.failure.reason)
        for topic in ALL_TOPICS
        for one in host.ask("ListItems", ns="n", topic=topic, limit=1_000).items
    )  # fmt: skip


# ---------------------------------------------------------------------------------- one wrong entry, by itself


NUMBERS = st.integers(0, ITEMS - 1)
WRONG_NACKS = [
    {"delay_ms": -1}, {"metadata": b"x" * 4_097}, {"reason": "é" * 513}, {"release": True, "delay_ms": 1},
    {"failed": True, "reject": True}, {"uncounted": True, "release": True}, {"id": None}, {"lease": None},
]  # fmt: skip
WRONG: dict[str, list[dict[str, Any]]] = {
    "Ack": [{"id": None}, {"lease": None}],
    "AckAndDequeue": [{"id": None}, {"lease": None}],
    "Nack": WRONG_NACKS,
    "ExtendLease": [
        {"lease_ms": 1},
        {"lease_ms": -5},
        {"lease_ms": 1 << 60},
        {"checkpoint": b"x" * 65_537},
        {"durable": True},
        {"id": None},
        {"lease": None},
    ],
}
RIGHT: dict[str, list[dict[str, Any]]] = {
    "Ack": [{}],
    "AckAndDequeue": [{}],
    "Nack": [
        {}, {"delay_ms": 500, "metadata": b"m"}, {"release": True}, {"failed": True, "reason": "f"},
        {"reject": True, "reason": "r"}, {"uncounted": True, "delay_ms": 500},
    ],
    "ExtendLease": [{}, {"lease_ms": 60_000}, {"begun": False}, {"begun": True, "lease_ms": 90_000},
        {"checkpoint": b"c"}, {"progress": idl.Progress(1, 2, "t"), "log": ["l"], "durable": True}],
}  # fmt: skip
STRUCTS = {"Ack": idl.AckItem, "AckAndDequeue": idl.AckItem, "Nack": idl.NackItem, "ExtendLease": idl.ExtendItem}


def right_entries(method: str) -> st.SearchStrategy[Any]:
    """(item, whether its lease is right, fields): of another consumer's lease, and of no item, too."""
    return st.tuples(st.just("right"), st.integers(-1, ITEMS - 1), st.booleans(), st.sampled_from(RIGHT[method]))


def wrong_entries(method: str) -> st.SearchStrategy[Any]:
    return st.tuples(st.just("wrong"), NUMBERS, st.just(True), st.sampled_from(WRONG[method]))


def made(method: str, items: Sequence[Any], entry: Any) -> Any:
    _, number, own, fields = entry
    item_id, lease = (GONE, 7) if number < 0 else (items[number].id, items[number].lease + (not own))
    return STRUCTS[method](**{"id": item_id, "lease": lease, **fields})


@pytest.mark.parametrize("method", list(STRUCTS))
@given(data=st.data(), reopened=st.booleans())
def test_the_right_entries_fare_as_without_the_wrong_ones(method: str, data: st.DataObject, reopened: bool) -> None:
    mixed = data.draw(st.lists(right_entries(method) | wrong_entries(method), min_size=1, max_size=8))
    right = [entry for entry in mixed if entry[0] == "right"]
    outcomes, states = [], []
    for entries in (mixed, right):
        host = OneHost(1)
        items = leased(host)
        if reopened:  # the items are not in memory
            forget(host)
        answer = ask(host, method, [made(method, items, entry) for entry in entries]) if entries else None
        found = messages(answer) if entries else []
        outcomes.append([one for one, entry in zip(found, entries, strict=True) if entry[0] == "right"])
        assert [
            one for one, entry in zip(kinds(answer) if entries else [], entries, strict=True) if entry[0] == "wrong"
        ] == [Invalid for entry in entries if entry[0] == "wrong"]
        states.append(state(host))
    assert outcomes[0] == outcomes[1]
    assert states[0] == states[1]


@given(data=st.data())
def test_the_right_items_are_stored_as_without_the_wrong_ones(data: st.DataObject) -> None:
    right = st.fixed_dictionaries(
        {"payload": st.sampled_from([b"a", b"b"])},
        optional={
            "dedup_key": st.sampled_from(["k", "l"]), "fairness_key": st.sampled_from(["f", "g"]),
            "weight": st.integers(1, 9), "delay_ms": st.just(5_000), "priority": st.integers(-2, 2),
        },
    )  # fmt: skip
    wrong = st.tuples(
        right,
        st.sampled_from(
            [{"dedup_key": ""}, {"delivery": 9}, {"ttl_ms": 0}, {"topic": ""}, {"weight": 1_001}, {"delay_ms": -1},
             {"metadata": b"x" * 5_000}, {"throttle_keys": ["a", "a"]}, {"headers": {"a": "x" * 5_000}},
             {"lease_ms": 1}, {"payload": None}, {"fairness_key": "\n"}]
        ),
    ).map(lambda pair: ("wrong", {**pair[0], **pair[1]}))  # fmt: skip
    mixed = data.draw(st.lists(right.map(lambda fields: ("right", fields)) | wrong, min_size=1, max_size=8))
    found = []
    for entries in (mixed, [entry for entry in mixed if entry[0] == "right"]):
        host = OneHost(1)
        specs = [
            spec(fields.get("topic", "t"), **{k: v for k, v in fields.items() if k != "topic"}) for _, fields in entries
        ]
        outcomes = ask(host, "Enqueue", specs).outcomes if specs else []
        of_right = [one for one, entry in zip(outcomes, entries, strict=True) if entry[0] == "right"]
        assert all(one.error.code == 1 for one, entry in zip(outcomes, entries, strict=True) if entry[0] == "wrong")
        stats = host.ask("GetTopicStats", ns="n", topic="t")
        weights = {one.fairness_key: one.weight for one in stats.tenants}
        found.append(([(one.id, one.duplicate, one.error and one.error.message) for one in of_right], weights))
    assert found[0] == found[1]


def test_a_field_of_another_type_on_the_wire_fails_alone() -> None:
    host = OneHost(1)
    items = leased(host)
    frame = message("Ack", request_of("Ack", [idl.AckItem(item.id, item.lease) for item in items]))
    second = b"\x0a\0\1" + items[1].id.to_bytes(8, "big")
    frame = frame.replace(second, b"\x04" + second[1:])  # a double in place of the i64
    call = Call("Ack", decode(DECODER, frame))
    host.methods["Ack"](call)
    host.run()
    missing = "id is missing: give the id and the lease of the delivered item"
    assert messages(call.answer) == [None, missing, None, None]


@pytest.mark.parametrize("method", list(STRUCTS))
def test_a_request_of_wrong_entries_alone_is_answered(method: str) -> None:
    host = OneHost(1)
    (item,) = leased(host, 1)
    entry = STRUCTS[method](item.id, None)
    assert kinds(ask(host, method, [entry, entry])) == [Invalid, Invalid]
    assert kinds(ask(host, method, [STRUCTS[method](item.id, item.lease)])) == [None]


# ------------------------------------------------------------------------------------- one lease, more than once


TWICE = [(method, fields) for method, right in RIGHT.items() for fields in right]


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("delivery", [1, 2])
@pytest.mark.parametrize(("method", "fields"), TWICE)
def test_one_lease_twice_has_one_outcome(method: str, fields: dict[str, Any], delivery: int, reopened: bool) -> None:
    once, twice = OneHost(1), OneHost(1)
    for host in (once, twice):
        items = leased(host, 2, delivery=delivery)
        if reopened:
            forget(host)
        entries = [STRUCTS[method](item.id, item.lease, **fields) for item in items]
        if host is twice:
            entries = [entries[0], entries[1], entries[0], STRUCTS[method](items[0].id, items[0].lease + 1, **fields)]
        found = kinds(ask(host, method, entries))
        assert found == ([None, None] if host is once else [None, None, None, StaleLease])
    assert state(once) == state(twice)


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("first", RIGHT["Nack"])
@pytest.mark.parametrize("second", RIGHT["Nack"])
def test_of_two_nacks_of_one_lease_the_first_is_carried_out(
    first: dict[str, Any], second: dict[str, Any], reopened: bool
) -> None:
    states = []
    for fields_of in ([first], [first, second]):
        host = OneHost(1)
        (item,) = leased(host, 1)
        if reopened:
            forget(host)
        wrong = idl.NackItem(item.id, item.lease, delay_ms=-1)
        entries = [wrong, *(idl.NackItem(item.id, item.lease, **fields) for fields in fields_of)]
        assert kinds(ask(host, "Nack", entries)) == [Invalid, *[None] * len(fields_of)]
        states.append(state(host))
    assert states[0] == states[1]


def test_extensions_of_one_lease_that_differ_all_hold() -> None:
    host = OneHost(1)
    (item,) = leased(host, 1)
    entries = [
        idl.ExtendItem(item.id, item.lease, 60_000), idl.ExtendItem(item.id, item.lease, begun=False),
        idl.ExtendItem(item.id, item.lease, 90_000),
    ]  # fmt: skip
    assert kinds(ask(host, "ExtendLease", entries)) == [None, None, None]
    host.wait(89_000)
    assert take(host).items == []
    host.wait(2_000)
    assert [one.attempt for one in take(host).items] == [1], "the attempt that was not begun does not count"


def test_one_lease_twice_is_gone_twice() -> None:
    host = OneHost(1)
    (item,) = leased(host, 1)
    assert kinds(ask(host, "DeleteItems", [item.id, GONE, item.id, GONE])) == [None, NotFound, None, NotFound]
    assert kinds(ask(host, "Ack", [idl.AckItem(item.id, item.lease)] * 2)) == [NotFound] * 2


def test_outcomes_that_a_slow_shard_leaves_open_are_alike() -> None:
    host = OneHost(1)
    first, second = leased(host, 2)
    entries = [idl.AckItem(one.id, one.lease) for one in (first, second, first)]
    call = host.begin("Ack", items=entries, context=idl.RequestContext(timeout_ms=100))
    sent = host.send()
    host.now_ms += 200
    host.engine.tick(host.now_ms)
    assert len(set(messages(call.answer))) == 1 and None not in messages(call.answer)
    for shard, batch in sent:
        host.arrive(shard, batch)


def test_a_dedup_key_twice_is_one_item() -> None:
    host = OneHost(1)
    specs = [spec("t", b"x", dedup_key="k"), spec("t", b"y", dedup_key="k"), spec("t", b"x", dedup_key="k")]
    first, other, again = ask(host, "Enqueue", specs).outcomes
    assert (first.duplicate, again.id, again.duplicate) == (None, first.id, True)
    assert other.error.message == "the dedup_key was enqueued with another topic or payload before"


def test_the_weight_of_a_refused_item_does_not_count() -> None:
    host = OneHost(1)
    specs = [
        spec("t", b"1", fairness_key="f", weight=2), spec("t", b"2", fairness_key="f", weight=9, dedup_key=""),
        spec("t", b"3", fairness_key="f", weight=9, delivery=7),
    ]  # fmt: skip
    assert [one.error is None for one in ask(host, "Enqueue", specs).outcomes] == [True, False, False]
    assert [one.weight for one in host.ask("GetTopicStats", ns="n", topic="t").tenants] == [2]


# ------------------------------------------------------------------------------------------------- other hosts


@pytest.mark.parametrize("method", ["Ack", "Nack", "ExtendLease", "DeleteItems", "AckAndDequeue"])
def test_another_host_gets_each_right_entry_once(method: str) -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b", 3: "c"}))
    (item,) = leased(host, 1)
    there, elsewhere = 2 << 48 | 9, 3 << 48 | 9
    if method == "DeleteItems":
        entries: list[Any] = [there, item.id, elsewhere, there, item.id]
        right = [0, 1, 2, 3, 4]
    else:
        struct = STRUCTS[method]
        entries = [struct(there, 5), struct(there, None), struct(item.id, item.lease), struct(elsewhere, 5)]
        entries += [struct(there, 5), struct(item.id, item.lease), struct(there, 6)]
        right = [0, 2, 3, 4, 5]
    request = request_of(method, entries)
    call = Call(method, request)
    host.methods[method](call)
    host.run()
    forwarded = "Ack" if method == "AckAndDequeue" else method
    to_b, to_c = host.to(forwarded)
    asked = [getattr(sent.request, "ids" if method == "DeleteItems" else "items") for sent in (to_b, to_c)]
    assert [len(one) for one in asked] == [1 if method == "DeleteItems" else 2, 1]
    refused = idl.ItemOutcome(idl.ItemError(3, "stale"))
    response = getattr(idl, f"{forwarded}Response")
    host.reply(forwarded, response([idl.ItemOutcome(), refused][: len(asked[0])]))
    host.reply(forwarded, Invalid("that host refuses the request as a whole"))
    found = kinds(call.answer)
    assert [found[at] for at in right] == [None, None, Invalid, None, None]
    if method != "DeleteItems":
        assert (found[1], found[6]) == (Invalid, StaleLease)


def test_a_forwarded_part_keeps_the_request_id() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}))
    call = host.call("Ack", items=[idl.AckItem(2 << 48 | 9, 5)] * 2)
    (sent,) = host.to("Ack")
    assert sent.request.context.request_id == call.request.context.request_id is not None


# -------------------------------------------------------------------------------------------------- the pure part


def test_entries_that_are_all_carried_out_are_not_sifted() -> None:
    assert sift([1, 2, 3], {}) is None
    assert sift([1, 1], {}, end_of=[10, 11].__getitem__) is None
    assert sifted_acks([idl.AckItem(1, 2), idl.AckItem(1, 3)], Limits()) == ([1, 1], [2, 3], None, None)


@given(
    entries=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8),
    outcome_of=st.functions(like=lambda at: None, returns=st.sampled_from([None, StaleLease("s"), NotFound("n")])),
)
def test_each_entry_has_the_outcome_of_the_first_right_one(
    entries: list[tuple[int, bool]], outcome_of: Callable[[int], Any]
) -> None:
    ids = [item_id for item_id, _ in entries]
    errors = {at: Invalid(str(at)) for at, (_, wrong) in enumerate(entries) if wrong}
    sifted = sift(ids, errors)
    places = list(range(len(ids))) if sifted is None else sifted.places
    assert len({ids[at] for at in places}) == len(places)
    found = [outcome_of(at) for at in places]
    outcomes = found if sifted is None else sifted.outcomes(found)
    first = {ids[at]: at for at in reversed(range(len(ids))) if at not in errors}
    by_place = dict(zip(places, found, strict=True))
    assert outcomes == [errors[at] if at in errors else by_place[first[ids[at]]] for at in range(len(ids))]
