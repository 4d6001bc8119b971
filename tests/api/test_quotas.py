"""Quotas on one host: which items of a request are admitted, and the errors of the rest."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.api.conftest import whole
from tests.api.hosts import PATIENT, dev
from tests.api.wire import Code, Wire, spec

RATE, BURST, STORED = 100, 30, 20
NAMESPACES = {
    "rated": {"enqueues_per_second": RATE, "burst": BURST},
    "slow": {"enqueues_per_second": 1, "burst": 5},
    "stored": {"stored_items": STORED},
    "free": {},
}


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    settings = {"FOQS_QUOTAS__ENQUEUES_PER_SECOND": "1000000", "FOQS_QUOTAS__NAMESPACES": json.dumps(NAMESPACES)}
    with dev(tmp_path_factory.mktemp("quotas"), **PATIENT, **settings) as host:
        wire = Wire(whole(host).address)
        yield wire
        wire.close()
        assert host.stop() == 0
        assert host.faults() == []


def admitted(wire: Wire, ns: str, count: int) -> list[bool]:
    made = wire.outcomes(*[spec("t")] * count, ns=ns)
    errors = [outcome.error for outcome in made if outcome.error is not None]
    assert {(error.code, error.message) for error in errors} <= {(Code.OVERLOADED, "the namespace's quota is used up")}
    assert all(error.retry_after_ms > 0 for error in errors)
    return [outcome.error is None for outcome in made]


def test_no_more_than_the_rate_and_the_first_items_first(wire: Wire) -> None:
    begun, taken = time.monotonic(), 0
    while taken < 3 * BURST:
        made = admitted(wire, "rated", 40)
        assert made == sorted(made, reverse=True)
        taken += sum(made)
        # The host counts whole milliseconds.
        assert taken <= BURST + RATE * (time.monotonic() - begun + 0.001)
    # A namespace with its own entry has that quota; any other namespace has the default.
    assert wire.enqueue(*[spec("t")] * 1_000, ns="free")
    assert any(admitted(wire, "another", 10))


def test_a_refusal_says_when_its_tokens_are_there(wire: Wire) -> None:
    for count in (5, 40, 2, 40):  # some of the last are refused after any pause
        made = wire.outcomes(*[spec("t")] * count, ns="slow")
        waits = [outcome.error.retry_after_ms for outcome in made if outcome.error is not None]
        assert waits == [1_000 * min(len(waits), 5)] * len(waits)
    assert waits


def test_duplicates_give_their_tokens_back(wire: Wire) -> None:
    begun, again, deadline = time.monotonic(), 0, time.monotonic() + 30
    while again < 50:
        outcome = wire.outcomes(spec("t", dedup_key="k"), ns="slow")[0]
        again += bool(outcome.duplicate)
        assert time.monotonic() < deadline, f"{again} duplicates were taken"
    assert again > 5 + (time.monotonic() - begun)  # more than there were tokens


def test_invalid_items_take_no_token_and_acks_make_room(wire: Wire) -> None:
    made = wire.outcomes(*[spec("") if n % 2 else spec("t") for n in range(2 * STORED)], ns="stored")
    assert [outcome.error and outcome.error.code for outcome in made] == [None, Code.INVALID] * STORED
    assert not any(admitted(wire, "stored", 5))
    items = wire.dequeue("t", 7, ns="stored")
    assert wire.ack(*items, ns="stored") == [0] * 7
    taken, deadline = 0, time.monotonic() + 30
    while taken < 7:
        assert time.monotonic() < deadline, f"{taken} were taken"
        taken += sum(admitted(wire, "stored", 3))
    assert taken == 7
    assert not any(admitted(wire, "stored", 5))
