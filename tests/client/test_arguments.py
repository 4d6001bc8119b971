"""Calls for many items: an entry that cannot be sent fails alone, and an entry that comes twice has one outcome."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import Client, Invalid, ItemSpec, Lease, Nack, NotFound, Producer, StaleLease
from foqs.client._sync.requests import one_by_one
from foqs.client.arguments import Entries, i64_of
from foqs.errors import FoqsError


class Raises:
    """An object whose attributes cannot be read."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attributes today")


class Number:
    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


WRONG_LEASES = [
    None, 5, "item", Raises(), Lease("5", 1), Lease(1, None), Lease(1 << 63, 1), Lease(1, -(1 << 70)), Lease(1.0, 1),
    Lease(True, 1), Lease([1], 1), Lease(1, b"x"),
]  # fmt: skip


def nack(item_id: Any = 1, lease: Any = 1, **fields: Any) -> Nack:
    """A nack whose fields were set after its checks."""
    made = Nack(item_id, lease)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


WRONG_NACKS = [
    *WRONG_LEASES[:4], nack("5"), nack(1, 1.5), nack(metadata="text"), nack(metadata=3), nack(delay_ms=1.5),
    nack(delay_ms=1 << 64), nack(reason=3), nack(reason="\ud800"),
]  # fmt: skip
WRONG_SPECS = [
    None, ("t", b"x"), Raises(), ItemSpec("t", 3), ItemSpec("t", b"x", priority=1 << 40), ItemSpec(7, b"x"),
    ItemSpec("t", b"x", ttl_ms="1"), ItemSpec("t", b"x", headers=3), ItemSpec("t", b"x", dedup_key=3),
    ItemSpec("\ud800", b"x"), ItemSpec("", b"x"),
]  # fmt: skip


def mixed(good: list[Any], wrong: list[Any]) -> list[Any]:
    """Each good entry between wrong ones."""
    places = len(wrong) // len(good)
    return [entry for at, one in enumerate(good) for entry in (*wrong[at * places : (at + 1) * places], one)] + wrong[
        len(good) * places :
    ]


def leased(client: Client, count: int) -> list[Any]:
    client.enqueue_many([ItemSpec("t", b"%d" % number) for number in range(count)])
    return list(client.dequeue("t", count, wait_ms=5_000))


def of_good(given: list[Any], wrong: list[Any], outcomes: list[Any]) -> list[Any]:
    """The outcomes of the good entries; those of the wrong ones must be Invalid."""
    assert len(outcomes) == len(given)
    bad = [outcome for entry, outcome in zip(given, outcomes, strict=True) if any(entry is one for one in wrong)]
    assert [isinstance(outcome, Invalid) for outcome in bad] == [True] * len(wrong), bad
    assert all(outcome.message for outcome in bad)
    return [outcome for entry, outcome in zip(given, outcomes, strict=True) if not any(entry is one for one in wrong)]


@pytest.mark.parametrize("call", ["ack_many", "release_many", "extend_many", "begun_many", "ack_and_dequeue"])
def test_a_wrong_lease_fails_alone(peer, client_of, call):
    client = client_of(peer)
    items = leased(client, 3)
    entries = mixed(items, WRONG_LEASES)
    if call == "ack_and_dequeue":
        outcomes = client.ack_and_dequeue(entries, "none").outcomes
    else:
        outcomes = getattr(client, call)(iter(entries))
    assert of_good(entries, WRONG_LEASES, outcomes) == [None] * 3
    if call.startswith("ack"):
        assert sorted(peer.acked) == [item.id for item in items]


def test_a_wrong_nack_fails_alone(peer, client_of):
    client = client_of(peer)
    good = [Nack.of(item, metadata=b"m") for item in leased(client, 2)]
    entries = mixed(good, WRONG_NACKS)
    assert of_good(entries, WRONG_NACKS, client.nack_many(entries)) == [None] * 2
    assert [one.metadata for one in peer.nacked] == [b"m", b"m"]


def test_a_wrong_id_is_deleted_alone(peer, client_of):
    client = client_of(peer)
    ids = [item.id for item in leased(client, 3)]
    wrong = ["x", None, 1 << 64, True, 1.5, b"1", "0x" + "f" * 17, Raises()]
    entries = mixed([ids[0], str(ids[1]), hex(ids[2])], wrong)
    assert of_good(entries, wrong, client.delete_items(entries)) == [None] * 3
    assert peer.items == {}


@pytest.mark.parametrize("keyed", [False, True])
def test_a_wrong_item_is_not_stored_alone(peer, client_of, keyed):
    client = client_of(peer)
    good = [ItemSpec("t", b"%d" % number, dedup_key=str(number) if keyed else None) for number in range(3)]
    entries = mixed(good, WRONG_SPECS)
    ids = of_good(entries, WRONG_SPECS, client.enqueue_many(entries))
    assert [peer.items[item_id].payload for item_id in ids] == [b"0", b"1", b"2"]


def test_a_wrong_item_of_a_producer_fails_alone(peer, client_of):
    wrong = [one for one in WRONG_SPECS if isinstance(one, ItemSpec)]
    entries = mixed([ItemSpec("t", b"1"), ItemSpec("t", b"2")], wrong)
    with Producer(client_of(peer), linger_ms=200, on_error=lambda spec, error: None) as producer:
        futures = [producer.submit(spec) for spec in entries]
        errors = [future.exception() for future in futures]
    assert [type(error) for error in errors if error is None] == [type(None)] * 2
    assert sum(isinstance(error, Invalid) for error in errors) == len(wrong)
    assert sorted(item.payload for item in peer.items.values()) == [b"1", b"2"]


