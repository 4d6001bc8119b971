"""Records as facts. An unreadable record is logged, and its previous content stays in effect, so that no shard looks
removed after a typing error."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import structlog

from foqs.errors import Invalid
from foqs.policies.settings import Settings, decode
from foqs.shardmgr.facts import (
    Assignment,
    Facts,
    HostFact,
    OwnerFact,
    ShardFact,
    Slots,
    decode_assignment,
    decode_host,
    decode_owner,
    decode_shard,
    decode_slots,
)
from foqs.zk.paths import ASSIGNMENT, SETTINGS, SLOTS, candidate_of, shard_of, text_of

log = structlog.get_logger("foqs.zk")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R", Assignment, Slots)


class Section(Generic[K, V]):
    """The records of one folder. `parse(name, data)` returns key and value, or raises Invalid. `lasting`: no record is
    ever removed, so one that vanishes is a loss, and its value stays in effect."""

    def __init__(
        self,
        folder: str,
        parse: Callable[[str, bytes], tuple[K, V]],
        changed: Callable[[], None],
        *,
        lasting: bool = False,
    ) -> None:
        self._folder = folder
        self._lasting = lasting
        self._parse = parse
        self._changed = changed
        self._found: dict[str, tuple[bytes, tuple[K, V] | None]] = {}
        self._vanished: set[str] = set()
        self._values: Mapping[K, V] | None = {}

    def put(self, name: str, data: bytes, _version: int) -> None:
        self._vanished.discard(name)
        before = self._found.get(name)
        if before is not None and before[0] == data:
            return
        try:
            record: tuple[K, V] | None = self._parse(name, data)
        except Invalid as error:
            log.error("record.not_read", node=f"{self._folder}/{name}", reason=error.message)
            record = None if before is None else before[1]
        self._found[name] = (data, record)
        self._touch()

    def drop(self, name: str) -> None:
        if self._lasting and name in self._found:
            if name not in self._vanished:
                log.error("record.vanished", node=f"{self._folder}/{name}")
            self._vanished.add(name)
        elif self._found.pop(name, None) is not None:
            self._touch()

    @property
    def values(self) -> Mapping[K, V]:
        """The returned mapping never changes."""
        if self._values is None:
            self._values = dict(record for _, record in self._found.values() if record is not None)
        return self._values

    def _touch(self) -> None:
        self._values = None
        self._changed()


class Record(Generic[R]):
    """One record with the version of its node. An unreadable one keeps its version, so that a controller can replace
    it."""

    def __init__(self, node: str, decode: Callable[[bytes, int], R], missing: R, changed: Callable[[], None]) -> None:
        self.value: R = missing
        self._node = node
        self._decode: Callable[[bytes, int], R] = decode
        self._missing: R = missing
        self._changed = changed
        self._data: bytes | None = None

    def put(self, _name: str, data: bytes, version: int) -> None:
        # A record that was removed and written again has the versions of the previous one.
        if version == self.value.version and data == self._data:
            return
        self._data = data
        try:
            self.value = self._decode(data, version)
        except Invalid as error:
            log.error("record.not_read", node=self._node, reason=error.message)
            self.value = replace(self.value, version=version)
        self._changed()

    def drop(self, _name: str) -> None:
        if self.value.version >= 0:
            self.value = self._missing
            self._changed()


class View:
    """`changed` is called at each change; an unchanged record is not a change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.assignment = Record(ASSIGNMENT, decode_assignment, Assignment(), changed)
        self.slots = Record(SLOTS, decode_slots, Slots(), changed)
        self.shards: Section[int, ShardFact] = Section("shards", _shard, changed)
        self.hosts: Section[str, HostFact] = Section("hosts", _host, changed)
        self.owners: Section[int, OwnerFact] = Section("owners", _owner, changed)
        self.drained: Section[str, None] = Section("drained", _drained, changed)
        self.election: Section[int, str] = Section("election", _candidate, changed)
        self.settings: Section[str, Settings] = Section(SETTINGS, _settings, changed, lasting=True)

    @property
    def facts(self) -> Facts:
        candidates = self.election.values
        return Facts(
            shards=self.shards.values,
            hosts=self.hosts.values,
            owners=self.owners.values,
            drained=frozenset(self.drained.values),
            assignment=self.assignment.value,
            controller=candidates[min(candidates)] if candidates else None,
            slots=self.slots.value,
            settings=self.settings.values,
        )


def _shard(name: str, data: bytes) -> tuple[int, ShardFact]:
    number = shard_of(name)
    return number, decode_shard(number, data)


def _host(name: str, data: bytes) -> tuple[str, HostFact]:
    host = text_of(name)
    return host, decode_host(host, data)


def _owner(name: str, data: bytes) -> tuple[int, OwnerFact]:
    number = shard_of(name)
    return number, decode_owner(number, data)


def _drained(name: str, _data: bytes) -> tuple[str, None]:
    return text_of(name), None


def _candidate(name: str, _data: bytes) -> tuple[int, str]:
    return candidate_of(name)


def _settings(name: str, data: bytes) -> tuple[str, Settings]:
    ns = text_of(name)
    return ns, decode(ns, data)
