"""Item ids, deduplication keys and marks: the numbers that name items and their shards, each given once.

An item id is an i64 that says which shard holds the item. Layout, from the sign bit down: 0, 15 bits of shard, 48 bits
of number. So an id is positive, a shard never gives the same id twice (numbers only grow, also when everything was
deleted), and any host can route by the id alone. Ids are written in decimal everywhere; hexadecimal is accepted where
people and programs give them.

A deduplication key is kept as 128 bits of its hash (with the namespace), so that every row is short; by its first bits
it falls into one of `HASH_SLOTS` slots. A slot lives on one shard, so one owner sees every enqueue with a key.

A mark has the highest numbers of a shard, outside its database. A restored older copy of a database continues with old
numbers, and would assign ids again that are in use. Owners reserve numbers in steps: the mark names a ceiling, and the
owner writes a new mark before it reaches the ceiling. Marks belong to a shard's identity, a UUID in its row, which a
copy keeps under any address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from foqs.checks import SHOWN_BITS, shown
from foqs.enums import NamedInt
from foqs.errors import Invalid

NUMBER_BITS = 48
MAX_NUMBER = (1 << NUMBER_BITS) - 1
MAX_SHARD = (1 << 15) - 1
MIN_I64, MAX_I64 = -(1 << 63), (1 << 63) - 1
_SPELLED = re.compile(r"(0x)?([0-9a-f]+)", re.IGNORECASE | re.ASCII)
_MOST_DIGITS = 19
"""Digits of MAX_I64. Python refuses to read thousands of digits, with an error of its own."""

HASH_SLOTS = 1024
"""Number of hash slots. It never changes: stored keys depend on it. Each of 100 shards has ten or eleven slots."""
DIGEST_BYTES = 16
_SLOT_BYTES = 2
_SLOT_SHIFT = 6  # of these bytes

MARK_STEP = 1 << 20
"""Numbers reserved by each mark, of 2^48. A host that crashes wastes at most the reserved numbers."""


def make_id(shard: int, number: int) -> int:
    """Return the id of a number of a shard. Raises ValueError: `shard` is not in 1..32767, or `number` in 1..2^48-1."""
    if not 1 <= shard <= MAX_SHARD:
        raise ValueError(f"shard number {shard} is not in 1..{MAX_SHARD}")
    if not 1 <= number <= MAX_NUMBER:
        raise ValueError(f"item number {number} is not in 1..{MAX_NUMBER}")
    return shard << NUMBER_BITS | number


def first_id(shard: int) -> int:
    """Return the summand that makes an id of `shard` from a number (the hot path adds instead of calling `make_id`)."""
    return shard << NUMBER_BITS


def shard_of(item_id: int) -> int:
    """Return the shard's number; 0 or less for a value that is not an id."""
    return item_id >> NUMBER_BITS


def number_of(item_id: int) -> int:
    return item_id & MAX_NUMBER


def parse_id(given: object, what: str = "an item id") -> int:
    """Parse an id or a lease: decimal, or hexadecimal with 0x. Raises Invalid."""
    if isinstance(given, int) and not isinstance(given, bool):
        if MIN_I64 <= given <= MAX_I64:
            return given
        size = given.bit_length()
        number = str(given) if size <= SHOWN_BITS else f"a number of {size} bits"
        raise Invalid(f"{number} is not {what}: it has more than 64 bits")
    text = shown(given) if isinstance(given, str) else repr(given)
    spelled = _SPELLED.fullmatch(given.strip()) if isinstance(given, str) else None
    if spelled is not None and (spelled[1] or spelled[2].isdecimal()):
        digits = spelled[2].lstrip("0") or "0"
        read = int(digits, 16 if spelled[1] else 10) if len(digits) <= _MOST_DIGITS else MAX_I64 + 1
        if read <= MAX_I64:
            return read
        raise Invalid(f"{text} is not {what}: the largest one is {MAX_I64}")
    raise Invalid(f"{text} is not {what}: give a whole number, in decimal, or in hexadecimal with 0x before it")


class OnDuplicate(NamedInt):
    """What an enqueue does whose `dedup_key` an item has."""

    KEEP = 1
    """Nothing: it returns the id of that item."""
    REPLACE = 2
    """It gives that item its payload, metadata, headers, priority and time, unless the item has begun."""


class Until(NamedInt):
    """When a deduplication key is free again, as the contract's DedupUntil has it."""

    WINDOW = 1  # a time after the enqueue, or after the end of the item's delay
    STARTED = 2  # when the first lease of its item is written
    DONE = 3  # when its item ends


