"""What a cluster knows of itself: the facts that ZooKeeper holds, as values.

One record a znode, as JSON. Unknown keys are kept out of the way of older hosts: they are ignored. A record that
cannot be read is `Invalid`, with the node named by whoever read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from foqs.dedup import SLOTS
from foqs.errors import Invalid
from foqs.ids import MAX_SHARD


class ShardUse(Enum):
    """What an operator wants of a shard."""

    ENABLED = "enabled"
    DRAINING = "draining"  # served, but takes no new items
    DISABLED = "disabled"  # served by nobody


@dataclass(frozen=True, slots=True)
class ShardFact:
    """/shards/<id>: where a shard is. `weight` is its part of the load, relative to the others."""

    id: int
    url: str = field(repr=False)
    weight: float = 1.0
    use: ShardUse = ShardUse.ENABLED


@dataclass(frozen=True, slots=True)
class HostFact:
    """/hosts/<id>, ephemeral: a living host. `address` is host:port as clients are told. `run` differs at each start of
    the process; `leaving`: it is shutting down and wants its shards moved away. `unreachable`: shards whose database
    server does not answer this host; `reached`: of those that other hosts report, the ones whose server does (see
    `foqs.shardmgr.reach`).

    An id at one address is one host, as no two processes listen there: a process that was started again replaces the
    record of the one before. The same id at another address is a mistake, and the later process waits."""

    id: str
    address: str
    run: str
    leaving: bool = False
    unreachable: frozenset[int] = frozenset()
    reached: frozenset[int] = frozenset()

    def replaces(self, other: HostFact) -> bool:
        """Whether this is the same host as `other`, a record with the same id."""
        return self.run == other.run or self.address == other.address


@dataclass(frozen=True, slots=True)
class OwnerFact:
    """/owners/<shard>, ephemeral: who really serves a shard, and with which epoch."""

    shard: int
    host: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """/assignment: which host is to serve each shard. `version` is what compare-and-set needs; -1: not written yet."""

    version: int = -1
    hosts: Mapping[int, str] = field(default_factory=dict)


class SlotMove(NamedTuple):
    """A slot that is to go to the shard `to`, by the record of the stamp `since`."""

    to: int
    since: int


@dataclass(frozen=True, slots=True)
class Slots:
    """/slots: the shard of each slot of deduplication keys (see `foqs.dedup`), 0 for none. `version` as above; no
    `shards`: not shared out yet. `moves`: by slot, which shard is copying its rows.

    `stamp` grows with each change, also when ZooKeeper lost all it had: milliseconds of the clock, or one more than
    before. Shards store it with the slots they have (`foqs.rows.Holding`).
    """

    version: int = -1
    shards: tuple[int, ...] = ()
    moves: Mapping[int, SlotMove] = field(default_factory=dict)
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it, as one host or operator sees it now. `drained`: hosts that an operator wants empty (/drained/<host>).
    `controller` is the id of the host that was elected to write the assignment."""

    shards: Mapping[int, ShardFact] = field(default_factory=dict)
    hosts: Mapping[str, HostFact] = field(default_factory=dict)
    owners: Mapping[int, OwnerFact] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    assignment: Assignment = Assignment()
    controller: str | None = None
    slots: Slots = Slots()


def encode_shard(fact: ShardFact) -> bytes:
    return _encode({"url": fact.url, "weight": fact.weight, "use": fact.use.value})


def decode_shard(shard: int, data: bytes) -> ShardFact:
    """Raises Invalid."""
    record = _decode(data)
    weight = _number(record, "weight", 1.0)
    if not 0 < weight < 1e6:
        raise Invalid(f"weight is {weight}, not above 0")
    return ShardFact(_shard(shard), _text(record, "url"), weight, _use(record.get("use", "enabled")))


def encode_host(fact: HostFact) -> bytes:
    record: dict[str, Any] = {"address": fact.address, "run": fact.run, "leaving": fact.leaving}
    if fact.unreachable:
        record["unreachable"] = sorted(fact.unreachable)
    if fact.reached:
        record["reached"] = sorted(fact.reached)
    return _encode(record)


