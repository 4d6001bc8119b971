"""The checks of `foqs shards check`: of several shards at a time, and of their settings together.

The file of `foqs shards apply`: the shards of a cluster.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from foqs.config.schema import ShardSection
from foqs.errors import Conflict, Invalid
from foqs.policies.settings import Settings, newest, parse_document
from foqs.rows import SettingRow
from foqs.shardmgr.facts import ShardFact
from foqs.store.checkup import check_shard
from foqs.store.link import place_of
from foqs.store.maintenance import restore_of
from foqs.store.protocol import StoreDown, StoreError, explained

_SERVERS_AT_ONCE = 16
_COMPLETE = b""
"""The namespace of the row that says that a shard has all copies."""


@dataclass(slots=True)
class Examined:
    """The faults of a shard, each with its remedy, and its copies of namespaces' settings. `down`: the database does
    not answer. `restored`: a line about the last restore of the shard; empty if there was none, or tables are wrong."""

    findings: list[str] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)
    down: bool = False
    restored: str = ""


def examine(urls: Sequence[tuple[int, str]], *, rows: bool) -> Iterator[tuple[int, Examined]]:
    """Yield the result of each shard, in order: servers in parallel, the shards of a server one after another.

    A server that did not answer for one shard is not asked about its other ones.
    """
    servers: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for shard, url in urls:
        place = place_of(url)
        servers[url if place is None or place[0].startswith("sqlite") else place[0]].append((shard, url))
    results: dict[int, Future[Examined]] = {shard: Future() for shard, _ in urls}
    with ThreadPoolExecutor(_SERVERS_AT_ONCE) as pool:
        for shards in servers.values():
            pool.submit(_server, shards, rows, results)
        for shard, _ in urls:
            yield shard, results[shard].result()


def _server(shards: Sequence[tuple[int, str]], rows: bool, results: Mapping[int, Future[Examined]]) -> None:
    silent = ""
    for shard, url in shards:
        try:
            found = Examined([silent], down=True) if silent else examined(url, shard, rows=rows)
        except Exception as error:  # noqa: BLE001 - the command raises it
            results[shard].set_exception(error)
            continue
        if found.down and not silent:
            silent = f"not checked: its server did not answer for shard {shard}"
        results[shard].set_result(found)


def examined(url: str, shard: int, *, rows: bool = False) -> Examined:
    """Check one shard. Raises no StoreError: that is a fault of the shard."""
    try:
        found = check_shard(url, shard, rows=rows)
        restored = "" if found.findings else _restored(url)
    except StoreError as error:
        return Examined([explained(error)], down=isinstance(error, StoreDown))
    made = Examined([f"{one.found} -> {one.mend}" if one.mend else one.found for one in found.findings])
    made.restored = restored
    for row in found.settings:
        _add(made, row)
    return made


def _add(made: Examined, row: SettingRow) -> None:
    if row.ns == _COMPLETE:
        return
    try:
        made.settings.append(parse_document(row.ns.decode(), row.doc))
    except Invalid as error:
        made.findings.append(f"{error.message}: a host leaves them out -> restore table setting from a backup")


def conflict_of(copies: Mapping[int, Sequence[Settings]]) -> str:
    """Return why a host that opens all these shards would refuse to serve some of them: settings that were made apart.
    Empty if it would not."""
    try:
        newest((shard, copy) for shard, settings in copies.items() for copy in settings)
    except Conflict as error:
        return error.message
    return ""


def _restored(url: str) -> str:
    """Return a line about the last restore of a shard; '' if there was none."""
    at_ms, ended = restore_of(url)
    if not at_ms:
        return ""
    when = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    leases = f"{ended:,} lease{'' if ended == 1 else 's'}"
    return f"a host found an older copy here on {when}, and ended the {leases} that came back with it"


class _Shard(ShardSection):
    weight: Annotated[float, Field(gt=0, lt=1e6)] = 1.0


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    shards: Annotated[tuple[_Shard, ...], Field(min_length=1)]

    @field_validator("shards")
    @classmethod
    def _distinct(cls, shards: tuple[_Shard, ...]) -> tuple[_Shard, ...]:
        if min(len({shard.id for shard in shards}), len({shard.url for shard in shards})) < len(shards):
            raise ValueError("two shards have the same id or url")
        return shards


def read(path: Path) -> list[ShardFact]:
    """Read the file. Raises Invalid with every error but no value, because URLs hold passwords."""
    try:
        found = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
        raise Invalid(f"{path}: {'; '.join(lines)}") from None
    except RecursionError:
        raise Invalid(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"{path}: {error}") from None
    return [ShardFact(shard.id, shard.url, shard.weight) for shard in found.shards]
