"""The places of a snapshot's shards, their clock, and a connection that reads a shard as of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from foqs.config.load import load
from foqs.config.schema import ZookeeperSection
from foqs.errors import Invalid, Unavailable
from foqs.spark.snapshot_options import SnapshotOptions
from foqs.spark.snapshot_wanted import ranges
from foqs.store import reads
from foqs.store.dialect import MYSQL, SQLITE
from foqs.store.link import Database, Link, place_of
from foqs.store.ownership import read_shard_row, refuse_foreign
from foqs.store.protocol import ShardRefused, StoreBusy, StoreDown, StoreError, explained
from foqs.zk.inspect import read_shards

_IO_TIMEOUT_S = 60.0
_MYSQL_BEGIN = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)


@dataclass(frozen=True, slots=True)
class Piece:
    """The items of a shard with low < id <= high, which one task reads."""

    shard: int
    url: str = field(repr=False)
    low: int
    high: int


def pieces(options: SnapshotOptions) -> list[Piece]:
    """Return the ranges of all shards. Raises Invalid, Unavailable, Forbidden."""
    known: set[int] = set()
    found: list[Piece] = []
    for said, url in _places(options):
        number = _number(url) if said is None else said
        if number in known:
            raise Invalid(f"shard {number} is named twice, or two of the databases hold it")
        known.add(number)
        found += [Piece(number, url, *ids) for ids in _ranges(number, url, options.partitions_per_shard)]
    return found


@contextmanager
def snapshot(number: int | None, url: str) -> Iterator[tuple[Any, Database, Link]]:
    """Yield the row of `shard`, and a connection in a read-only transaction that sees the data committed before it
    began and takes no locks. Raises Unavailable and Invalid, also for errors of the driver inside the block."""
    name = f"the shard at {_place(url)}" if number is None else f"shard {number}"
    try:
        database = Database(url, io_timeout_s=_IO_TIMEOUT_S)
        with database.seam():
            database.refuse_missing()
            link = Link(database)
            try:
                row = read_shard_row(link.connection, database.seam_errors)
                refuse_foreign(row, number)
                for statement in ("BEGIN",) if database.is_file else _MYSQL_BEGIN:
                    link.execute(statement)
                yield row, database, link
            finally:
                link.close()
    # Not chained: a driver's text may hold SQL, and Spark prints every cause.
    except (StoreDown, StoreBusy) as error:
        raise Unavailable(f"{name} cannot be read: {error}") from None
    except (ShardRefused, StoreError) as error:
        raise Invalid(f"{name} cannot be read: {explained(error)}") from None


def clock_ms(options: SnapshotOptions) -> int:
    """Return the time by which hosts judge the items (Unix epoch, milliseconds): the median of the clocks of the
    database servers, the earlier of two. Raises Invalid, Unavailable, Forbidden."""
    servers: dict[str, str] = {}
    for _, url in _places(options):
        place = place_of(url)
        servers.setdefault(url if place is None else place[0], url)  # a text that is no URL fails below
    times = sorted(map(_time_ms, servers.values()))
    return times[(len(times) - 1) // 2]


def _time_ms(url: str) -> int:
    with snapshot(None, url) as (_, database, link):
        ((now_ms,),) = link.fetch(reads.clock_sql(SQLITE if database.is_file else MYSQL))
        return int(now_ms)


def _place(text: str) -> str:
    """Return a URL without user, password and options."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return "an unknown place"
    return str(URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database))


def _places(options: SnapshotOptions) -> list[tuple[int | None, str]]:
    if options.shards is not None:
        places = options.urls
    elif options.config is not None:
        config = load(Path(options.config))
        if config.zookeeper is not None:
            places = _registered(config.zookeeper)
        else:
            places = [(shard.id, shard.url) for shard in config.shards]
        if not places:
            raise Invalid("option config: the file names neither [[shards]] nor [zookeeper]")
    else:
        places = _registered(options.section)
    return [(number, _as_user(url, options)) for number, url in places]


def _registered(section: ZookeeperSection) -> list[tuple[int | None, str]]:
    return [(fact.id, fact.url) for fact in read_shards(section)]


def _as_user(text: str, options: SnapshotOptions) -> str:
    if options.user is None:
        return text
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return text  # the first connection reports an invalid URL
    if url.get_backend_name() == "sqlite":
        return text
    named = url._replace(username=options.user, password=options.password)
    return named.render_as_string(hide_password=False)


def _number(url: str) -> int:
    with snapshot(None, url) as (row, _, _):
        return int(row.number)


def _ranges(number: int, url: str, parts: int) -> list[tuple[int, int]]:
    if parts == 1:
        return ranges(None, None, 1)
    with snapshot(number, url) as (_, _, link):
        ((least, greatest),) = link.fetch("SELECT MIN(id), MAX(id) FROM item")
    return ranges(least, greatest, parts)
