"""A copy of what a cluster keeps in ZooKeeper, as one JSON document, and what an import of it writes. Pure.

The document has no ephemeral records. It has the URLs of the shards' databases, which may have passwords.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from foqs.checks import counted
from foqs.errors import Invalid
from foqs.ids import MAX_SHARD, Mark, Marks, decode_mark, encode_mark
from foqs.policies.settings import Settings, Standing, conflict, parse_document, standing
from foqs.shardmgr.facts import (
    Assignment,
    Identity,
    ShardFact,
    Slots,
    decode_assignment,
    decode_identity,
    decode_shard,
    decode_slots,
    encode_assignment,
    encode_identity,
    encode_shard,
    encode_slots,
)

FORMAT = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backup:
    """`marks`: by shard number and identity of the shard; `settings`: by namespace."""

    identity: Identity = field(default_factory=Identity)
    shards: Mapping[int, ShardFact] = field(default_factory=dict)
    slots: Slots = field(default_factory=Slots)
    assignment: Assignment = field(default_factory=Assignment)
    drained: frozenset[str] = frozenset()
    marks: Mapping[int, Marks] = field(default_factory=dict)
    settings: Mapping[str, Settings] = field(default_factory=dict)


def encode_backup(backup: Backup, *, at: str, version: str) -> str:
    """Return the document. `at`: the time of the export; `version`: of foqs."""
    document = {
        "format": FORMAT,
        "exported_at": at,
        "foqs": version,
        "cluster": json.loads(encode_identity(backup.identity)) if backup.identity.id else None,
        "shards": {str(n): json.loads(encode_shard(fact)) for n, fact in sorted(backup.shards.items())},
        "slots": json.loads(encode_slots(backup.slots)) if backup.slots.shards else None,
        "assignment": json.loads(encode_assignment(backup.assignment.hosts)),
        "drained": sorted(backup.drained),
        "settings": {ns: json.loads(each.encoded()) for ns, each in sorted(backup.settings.items())},
        "marks": {
            str(n): {identity: json.loads(encode_mark(mark)) for identity, mark in sorted(marks.items())}
            for n, marks in sorted(backup.marks.items())
        },
    }
    # A record is one line: a difference of two exports names the records that have changed.
    parts = [f" {json.dumps(key)}: {_lines(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    if not isinstance(value, dict) or not value or not all(isinstance(each, dict) for each in value.values()):
        return json.dumps(value, ensure_ascii=False)
    lines = [f"  {json.dumps(key)}: {json.dumps(each, ensure_ascii=False)}" for key, each in value.items()]
    return "{\n" + ",\n".join(lines) + "\n }"


def decode_backup(text: str) -> Backup:
    """Raises Invalid, with the part that cannot be read."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Invalid("not JSON, or not all of it") from None
    if not isinstance(document, dict) or "format" not in document:
        raise Invalid("not an export of a cluster: `foqs cluster export` writes one")
    if document["format"] != FORMAT:
        raise Invalid(f"the export has format {document['format']!r}, this foqs reads format {FORMAT}: upgrade foqs")
    numbers = {
        name: {_number(name, key): value for key, value in _part(document, name, dict).items()}
        for name in ("shards", "marks")
    }
    drained = _part(document, "drained", list)
    if not all(isinstance(host, str) for host in drained):
        raise Invalid("drained: not a list of texts")
    cluster, slots = document.get("cluster"), document.get("slots")
    return Backup(
        _read("cluster", lambda data: decode_identity(data, -1), cluster) if cluster else Identity(),
        {n: _read(f"shard {n}", lambda data, n=n: decode_shard(n, data), one) for n, one in numbers["shards"].items()},  # type: ignore[misc]
        _read("slots", lambda data: decode_slots(data, -1), slots) if slots else Slots(),
        _read("assignment", lambda data: decode_assignment(data, -1), _part(document, "assignment", dict)),
        frozenset(drained),
        {n: _marks(n, marks) for n, marks in numbers["marks"].items()},
        {
            ns: _read(f"settings of {ns}", lambda data, ns=ns: parse_document(ns, data).checked(), one)  # type: ignore[misc]
            for ns, one in _part(document, "settings", dict).items()
        },
    )


