"""The facts of a cluster that ZooKeeper holds, as values.

Each znode has one record, as JSON. A record that cannot be read is `Invalid`; its reader adds the name of the node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from foqs.checks import is_text
from foqs.errors import PROTOCOL_VERSION, Invalid, OtherProtocol
from foqs.ids import HASH_SLOTS, MAX_SHARD

if TYPE_CHECKING:
    from foqs.policies.settings import Settings


class Session(Enum):
    """The state of a host's session with ZooKeeper. SUSPENDED: no server answers, but ephemeral records still exist.
    EXPIRED: ephemeral records are gone."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class ShardUse(Enum):
    """The use of a shard, as an operator set it."""

    ENABLED = "enabled"
    DRAINING = "draining"  # served, but takes no new items
    DISABLED = "disabled"  # served by no host


@dataclass(frozen=True, slots=True)
class ShardFact:
    """/shards/<id>: the place of a shard. `weight` is its load relative to the other shards.

    `as_of_ms`: of a record that a host wrote back after ZooKeeper lost it, the time of the write that was lost; 0 for
    a record that an operator wrote.
    """

    id: int
    url: str = field(repr=False)
    weight: float = 1.0
    use: ShardUse = ShardUse.ENABLED
    as_of_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class HostFact:
    """/hosts/<id>, ephemeral: a living host. `address` is its advertised host:port. `run` differs at each start of the
    process. `leaving`: the host is shutting down and wants its shards moved. `unreachable`: shards whose database
    server does not answer this host. `hanging`: shards whose database has not answered a call for `breaker.hang_ms`
    yet. `read_only`: `unreachable` shards whose database answers and takes no writes. `reached`: shards
    reported by other hosts whose server answers this host (see `foqs.shardmgr.membership`). `protocol`: the
    protocol version of the host; 0 in a record without one.

    An id at one address is one host, because two processes cannot listen there: a restarted process replaces the record
    of the previous one. The same id at another address is a mistake, and the later process waits.
    """

    id: str
    address: str
    run: str
    leaving: bool = False
    unreachable: frozenset[int] = frozenset()
    reached: frozenset[int] = frozenset()
    protocol: int = PROTOCOL_VERSION
    hanging: frozenset[int] = frozenset()
    read_only: frozenset[int] = frozenset()

    def replaces(self, other: HostFact) -> bool:
        """Return True if this is the same host as `other`, a record with the same id."""
        return self.run == other.run or self.address == other.address


@dataclass(frozen=True, slots=True)
class OwnerFact:
    """/owners/<shard>, ephemeral: the host that serves a shard, and its epoch."""

    shard: int
    host: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """/assignment: the assigned host of each shard. `version` is for compare-and-set; -1: not written yet."""

    version: int = -1
    hosts: Mapping[int, str] = field(default_factory=dict)


class SlotMove(NamedTuple):
    """A move of a slot to the shard `to`, begun by the record with the stamp `since`."""

    to: int
    since: int


@dataclass(frozen=True, slots=True)
class Slots:
    """/slots: the shard of each slot of deduplication keys (see `foqs.ids`), 0 for none. `version` as above; without
    `shards` the slots are not assigned yet. `moves`: by slot, the shard that copies its rows.

    `stamp` grows with each change, also after ZooKeeper lost its data: milliseconds of the clock, or one more than
    before. Shards store it with their slots (`foqs.rows.Holding`).
    """

    version: int = -1
    shards: tuple[int, ...] = ()
    moves: Mapping[int, SlotMove] = field(default_factory=dict)
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """/cluster: the cluster that the records belong to. `version` as above; `id` is '' without a record, as in a
    cluster whose hosts had no such record.

    `events`: the losses and restorations of ZooKeeper's data that hosts have found, as random ids, the newest first.
    While `open`, hosts write back what they know, and none acts on the records.
    """

    version: int = -1
    id: str = ""
    events: tuple[str, ...] = ()
    open: bool = False

    @property
    def event(self) -> str:
        return self.events[0] if self.events else ""


