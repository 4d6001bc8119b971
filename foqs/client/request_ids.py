"""The id under which hosts log what they have to say about a call. All requests that a call takes carry the same one:
parts of a batch, second tries, and what hosts ask each other for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from foqs.bounds import Limits
from foqs.checks import check_text
from foqs.errors import Invalid

_MOST_BYTES = Limits().context_bytes
_current: ContextVar[str | None] = ContextVar("foqs_request_id", default=None)


@contextmanager
def request_id(name: str) -> Iterator[None]:
    """Calls made inside, by this thread or task, carry this id instead of random ones. At most 128 bytes that can be
    printed; Invalid otherwise."""
    check_text("request_id", name, empty=True)
    if not name or not name.isprintable() or len(name.encode()) > _MOST_BYTES:
        raise Invalid(f"a request id has 1 to {_MOST_BYTES} bytes, all of them printable")
    token = _current.set(name)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> str:
    """Return the id for the requests of a call that begins now."""
    return _current.get() or f"{random.getrandbits(48):012x}"