def decode_host(host: str, data: bytes) -> HostFact:
    """Raises Invalid."""
    record = _decode(data)
    return HostFact(
        host,
        _text(record, "address"),
        _text(record, "run"),
        bool(record.get("leaving", False)),
        _shards(record, "unreachable"),
        _shards(record, "reached"),
    )


def encode_owner(fact: OwnerFact) -> bytes:
    return _encode({"host": fact.host, "address": fact.address, "epoch": fact.epoch})


def decode_owner(shard: int, data: bytes) -> OwnerFact:
    """Raises Invalid."""
    record = _decode(data)
    epoch = _number(record, "epoch", 0)
    if not isinstance(epoch, int):
        raise Invalid("epoch is no whole number")
    return OwnerFact(_shard(shard), _text(record, "host"), _text(record, "address"), epoch)


def encode_assignment(hosts: Mapping[int, str]) -> bytes:
    """By host, as a list of ranges would be shorter still: 10,000 shards have to fit a znode (1 MB)."""
    by_host: dict[str, list[int]] = {}
    for shard, host in sorted(hosts.items()):
        by_host.setdefault(host, []).append(shard)
    return _encode({"hosts": by_host})


def decode_assignment(data: bytes, version: int) -> Assignment:
    """Raises Invalid."""
    hosts: dict[int, str] = {}
    by_host = _decode(data).get("hosts")
    if not isinstance(by_host, dict):
        raise Invalid("hosts is missing")
    for host, shards in by_host.items():
        if not isinstance(shards, list):
            raise Invalid(f"the shards of host {host} are no list")
        for shard in shards:
            if _shard(shard) in hosts:
                raise Invalid(f"shard {shard} stands twice")
            hosts[shard] = host
    return Assignment(version, hosts)


def encode_slots(slots: Slots) -> bytes:
    return _encode({"shards": slots.shards, "moves": slots.moves, "stamp": slots.stamp})


def decode_slots(data: bytes, version: int) -> Slots:
    """Raises Invalid."""
    record = _decode(data)
    shards, moves, stamp = record.get("shards"), record.get("moves"), record.get("stamp")
    if not isinstance(shards, list) or len(shards) != SLOTS:
        raise Invalid(f"shards is no list of {SLOTS}")
    if not isinstance(moves, dict) or not isinstance(stamp, int):
        raise Invalid("moves or stamp is missing")
    numbers = tuple(shard and _shard(shard) for shard in shards)
    return Slots(version, numbers, dict(_slot_move(*move) for move in moves.items()), stamp)


def _slot_move(name: str, move: object) -> tuple[int, SlotMove]:
    match move:
        case [int(), int(since)] if name.isdecimal() and int(name) < SLOTS:
            return int(name), SlotMove(_shard(move[0]), since)
    raise Invalid(f"the move of slot {name} cannot be read")


def _encode(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), sort_keys=True).encode()


def _decode(data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data)
    except ValueError:
        raise Invalid("not JSON") from None
    if not isinstance(record, dict):
        raise Invalid("not a JSON object")
    return record


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise Invalid(f"{key} is missing")
    return value


def _number(record: dict[str, Any], key: str, default: float) -> float:
    value = record.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{key} is no number")
    return value


def _use(value: object) -> ShardUse:
    try:
        return ShardUse(value)
    except ValueError:
        raise Invalid(f"use is {value!r}, none of {', '.join(use.value for use in ShardUse)}") from None


def _shards(record: dict[str, Any], key: str) -> frozenset[int]:
    """Absent in records of older hosts."""
    shards = record.get(key, [])
    if not isinstance(shards, list):
        raise Invalid(f"{key} is no list of shards")
    return frozenset(_shard(shard) for shard in shards)


def _shard(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SHARD:
        raise Invalid(f"{value!r} is no shard number")
    return value
