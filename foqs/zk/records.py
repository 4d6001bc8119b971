"""The nodes of ZooKeeper: the path of each record, and the records as facts. Pure.

An unreadable record is logged, and its previous content stays in effect, so that no shard looks removed after a typing
error.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from urllib.parse import quote, unquote

import structlog

from foqs.errors import Invalid
from foqs.ids import MAX_SHARD
from foqs.policies.settings import Settings
from foqs.policies.settings import decode as decode_settings
from foqs.settings_log import Log
from foqs.settings_log import decode as decode_log
from foqs.shardmgr.facts import (
    Assignment,
    Facts,
    HostFact,
    Identity,
    OwnerFact,
    ShardFact,
    Slots,
    Writes,
    Written,
    decode_assignment,
    decode_host,
    decode_identity,
    decode_owner,
    decode_shard,
    decode_slots,
)

log = structlog.get_logger("foqs.zk")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R", Assignment, Slots, Identity)

SHARDS, HOSTS, OWNERS, DRAINED, ELECTION = "shards", "hosts", "owners", "drained", "election"
MARKS, SETTINGS, SETTINGS_LOG = "marks", "settings", "settings_log"
ASSIGNMENT, SLOTS, IDENTITY = "assignment", "slots", "cluster"
FOLDERS = (SHARDS, HOSTS, OWNERS, DRAINED, ELECTION, MARKS, SETTINGS, SETTINGS_LOG)


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths below `root`, which is absolute, has no slash at its end, and is not `/`."""

    root: str

    def folder(self, name: str) -> str:
        return f"{self.root}/{name}"

    def shard(self, shard: int) -> str:
        return f"{self.root}/{SHARDS}/{shard}"

    def host(self, host: str) -> str:
        return f"{self.root}/{HOSTS}/{node_name(host)}"

    def owner(self, shard: int) -> str:
        return f"{self.root}/{OWNERS}/{shard}"

    def marks(self, shard: int) -> str:
        return f"{self.root}/{MARKS}/{shard}"

    def mark(self, shard: int, identity: str) -> str:
        return f"{self.marks(shard)}/{node_name(identity or '-')}"

    def drained(self, host: str) -> str:
        return f"{self.root}/{DRAINED}/{node_name(host)}"

    def settings(self, ns: str) -> str:
        return f"{self.root}/{SETTINGS}/{node_name(ns)}"

    def settings_log(self, ns: str) -> str:
        return f"{self.root}/{SETTINGS_LOG}/{node_name(ns)}"

    def candidate(self, name: str) -> str:
        return f"{self.root}/{ELECTION}/{name}"

    @property
    def assignment(self) -> str:
        return f"{self.root}/{ASSIGNMENT}"

    @property
    def slots(self) -> str:
        return f"{self.root}/{SLOTS}"

    @property
    def identity(self) -> str:
        return f"{self.root}/{IDENTITY}"

    @property
    def ancestors(self) -> list[str]:
        """The root and its ancestors, from the top."""
        parts = self.root.split("/")[1:]
        return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def node_name(text: str) -> str:
    """Return the node name of a host's id or a namespace, which can be any text."""
    # ZooKeeper refuses these two, and quote leaves dots alone.
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def text_of(name: str) -> str:
    """Return the text that `node_name` makes this name of. Raises Invalid if there is none, so that no text has two
    nodes."""
    text = unquote(name)
    if node_name(text) != name:
        raise Invalid("not the name of such a node")
    return text


def shard_of(name: str) -> int:
    """Return the number of a shard's node. Raises Invalid."""
    if not name.isascii() or not name.isdigit() or name.startswith("0") or len(name) > 5 or int(name) > MAX_SHARD:
        raise Invalid("not the number of a shard")
    return int(name)


def candidate_of(name: str) -> tuple[int, str]:
    """Return the sequence number and the host of a node in the election, <host>-<sequence>. Raises Invalid."""
    host, _, sequence = name.rpartition("-")
    if not sequence.isascii() or not sequence.isdigit():
        raise Invalid("no sequence number")
    return int(sequence), text_of(host)