class Written(NamedTuple):
    """The last write of a record: the transactions that created it and wrote it last, its version, and the
    time of that write in epoch ms of ZooKeeper's clock. Transactions only grow, until ZooKeeper loses its data."""

    created: int
    changed: int
    version: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Writes:
    """The last writes of the records that no host may forget; None: the record does not exist."""

    shards: Mapping[int, Written] = field(default_factory=dict)
    assignment: Written | None = None
    slots: Written | None = None
    identity: Written | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts, as one host or operator sees them now. `drained`: hosts that an operator drained (/drained/<host>).
    `controller` is the id of the elected host that writes the assignment. `settings`: by namespace (/settings/<ns>);
    `vanished`: namespaces whose settings stay in effect although their record is gone."""

    shards: Mapping[int, ShardFact] = field(default_factory=dict)
    hosts: Mapping[str, HostFact] = field(default_factory=dict)
    owners: Mapping[int, OwnerFact] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    assignment: Assignment = Assignment()
    controller: str | None = None
    slots: Slots = Slots()
    settings: Mapping[str, Settings] = field(default_factory=dict)
    identity: Identity = Identity()
    vanished: frozenset[str] = field(default=frozenset(), compare=False)
    writes: Writes = field(default_factory=Writes, compare=False)


def other_protocol(facts: Facts, joining: str) -> HostFact | None:
    """Return a living host with another protocol version, other than the host `joining`; None if there is none."""
    different = [host for host in facts.hosts.values() if host.id != joining and host.protocol != PROTOCOL_VERSION]
    return min(different, key=lambda host: host.id, default=None)


def protocol_error(other: HostFact) -> OtherProtocol:
    """Return the error of a host that may not join because of `other`."""
    return OtherProtocol(f"host {other.id} ({other.address})", other.protocol)


def encode_shard(fact: ShardFact) -> bytes:
    record: dict[str, Any] = {"url": fact.url, "weight": fact.weight, "use": fact.use.value}
    return _encode({**record, "as_of_ms": fact.as_of_ms} if fact.as_of_ms else record)


def decode_shard(shard: int, data: bytes) -> ShardFact:
    """Raises Invalid."""
    record = _decode(data)
    weight = _number(record, "weight", 1.0)
    if not 0 < weight < 1e6:
        raise Invalid(f"weight is {weight}, not above 0")
    use, as_of_ms = _use(record.get("use", "enabled")), _whole(record, "as_of_ms", 0)
    return ShardFact(_shard(shard), _text(record, "url"), weight, use, as_of_ms)


_REPORTS = ("unreachable", "reached", "hanging", "read_only")
"""Sets of shards of a HostFact."""


def encode_host(fact: HostFact) -> bytes:
    record: dict[str, Any] = {
        "address": fact.address, "run": fact.run, "leaving": fact.leaving, "protocol": fact.protocol
    }  # fmt: skip
    for key in _REPORTS:
        if shards := getattr(fact, key):
            record[key] = sorted(shards)
    return _encode(record)


def decode_host(host: str, data: bytes) -> HostFact:
    """Raises Invalid."""
    record = _decode(data)
    return HostFact(
        host,
        _text(record, "address"),
        _text(record, "run"),
        leaving=bool(record.get("leaving", False)),
        protocol=_whole(record, "protocol", 0),
        **{key: _shards(record, key) for key in _REPORTS},
    )


def encode_owner(fact: OwnerFact) -> bytes:
    return _encode({"host": fact.host, "address": fact.address, "epoch": fact.epoch})


def decode_owner(shard: int, data: bytes) -> OwnerFact:
    """Raises Invalid."""
    record = _decode(data)
    return OwnerFact(_shard(shard), _text(record, "host"), _text(record, "address"), _whole(record, "epoch", 0))


def encode_assignment(hosts: Mapping[int, str]) -> bytes:
    """Encode by host, because a list of ranges is shorter: 10,000 shards must fit into a znode (1 MB)."""
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
        if not is_text(host):
            raise Invalid("the name of a host is not UTF-8")
        if not isinstance(shards, list):
            raise Invalid(f"the shards of host {host} are no list")
        for shard in shards:
            if _shard(shard) in hosts:
                raise Invalid(f"duplicate shard {shard}")
            hosts[shard] = host
    return Assignment(version, hosts)


def encode_slots(slots: Slots) -> bytes:
    return _encode({"shards": slots.shards, "moves": slots.moves, "stamp": slots.stamp})


def decode_slots(data: bytes, version: int) -> Slots:
    """Raises Invalid."""
    record = _decode(data)
    shards, moves, stamp = record.get("shards"), record.get("moves"), record.get("stamp")
    if not isinstance(shards, list) or len(shards) != HASH_SLOTS:
        raise Invalid(f"shards is no list of {HASH_SLOTS}")
    if not isinstance(moves, dict) or not isinstance(stamp, int):
        raise Invalid("moves or stamp is missing")
    numbers = tuple(shard and _shard(shard) for shard in shards)
    return Slots(version, numbers, dict(_slot_move(*move) for move in moves.items()), stamp)


def _slot_move(name: str, move: object) -> tuple[int, SlotMove]:
    match move:
        case [int(), int(since)] if name.isdecimal() and int(name) < HASH_SLOTS:
            return int(name), SlotMove(_shard(move[0]), since)
    raise Invalid(f"the move of slot {name} cannot be read")


_MOST_EVENTS = 32


def encode_identity(identity: Identity) -> bytes:
    return _encode({"id": identity.id, "events": identity.events[:_MOST_EVENTS], "open": identity.open})


def decode_identity(data: bytes, version: int) -> Identity:
    """Raises Invalid."""
    record = _decode(data)
    events = record.get("events", [])
    if not isinstance(events, list) or not all(isinstance(event, str) for event in events):
        raise Invalid("events is no list of texts")
    return Identity(version, _text(record, "id"), tuple(events), record.get("open") is True)


def _encode(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), sort_keys=True).encode()


def _decode(data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        raise Invalid("not JSON") from None
    if not isinstance(record, dict):
        raise Invalid("not a JSON object")
    return record


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise Invalid(f"{key} is missing")
    if not is_text(value):
        raise Invalid(f"{key} is not UTF-8")
    return value


def _number(record: dict[str, Any], key: str, default: float) -> float:
    value = record.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{key} must be a number")
    return value


def _whole(record: dict[str, Any], key: str, default: int) -> int:
    value = _number(record, key, default)
    if not isinstance(value, int):
        raise Invalid(f"{key} must be a whole number")
    return value


def _use(value: object) -> ShardUse:
    try:
        return ShardUse(value)
    except ValueError:
        raise Invalid(f"use is {value!r}, none of {', '.join(use.value for use in ShardUse)}") from None


def _shards(record: dict[str, Any], key: str) -> frozenset[int]:
    """Decode a list of shards; a record without any lacks the key."""
    shards = record.get(key, [])
    if not isinstance(shards, list):
        raise Invalid(f"{key} is no list of shards")
    return frozenset(_shard(shard) for shard in shards)


def _shard(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SHARD:
        raise Invalid(f"{value!r} is no shard number")
    return value