FOREVER_MS = 1 << 60
"""The expiry of a key that its item frees; plus the number of redrives that took it."""


class Dedup(NamedTuple):
    """The stored record of a key. `content` is a hash of the topic and payload that were enqueued with it; of the topic
    alone, where the item frees its key."""

    digest: bytes
    content: int


def digest_of(ns: str, key: str) -> bytes:
    """Return the hash of a key. (Names hold no control character, so no other pair gives the same bytes.)"""
    return blake2b(f"{ns}\0{key}".encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def order_digest(ns: str, topic: str, key: str) -> bytes:
    """Return the hash of an order key of a topic. Its hash slot depends on the key alone: an item that is redriven to
    another topic stays in its shard."""
    slot = digest_of(ns, key)[:_SLOT_BYTES]
    return slot + digest_of(f"{ns}\0{topic}", key)[_SLOT_BYTES:]


def content_of(topic: str, payload: bytes) -> int:
    """Return 63 bits of the hash of the topic and payload."""
    made = blake2b(b"%b\0%b" % (topic.encode("utf-8", "surrogatepass"), payload), digest_size=8)
    return int.from_bytes(made.digest(), "big") >> 1


def dedups_of(ns: str, topic: str, keys: Sequence[str], payloads: Sequence[bytes]) -> list[Dedup]:
    """Return the records of the keys of items of one topic: `digest_of` and `content_of` each."""
    before_key, before_payload = f"{ns}\0", topic.encode("utf-8", "surrogatepass") + b"\0"
    made = []
    for key, payload in zip(keys, payloads, strict=True):
        digest = blake2b((before_key + key).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
        content = blake2b(before_payload + payload, digest_size=8).digest()
        made.append(Dedup(digest, int.from_bytes(content, "big") >> 1))
    return made


def hash_slot_of(digest: bytes) -> int:
    return (digest[0] << 8 | digest[1]) >> _SLOT_SHIFT


def hash_slot_bounds(slot: int) -> tuple[bytes, bytes]:
    """Return the lowest and the highest digest in a slot."""
    low, shift = slot << _SLOT_SHIFT, DIGEST_BYTES * 8 - 16
    high = (low + (1 << _SLOT_SHIFT)) << shift
    return (low << shift).to_bytes(DIGEST_BYTES), (high - 1).to_bytes(DIGEST_BYTES)


def next_digest(digest: bytes) -> bytes:
    return (int.from_bytes(digest) + 1).to_bytes(DIGEST_BYTES)


class Stamp(NamedTuple):
    """The time of a host (`at_ms`), and of its machine's clock (`machine_ms`), at one moment. `host` is its id."""

    at_ms: int = 0
    machine_ms: int = 0
    host: str = ""


class Mark(NamedTuple):
    """`epoch` is the last owner's. Its database had stored `number` as the next one, so a database with a lower number
    is an older copy. Numbers from `ceiling` on were not given. The owner had committed at least `seq` transactions,
    counted over all owners. `stamp`: the time of its write."""

    epoch: int
    number: int
    ceiling: int
    seq: int = 0
    stamp: Stamp = Stamp()


Marks = Mapping[str, Mark]
"""The marks of all shards that had one number, by identity (in hex)."""


def mark_ahead(epoch: int, next_number: int, seq: int = 0) -> Mark:
    """Return the mark of an owner that continues with `next_number`."""
    return Mark(epoch, next_number, next_number + MARK_STEP, seq)


def encode_mark(mark: Mark) -> bytes:
    record = mark._asdict() | {"stamp": mark.stamp._asdict()}
    return json.dumps(record, separators=(",", ":")).encode()


def decode_mark(data: bytes) -> Mark:
    """Parse a mark; unknown keys are ignored. Raises Invalid."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise Invalid("not JSON") from None
    match record:
        case {"epoch": int(epoch), "number": int(number), "ceiling": int(ceiling)} if min(epoch, number, ceiling) >= 0:
            seq = record.get("seq", 0)
            return Mark(epoch, number, ceiling, seq if type(seq) is int else 0, _stamp(record.get("stamp")))
    raise Invalid("epoch, number and ceiling are not three numbers")


def _stamp(record: object) -> Stamp:
    match record:
        case {"at_ms": int(at_ms), "machine_ms": int(machine_ms), "host": str(host)}:
            return Stamp(at_ms, machine_ms, host)
    return Stamp()