def _part(document: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = document.get(name)
    if not isinstance(value, kind):
        raise Invalid(f"{name}: missing, or not what an export has there")
    return value


def _number(name: str, key: str) -> int:
    if not key.isascii() or not key.isdecimal() or not 1 <= int(key) <= MAX_SHARD:
        raise Invalid(f"{name}: {key[:20]!r} is no shard number")
    return int(key)


def _read(what: str, decode: Callable[[bytes], T], value: object) -> T:
    try:
        return decode(json.dumps(value, ensure_ascii=False).encode())
    except (Invalid, UnicodeEncodeError) as error:
        raise Invalid(f"{what}: {error.message if isinstance(error, Invalid) else 'not UTF-8'}") from None


def _marks(shard: int, marks: object) -> Marks:
    if not isinstance(marks, dict):
        raise Invalid(f"marks: the marks of shard {shard} cannot be read")
    return {identity: _read(f"mark of shard {shard}", decode_mark, mark) for identity, mark in marks.items()}


# ------------------------------------------------------------------------------------------------ import


@dataclass(frozen=True, slots=True)
class Import:
    """What an import writes. `adds` and `keeps` are lines for the operator: what the cluster lacks, and where the
    cluster differs from the file and stays as it is. `replaces`: shards whose record differs; written on demand."""

    adds: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    shards: tuple[ShardFact, ...] = ()
    replaces: tuple[ShardFact, ...] = ()
    slots: Slots | None = None
    assignment: Mapping[int, str] | None = None
    drained: frozenset[str] = frozenset()
    settings: tuple[Settings, ...] = ()
    marks: Mapping[int, Marks] = field(default_factory=dict)
    identity: Identity | None = None


def plan_import(backup: Backup, now: Backup, owned: frozenset[int]) -> Import:
    """Compare an export with a cluster. `owned`: shards that a host serves, whose marks it writes itself.

    Nothing is lowered: no mark, no stamp of slots, no version of settings. Raises Invalid for another cluster, and
    while hosts write back what ZooKeeper lost."""
    ours, theirs = now.identity, backup.identity
    if ours.open:
        raise Invalid("the hosts write back to ZooKeeper what they know: wait for the end, and run the command again")
    if ours.id and theirs.id and ours.id != theirs.id:
        raise Invalid(
            f"the file is of cluster {theirs.id}, and ZooKeeper has cluster {ours.id} there: correct zookeeper.root "
            "and zookeeper.hosts, or the file"
        )
    adds, keeps = list[str](), list[str]()
    missing = tuple(fact for n, fact in backup.shards.items() if n not in now.shards)
    other = tuple(fact for n, fact in backup.shards.items() if n in now.shards and now.shards[n] != fact)
    adds += [f"shard {fact.id}: {fact.use.value}, weight {fact.weight:g}" for fact in missing]
    keeps += [f"shard {fact.id}: {_difference(now.shards[fact.id], fact)}" for fact in other]
    keeps += [f"shard {n}: not in the file" for n in sorted(now.shards.keys() - backup.shards.keys())]
    slots = replace(backup.slots, version=now.slots.version) if backup.slots.stamp > now.slots.stamp else None
    if slots is not None:
        adds.append(f"slots of deduplication keys, stamp {slots.stamp} for {now.slots.stamp}")
    elif backup.slots.stamp < now.slots.stamp:
        keeps.append(f"slots of deduplication keys: the cluster has newer ones, stamp {now.slots.stamp}")
    assignment = backup.assignment.hosts if now.assignment.version < 0 and backup.assignment.hosts else None
    if assignment is not None:
        adds.append(f"the assignment of {counted(len(assignment), 'shard')}")
    drained = backup.drained - now.drained
    adds += [f"host {host}: drained" for host in sorted(drained)]
    settings = list[Settings]()
    for ns, one in backup.settings.items():
        known = now.settings.get(ns) or Settings(ns)
        match standing(one, known):
            case Standing.NEWER:
                settings.append(one)
                adds.append(f"settings of {ns}: version {one.version} for {known.version}")
            case Standing.FOREIGN:
                keeps.append(conflict(one, "the file", known, "the cluster"))
            case Standing.OLDER:
                keeps.append(f"settings of {ns}: version {known.version} is newer than {one.version} of the file")
    marks = {n: higher for n, each in backup.marks.items() if n not in owned and (higher := _higher(each, now, n))}
    if marks:
        adds.append(f"the marks of {counted(len(marks), 'shard')}")
    identity = None
    if adds or other or not ours.id:
        identity = Identity(ours.version, theirs.id or ours.id, (*theirs.events, *ours.events))
    return Import(
        tuple(adds), tuple(keeps), missing, other, slots, assignment, drained, tuple(settings), marks, identity
    )


def _difference(now: ShardFact, then: ShardFact) -> str:
    """Say how two records differ, without URLs."""
    parts = ["another URL"] if now.url != then.url else []
    parts += [f"{now.use.value}, in the file {then.use.value}"] if now.use is not then.use else []
    parts += [f"weight {now.weight:g}, in the file {then.weight:g}"] if now.weight != then.weight else []
    return ", ".join(parts)


def _higher(marks: Marks, now: Backup, shard: int) -> dict[str, Mark]:
    before = now.marks.get(shard, {})
    return {identity: mark for identity, mark in marks.items() if identity not in before or mark > before[identity]}
