"""Peers and clients that are closed after the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from foqs.client import Client
from tests.client.peer import Peer

PATIENT_MS = 60_000


@pytest.fixture
def new_peer() -> Iterator[Callable[..., Peer]]:
    """`new_peer(meddle)` starts a peer of the test's own."""
    with ExitStack() as stack:
        yield lambda meddle=None, port=0: stack.enter_context(Peer(meddle, port))


@pytest.fixture
def peer(new_peer: Callable[..., Peer]) -> Peer:
    """One that behaves."""
    return new_peer()


@pytest.fixture
def client_of() -> Iterator[Callable[..., Client]]:
    """`client_of(peer, ...)` is a client whose time-outs are no part of a test that does not give its own."""
    with ExitStack() as stack:

        def make(peer: Peer, **options: Any) -> Client:
            settings = {"timeout_ms": PATIENT_MS, "attempt_timeout_ms": PATIENT_MS, **options}
            return stack.enter_context(Client(peer.address, **settings))

        yield make


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Open at the end at the latest."""
    opened = threading.Event()
    yield opened
    opened.set()
