"""The shards of a snapshot: their places, their clock, and a connection that reads a shard as of one moment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from foqs.checks import PASSWORD_FILE
from foqs.config.load import load
from foqs.config.schema import ZookeeperSection
from foqs.errors import Invalid, Unavailable
from foqs.ids import MAX_SHARD
from foqs.spark.options import ExtraColumns, Options
from foqs.store import reads
from foqs.store.link import Link, open_link, place_of
from foqs.store.ownership import read_shard_row, refuse_foreign
from foqs.store.passwords import placed, with_password
from foqs.store.protocol import ShardRefused, StoreBusy, StoreDown, StoreError, explained
from foqs.zk.inspect import read_shards

STATES = ("ready", "delayed", "leased", "completed", "failed")
"""State by its number in the databases' answers."""
MAX_ID = (1 << 63) - 1
_IO_TIMEOUT_S = 60.0
_NUMBERED = re.compile(r"([0-9]{1,5})=(.+)", re.ASCII)
_Secret = Annotated[str | None, Field(repr=False)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Wanted property of the items; None means any."""

    namespace: str | None = None
    topic: str | None = None
    state: str | None = None

    @property
    def all_lanes(self) -> bool:
        return self.namespace is None and self.topic is None


def ranges(least: int | None, greatest: int | None, parts: int) -> list[tuple[int, int]]:
    """Return `parts` or fewer ranges low < id <= high of equal width between the least and the greatest existing id.
    They are open at both ends, so together they contain every id, also later ones."""
    if least is None or greatest is None:
        return [(0, MAX_ID)]
    width = greatest - least + 1
    inner = sorted({least - 1 + width * part // parts for part in range(1, parts)} - {least - 1})
    bounds = [0, *inner, MAX_ID]
    return list(pairwise(bounds))


class SnapshotOptions(Options):
    """The places of the shards (one of `shards`, `config`, `zookeeper`), and the selection of items.

    `shards`: SQLAlchemy URLs separated by commas or white space, each as a URL or as number=url. `config`: the path of
    a foqs.toml. `zookeeper`: host:port, several separated by commas. `user` and `password` replace the URLs' parts
    (SQLite has none). `page_rows`: items in memory at a time. `extra_columns`: with `headers` each other column of the
    schema is a header of the item.
    """

    shards: _Secret = None
    config: str | None = None
    zookeeper: str | None = None
    zookeeper_root: str = "/foqs"
    zookeeper_auth_scheme: str | None = None
    zookeeper_auth_credential: _Secret = None
    user: str | None = None
    password: _Secret = None
    payloads: bool = False
    partitions_per_shard: Annotated[int, Field(ge=1, le=1_000)] = 1
    page_rows: Annotated[int, Field(ge=1, le=100_000)] = 5_000
    namespace: str | None = None
    topic: str | None = None
    state: Literal["ready", "delayed", "leased", "completed", "failed"] | None = None
    extra_columns: ExtraColumns = "refuse"

    @field_validator("shards")
    @classmethod
    def _listed(cls, text: str | None) -> str | None:
        if text is not None:
            numbers = [number for number, _ in _shard_urls(text)]
            known = [number for number in numbers if number is not None]
            if not numbers:
                raise ValueError("no URL")
            if len(set(known)) != len(known):
                raise ValueError("two shards have the same number")
            if not all(1 <= number <= MAX_SHARD for number in known):
                raise ValueError(f"a shard's number is not in 1..{MAX_SHARD}")
        return text

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        places = (self.shards, self.config, self.zookeeper)
        if sum(place is not None for place in places) != 1:
            raise ValueError("give exactly one of the options shards, config and zookeeper: it names the shards")
        if self.password is not None and self.user is None:
            raise ValueError("option password needs option user")
        return self

    @property
    def urls(self) -> list[tuple[int | None, str]]:
        """Return the number (None if not given) and the URL of each entry of `shards`."""
        return _shard_urls(self.shards or "")

    @property
    def section(self) -> ZookeeperSection:
        """Return the configuration of `zookeeper`. Raises Invalid."""
        try:
            return ZookeeperSection.model_validate(
                {
                    "hosts": self.zookeeper,
                    "root": self.zookeeper_root,
                    "auth_scheme": self.zookeeper_auth_scheme,
                    "auth_credential": self.zookeeper_auth_credential,
                }
            )
        except ValueError as error:
            found: list[Any] = getattr(error, "errors", list)()
            words = "; ".join(f"{'.'.join(map(str, one['loc']))} {one['msg']}".strip() for one in found)
            raise Invalid(f"option zookeeper: {words}") from None

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.namespace, self.topic, self.state)


def _shard_urls(text: str) -> list[tuple[int | None, str]]:
    """Split at commas and white space. A comma inside a URL belongs to it: a new URL begins with a scheme."""
    found: list[tuple[int | None, str]] = []
    for part in re.split(r"\s+|,(?=\s|$|(?:[0-9]+=)?[a-z]+(?:\+[a-z]+)?://)", text):
        if part:
            numbered = _NUMBERED.fullmatch(part)
            found.append((int(numbered[1]), numbered[2]) if numbered else (None, part))
    return found


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
def open_snapshot(number: int | None, url: str) -> Iterator[tuple[Any, Link]]:
    """Yield the row of `shard`, and a connection in a read-only transaction that sees the data committed before it
    began and takes no locks. Raises Unavailable and Invalid, also for errors of the driver inside the block."""
    name = f"the shard at {_place(url)}" if number is None else f"shard {number}"
    try:
        with open_link(url, io_timeout_s=_IO_TIMEOUT_S) as link:
            row = read_shard_row(link)
            refuse_foreign(row, number)
            with link.snapshot():
                yield row, link
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
    with open_snapshot(None, url) as (_, link):
        ((now_ms,),) = link.fetch(reads.clock_sql(link.database.dialect))
        return int(now_ms)


def _place(url: str) -> str:
    """Return a URL without user, password and options."""
    place = place_of(url)
    return "an unknown place" if place is None else "/".join(place)


def _places(options: SnapshotOptions) -> list[tuple[int | None, str]]:
    if options.shards is not None:
        places = options.urls
    elif options.config is not None:
        config = load(Path(options.config))
        if config.zookeeper is not None:
            places = _registered(config.zookeeper)
        else:
            places = [(shard.id, shard.url) for shard in config.shards]
        places = [(number, placed(url, config.store.secrets_dir)) for number, url in places]
        if not places:
            raise Invalid("option config: the file names neither [[shards]] nor [zookeeper]")
    else:
        places = _registered(options.section)
    return [(number, _as_user(url, options)) for number, url in places]


def _registered(section: ZookeeperSection) -> list[tuple[int | None, str]]:
    return [(fact.id, fact.url) for fact in read_shards(section)]


def _as_user(text: str, options: SnapshotOptions) -> str:
    """Return the URL for executors, on whose machines no password files need to be. Raises Invalid."""
    if options.user is None:
        try:
            return with_password(text)
        except ShardRefused as error:
            raise Invalid(explained(error)) from None
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return text  # the first connection reports an invalid URL
    if url.get_backend_name() == "sqlite":
        return text
    named = url.difference_update_query([PASSWORD_FILE])._replace(username=options.user, password=options.password)
    return named.render_as_string(hide_password=False)


def _number(url: str) -> int:
    with open_snapshot(None, url) as (row, _):
        return int(row.number)


def _ranges(number: int, url: str, parts: int) -> list[tuple[int, int]]:
    if parts == 1:
        return ranges(None, None, 1)
    with open_snapshot(number, url) as (_, link):
        ((least, greatest),) = link.fetch("SELECT MIN(id), MAX(id) FROM item")
    return ranges(least, greatest, parts)
