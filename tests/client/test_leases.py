"""What a worker believes of its leases, in whatever order items and answers come."""

import threading
from math import inf
from time import monotonic
from typing import Any

import pytest

from foqs.client._sync.leases import Extender, Leases
from foqs.client.items import Extension, Item
from foqs.errors import OutcomeUnknown
from tests.client.peer import eventually

LEASE_MS = 600_000
"""So long that only the test extends anything."""


class Service:
    """Carries out requests; `before_reply` runs before an extension by the handler is answered."""

    def __init__(self) -> None:
        self.before_reply: Any = None

    def extend(self, item: Item, lease_ms: int) -> None:
        if self.before_reply is not None:
            self.before_reply()

    def extend_many(self, extensions: list[Extension], *, timeout_ms: int) -> list[None]:
        return [None] * len(extensions)


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def leases(service):
    leases = Leases(service, LEASE_MS, 10)
    yield leases
    leases.abandon()


def extend(leases, held):
    """As when it is due."""
    held.extend_at = monotonic()
    leases._extend_many([held], held.extend_at)


def test_an_item_that_comes_again_has_lost_its_earlier_lease(leases):
    """Early, after its owner crashed, and to the same worker."""
    (first,) = leases.add([Item(id=1, lease=1)])
    lost = first.event()
    (again,) = leases.add([Item(id=1, lease=2)])
    assert lost.is_set()
    assert not first.usable(monotonic())
    assert again.usable(monotonic())
    leases.remove([first])
    assert len(leases) == 1


def test_an_item_delivered_again_has_an_outcome_of_its_own(leases):
    (first,) = leases.add([Item(id=1, lease=1)])
    first.settling = True
    leases.add([Item(id=1, lease=2)])
    assert not first.gone


@pytest.mark.parametrize("asked_ms", [LEASE_MS // 10, LEASE_MS * 10])
def test_of_two_extensions_in_flight_the_shorter_one_counts(leases, service, asked_ms):
    (held,) = leases.add([Item(id=1, lease=1)])
    service.before_reply = lambda: extend(leases, held)
    leases.extend(held, asked_ms)
    shorter_s = min(asked_ms, LEASE_MS) / 1000
    assert held.expires <= monotonic() + shorter_s
    assert held.extend_at <= monotonic() + shorter_s / 2
    service.before_reply = None
    leases.extend(held, 10 * LEASE_MS)
    assert held.expires > monotonic() + LEASE_MS / 1000


def test_an_extension_that_may_have_been_made_late_is_believed(leases, service):
    """The worker's own, of unknown outcome, may be the last that the server carried out."""
    (held,) = leases.add([Item(id=1, lease=1)])

    def lost() -> None:
        service.extend_many = lambda items, *_, **__: [OutcomeUnknown("lost")]
        extend(leases, held)

    service.before_reply = lost
    leases.extend(held, 10 * LEASE_MS)
    assert held.extend_at <= monotonic() + LEASE_MS / 1000


def test_a_thread_that_cannot_be_started_is_started_for_the_next(monkeypatch):
    started = []
    monkeypatch.setattr(Extender, "_run", lambda _extender: started.append(True))
    extender = Extender()
    leases = Leases(Service(), LEASE_MS, 1)

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError):
            extender.watch(leases, inf)
    extender.watch(leases, inf)
    eventually(lambda: started)