def test_a_wrong_item_leaves_a_trace_alone(new_peer):
    pytest.importorskip("opentelemetry.sdk")
    peer = new_peer()
    with Client(peer.address, tracing=True) as client:
        entries = mixed([ItemSpec("t", b"1")], WRONG_SPECS)
        (item_id,) = of_good(entries, WRONG_SPECS, client.enqueue_many(entries))
    assert peer.items[item_id].payload == b"1"


def test_a_payload_longer_than_its_estimate_is_sent_alone(peer, client_of):
    """The length of a view counts its elements."""
    client = client_of(peer, max_frame_bytes=40_000)
    long = ItemSpec("t", memoryview(bytes(42_000)).cast("I"))
    outcomes = client.enqueue_many([ItemSpec("t", b"1"), long, ItemSpec("t", b"2")])
    assert [type(outcome).__name__ for outcome in outcomes] == ["int", "RequestTooLarge", "int"]
    assert len(peer.items) == 2


def test_integers_of_other_classes_are_taken(peer, client_of):
    client = client_of(peer)
    (item,) = leased(client, 1)
    assert client.ack_many([Lease(Number(item.id), Number(item.lease))]) == [None]
    assert i64_of(Number(5), "id") == 5
    with pytest.raises(Invalid, match=r"^id has 301 bits: it must be an integer from -9223372036854775808 to "):
        i64_of(1 << 300, "id")


# ------------------------------------------------------------------------------------------- one lease, twice


def test_one_lease_in_two_requests_has_one_outcome(client):
    """The client sends 10,000 entries in a request."""
    first, second, third, fourth, fifth, sixth = leased(client, 6)
    stale = Lease(first.id, first.lease + 1)
    gone = Lease(first.id + 10_000, 1)

    def kinds(outcomes: list[Any], entries: list[Any]) -> list[Any]:
        assert len(outcomes) == len(entries)
        return [[type(outcome) for outcome in outcomes[:3]], [type(outcome) for outcome in outcomes[-3:]]]

    entries = [first, gone, stale, *[second] * 9_998, first, gone, stale]
    expected = [[type(None), NotFound, StaleLease]] * 2
    assert kinds(client.extend_many(entries, 60_000), entries) == expected
    assert kinds(client.begun_many(entries), entries) == expected
    assert kinds(client.ack_many(entries), entries) == expected
    entries = [third.id, gone.id, stale.id, *[fourth.id] * 9_998, third.id, gone.id, third.id]
    assert kinds(client.delete_items(entries), entries) == [
        [type(None), NotFound, NotFound], [type(None), NotFound, type(None)]
    ]  # fmt: skip
    wrong = nack(fifth.id, fifth.lease, delay_ms=-1)
    nacks = [wrong, Nack.of(fifth, delay_ms=60_000), *[Nack.of(sixth, release=True)] * 9_999, Nack.of(fifth), wrong]
    outcomes = client.nack_many(nacks)
    assert [type(one) for one in (*outcomes[:2], *outcomes[-2:])] == [Invalid, type(None), type(None), Invalid]
    assert [item.id for item in client.dequeue("t", 10)] == [sixth.id], "the first nack of the other one has a delay"


def test_one_lease_twice_with_a_dequeue_has_one_outcome(client):
    first, second = leased(client, 2)
    assert client.ack_and_dequeue([first, second, first], "none").outcomes == [None] * 3
    first, second = leased(client, 2)
    assert client.ack_and_dequeue([first, *[second] * 9_999, first], "none").outcomes == [None] * 10_001


@given(
    entries=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12),
    size=st.integers(1, 4),
    wrong=st.sets(st.integers(0, 11)),
)
def test_outcomes_do_not_depend_on_the_cut_into_requests(entries, size, wrong):
    """A host that carries out each end once, and answers equal entries of one request alike."""

    def outcomes(size: int) -> list[Any]:
        gone: set[int] = set()
        numbered = list(enumerate(entries))

        def send(chunk: Any) -> list[Any]:
            here: dict[int, FoqsError | None] = {}
            found: list[Any] = []
            for at, (end, _) in chunk:
                if at in wrong:
                    found.append(Invalid("wrong"))
                    continue
                if end not in here:
                    here[end] = NotFound("gone") if end in gone else None
                    gone.add(end)
                found.append(here[end])
            return found

        chunks = [numbered[start : start + size] for start in range(0, len(numbered), size)]
        return [type(one) for one in one_by_one(chunks, lambda entry: entry[1][0], send)]

    assert outcomes(size) == outcomes(12)


@given(entries=st.lists(st.integers(0, 3) | st.none(), max_size=8))
def test_outcomes_of_good_entries_keep_their_places(entries):
    def entry_of(one: Any) -> int:
        return one + 1  # raises TypeError for None

    made = Entries(iter(entries), entry_of)
    assert made.good == [one + 1 for one in entries if one is not None]
    outcomes = made.outcomes(made.good)
    assert [one if isinstance(one, int) else type(one) for one in outcomes] == [
        Invalid if one is None else one + 1 for one in entries
    ]
