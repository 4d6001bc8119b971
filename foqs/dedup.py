"""Deduplication keys: which part of a key is stored, and where.

A key is kept as 128 bits of its hash (with the namespace), so that every row is short; by its first bits it falls into
one of `SLOTS` slots. A slot lives on one shard, so one owner sees every enqueue with a key.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

SLOTS = 1024
"""For ever: keys that are stored fall by it. Of 100 shards each has ten, so none has a tenth more than another."""
DIGEST_BYTES = 16
_SLOT_SHIFT = 6  # of the first two bytes


class Dedup(NamedTuple):
    """The stored record of a key. `content` is a hash of the topic and payload that were enqueued with it."""

    digest: bytes
    content: int


class Duplicate(int):
    """The id of an item that was stored before, under the same key."""

    __slots__ = ()


class OwnDuplicate(Duplicate):
    """It may have been stored by this very request, which was sent on a second time."""

    __slots__ = ()


def digest_of(ns: str, key: str) -> bytes:
    """Names hold no control character, so nothing else has the same."""
    return blake2b(f"{ns}\0{key}".encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def content_of(topic: str, payload: bytes) -> int:
    """63 bits."""
    made = blake2b(b"%b\0%b" % (topic.encode("utf-8", "surrogatepass"), payload), digest_size=8)
    return int.from_bytes(made.digest(), "big") >> 1


def slot_of(digest: bytes) -> int:
    return (digest[0] << 8 | digest[1]) >> _SLOT_SHIFT


def bounds_of(slot: int) -> tuple[bytes, bytes]:
    """The lowest and the highest digest that fall into it."""
    low, shift = slot << _SLOT_SHIFT, DIGEST_BYTES * 8 - 16
    high = (low + (1 << _SLOT_SHIFT)) << shift
    return (low << shift).to_bytes(DIGEST_BYTES), (high - 1).to_bytes(DIGEST_BYTES)


def behind(digest: bytes) -> bytes:
    """The next one."""
    return (int.from_bytes(digest) + 1).to_bytes(DIGEST_BYTES)