class Section(Generic[K, V]):
    """The records of one folder: their values by what `key` makes of a node's name. `key` and `decode` raise Invalid.

    Without `read` only the names count. `lasting`: no record is ever removed, so one that vanishes is a loss, and its
    value stays in effect.
    """

    only = None

    def __init__(
        self,
        folder: str,
        key: Callable[[str], K],
        decode: Callable[[K, bytes], V],
        changed: Callable[[], None],
        *,
        read: bool = True,
        lasting: bool = False,
    ) -> None:
        self.folder = folder
        self.read = read
        self._lasting = lasting
        self._key = key
        self._decode = decode
        self._changed = changed
        self._found: dict[str, tuple[bytes, tuple[K, V] | None]] = {}
        self._vanished: set[str] = set()
        self._written: dict[str, Written] = {}
        self._values: Mapping[K, V] | None = {}
        self._writes: Mapping[K, Written] | None = {}

    def put(self, name: str, data: bytes, written: Written) -> None:
        if name in self._vanished:
            self._vanished.discard(name)
            self._touch()
        if self._written.get(name) != written:
            self._written[name], self._writes = written, None
        before = self._found.get(name)
        if before is not None and before[0] == data:
            return
        try:
            key = self._key(name)
            record: tuple[K, V] | None = key, self._decode(key, data)
        except Invalid as error:
            log.error("record.not_read", node=f"{self.folder}/{name}", reason=error.message)
            record = None if before is None else before[1]
        self._found[name] = (data, record)
        self._touch()

    def drop(self, name: str) -> None:
        if self._lasting and name in self._found:
            if name not in self._vanished:
                log.error("record.vanished", node=f"{self.folder}/{name}")
                self._vanished.add(name)
                self._touch()
        elif self._found.pop(name, None) is not None:
            self._written.pop(name, None)
            self._touch()

    @property
    def values(self) -> Mapping[K, V]:
        """The returned mapping never changes."""
        if self._values is None:
            self._values = dict(record for _, record in self._found.values() if record is not None)
        return self._values

    @property
    def writes(self) -> Mapping[K, Written]:
        """Return the last write of each record in `values`. The returned mapping never changes."""
        if self._writes is None:
            found = ((name, record) for name, (_, record) in self._found.items() if record is not None)
            self._writes = {record[0]: self._written[name] for name, record in found}
        return self._writes

    @property
    def vanished(self) -> frozenset[K]:
        """Return the lasting records that are gone."""
        found = (self._found[name][1] for name in self._vanished)
        return frozenset(record[0] for record in found if record is not None)

    def _touch(self) -> None:
        self._values = self._writes = None
        self._changed()


class Record(Generic[R]):
    """One record with the version of its node, the child `only` of the root. An unreadable one keeps its version, so
    that a controller can replace it."""

    folder = ""
    read = True

    def __init__(self, only: str, decode: Callable[[bytes, int], R], missing: R, changed: Callable[[], None]) -> None:
        self.only = only
        self.value: R = missing
        self.written: Written | None = None
        self._decode: Callable[[bytes, int], R] = decode
        self._missing: R = missing
        self._changed = changed
        self._data: bytes | None = None

    def put(self, _name: str, data: bytes, written: Written) -> None:
        self.written, version = written, written.version
        # A record that was removed and written again has the versions of the previous one.
        if version == self.value.version and data == self._data:
            return
        self._data = data
        try:
            self.value = self._decode(data, version)
        except Invalid as error:
            log.error("record.not_read", node=self.only, reason=error.message)
            self.value = replace(self.value, version=version)
        self._changed()

    def drop(self, _name: str) -> None:
        self.written = None
        if self.value.version >= 0:
            self.value = self._missing
            self._changed()


class Logged:
    """Joins documents of settings with their logs, which have nodes of their own."""

    def __init__(self) -> None:
        self._from: tuple[Mapping[str, Settings], Mapping[str, Log]] = {}, {}
        self._made: dict[str, tuple[Settings, Log | None, Settings]] = {}
        self._values: Mapping[str, Settings] = {}

    def join(self, documents: Mapping[str, Settings], logs: Mapping[str, Log]) -> Mapping[str, Settings]:
        """Return the settings by namespace; the same mapping, and the same settings, where nothing has changed."""
        if self._from[0] is not documents or self._from[1] is not logs:
            self._from = documents, logs
            self._values = {ns: self._one(ns, document, logs.get(ns)) for ns, document in documents.items()}
        return self._values

    def _one(self, ns: str, document: Settings, log: Log | None) -> Settings:
        made = self._made.get(ns)
        if made is None or made[0] is not document or made[1] is not log:
            made = self._made[ns] = document, log, document if log is None else document.with_log(log)
        return made[2]


class View:
    """`changed` is called at each change; an unchanged record is not a change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.assignment = Record(ASSIGNMENT, decode_assignment, Assignment(), changed)
        self.slots = Record(SLOTS, decode_slots, Slots(), changed)
        self.identity = Record(IDENTITY, decode_identity, Identity(), changed)
        self.shards: Section[int, ShardFact] = Section(SHARDS, shard_of, decode_shard, changed)
        self.hosts: Section[str, HostFact] = Section(HOSTS, text_of, decode_host, changed)
        self.owners: Section[int, OwnerFact] = Section(OWNERS, shard_of, decode_owner, changed)
        self.drained: Section[str, None] = Section(DRAINED, text_of, _without_data, changed, read=False)
        self.election = Section(ELECTION, candidate_of, _without_data, changed, read=False)
        self.documents: Section[str, Settings] = Section(SETTINGS, text_of, decode_settings, changed, lasting=True)
        self.logs: Section[str, Log] = Section(SETTINGS_LOG, text_of, _decode_log, changed, lasting=True)
        self._logged = Logged()

    @property
    def settings(self) -> Mapping[str, Settings]:
        return self._logged.join(self.documents.values, self.logs.values)

    @property
    def facts(self) -> Facts:
        candidates = self.election.values
        return Facts(
            shards=self.shards.values,
            hosts=self.hosts.values,
            owners=self.owners.values,
            drained=frozenset(self.drained.values),
            assignment=self.assignment.value,
            controller=min(candidates)[1] if candidates else None,
            slots=self.slots.value,
            settings=self.settings,
            identity=self.identity.value,
            vanished=self.documents.vanished,
            writes=Writes(self.shards.writes, self.assignment.written, self.slots.written, self.identity.written),
        )


def _decode_log(_ns: str, data: bytes) -> Log:
    return decode_log(data)


def _without_data(_key: object, _data: bytes) -> None:
    return None
