"""The options and columns of readers and writers, checked together before a task begins. Errors name all faults.

Spark passes options as text, with names in any case, and adds its own. Names of columns match in any case, as in Spark.
With the option `extraColumns=headers`, each other column is a header of the item: the writer stores it there, and the
readers take it from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

from foqs.bounds import LIMITS
from foqs.checks import LONGEST_MS
from foqs.errors import Invalid

if TYPE_CHECKING:
    from foqs.client import Client

ExtraColumns = Literal["refuse", "headers"]
"""What a column is whose name is none of ours: an error, or a header of the item."""

_OF_SPARK = frozenset(
    {
        "path", "checkpointlocation", "provider", "owner", "location", "comment", "collation", "external",
        "is_managed_location", "serialization.format", "transient_lastddltime",
    }
)  # fmt: skip
"""Options that Spark and its catalogs add."""
_OF_SPARK_PREFIXES = ("spark.", "view.")
_OF_TABLE = "option."
"""Prefix of the options among the properties of a catalog's table. The other properties belong to the catalog."""
_NONE_GIVEN = (
    ". Spark gave no option: it does not pass on the options of CREATE TABLE. Use CREATE TEMPORARY VIEW name USING "
    "foqs OPTIONS (...), or name the options in each statement: INSERT INTO name WITH ('endpoints' = '...', ...) "
    "VALUES ..."
)


MiB = 1 << 20
_JOB = re.compile(r"[\w.-]{1,100}", re.ASCII)
HEADERS = "headers"
_TEXT = ("string",)
_BYTES = ("binary", "string")
_NUMBER = ("tinyint", "smallint", "int", "bigint")
WRITE_COLUMNS = {
    "topic": _TEXT,
    "payload": _BYTES,
    "priority": _NUMBER[:-1],
    "deliver_after": ("timestamp",),
    "delay_ms": _NUMBER,
    "lease_ms": _NUMBER,
    "ttl_ms": _NUMBER,
    "expires_at": ("timestamp",),
    "metadata": _BYTES,
    "headers": ("map<string,string>",),
    "delivery": _TEXT,
    "dedup_key": _TEXT,
    "dedup_until": _TEXT,
    "on_duplicate": _TEXT,
    "fairness_key": _TEXT,
    "throttle_keys": ("array<string>",),
    "weight": _NUMBER[:-1],
    "rules": _TEXT,
    "order_key": _TEXT,
}
HEADER_TYPES = ("string", "boolean", *_NUMBER)
"""Types of a column that is a header: those with one text."""


def of_user(given: Mapping[str, str]) -> dict[str, str]:
    """Return the user's options without those that Spark adds."""
    of_table = {name[len(_OF_TABLE) :]: text for name, text in given.items() if name.lower().startswith(_OF_TABLE)}
    found = of_table or given
    return {
        name: text
        for name, text in found.items()
        if name.lower() not in _OF_SPARK and not name.lower().startswith(_OF_SPARK_PREFIXES)
    }


class Options(BaseModel):
    """Base of the options of each reader and writer; a field `max_rows` is the option `maxRows`."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, allow_inf_nan=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Validate the options. Raises Invalid, which names every option that is unknown, missing or wrong."""
        known = {alias.lower(): alias for alias in cls.names()}
        named = {known.get(name.lower(), name): text for name, text in of_user(given).items()}
        try:
            return cls.model_validate(named)
        except ValidationError as error:
            wrong = error.errors()
        said = "; ".join(map(_said, wrong))
        if any(one["type"] == "extra_forbidden" for one in wrong):
            said += f"; the options are {', '.join(cls.names())}"
        raise Invalid(said if named else said + _NONE_GIVEN)

    @classmethod
    def names(cls) -> list[str]:
        return [field.alias or name for name, field in cls.model_fields.items()]


class ServiceOptions(Options):
    """Options of a reader or writer that calls the hosts of a service."""

    endpoints: str
    namespace: str
    topic: str | None = None
    token: str | None = Field(default=None, repr=False)
    tls: str | None = None

    @field_validator("endpoints", "namespace", "topic", "token", "tls")
    @classmethod
    def _usable(cls, given: str | None, info: ValidationInfo) -> str | None:
        """Refuse what no client takes, before tasks begin."""
        from foqs.client.routes import parse_addresses
        from foqs.client.tls import Tls

        try:
            if given is not None and info.field_name == "endpoints":
                parse_addresses(given)
            elif given is not None and info.field_name == "tls":
                Tls.parse(given)
        except Invalid as error:
            raise ValueError(error.message.removeprefix("tls: ")) from None
        if given == "":
            raise ValueError("it is empty: give a value, or leave the option out")
        return given

    def client(self, **more: Any) -> Client:
        """Return a client of the service; `more` are further arguments."""
        from foqs.client import Client

        return Client(self.endpoints, self.namespace, token=self.token, tls=self.tls, **more)


def _said(error: Any) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"option {name} is missing"
    if error["type"] == "extra_forbidden":
        return f"option {name} is unknown"
    said: str = error["msg"].removeprefix("Value error, ")
    return f"option {name}: {said}" if name else said


def columns_of(schema: Any) -> list[tuple[str, str]]:
    """Names of a Spark StructType, and Spark's simple names of their types."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def problems(
    found: Iterable[tuple[str, str]], known: Mapping[str, tuple[str, ...]], extra: tuple[str, ...] = ()
) -> list[str]:
    """Return the errors in the names and types `found`. `known` has the allowed types by name, `extra` those of a
    column that is a header: none without extraColumns=headers."""
    wrong = []
    seen = set()
    for name, kind in found:
        our = name.lower() if name.lower() in known else name  # headers have a case
        if our not in known and not extra:
            wrong.append(
                f"column {name} is unknown: the columns are {', '.join(known)} (with the option extraColumns=headers "
                "each other column is a header)"
            )
        elif our not in known and kind not in extra:
            wrong.append(f"column {name} is {kind}, and a header is {' or '.join(extra)}: cast it in the query")
        elif our in seen:
            wrong.append(f"column {our} is there twice")
        elif our in known and kind not in known[our]:
            wrong.append(f"column {name} is {kind}, not {' or '.join(known[our])}")
        seen.add(our)
    return wrong


@dataclass(frozen=True, slots=True)
class Reading:
    """How a reader makes the columns of a schema: `names` are the foqs columns that it needs, each once. `sources` has
    for each column of the schema the place in `names`, or the name of a header."""

    names: list[str]
    sources: tuple[int | str, ...]

    def columns(self, found: Sequence[Any]) -> list[Any]:
        """Return the columns of the schema, as Arrow, made of those of `names`."""
        return [found[source] if isinstance(source, int) else self._header(found, source) for source in self.sources]

    def _header(self, found: Sequence[Any], name: str) -> Any:
        import pyarrow.compute as pc  # options are checked where PyArrow is not installed

        return pc.map_lookup(found[self.names.index(HEADERS)], query_key=name, occurrence="first")


def read_as(schema: Any, known: Mapping[str, str], extra: ExtraColumns = "refuse") -> Reading:
    """Return how to read the columns of a reader's schema. Raises Invalid."""
    found = columns_of(schema)
    kinds = ("string",) if extra == "headers" else ()
    if wrong := problems(found, {name: (kind,) for name, kind in known.items()}, kinds):
        hint = "; cast it in the query (CAST(payload AS STRING))" if any(", not " in one for one in wrong) else ""
        raise Invalid("the schema is wrong: " + "; ".join(wrong) + hint)
    ours = [name.lower() if name.lower() in known else None for name, _ in found]
    names = [name for name in ours if name is not None]
    if None in ours and HEADERS not in names:
        names.append(HEADERS)
    sources = (name if our is None else names.index(our) for our, (name, _) in zip(ours, found, strict=True))
    return Reading(names, tuple(sources))


def check_columns(columns: Iterable[tuple[str, str]], *, has_topic: bool, extra: ExtraColumns = "refuse") -> None:
    """Check `columns`: pairs of a name and Spark's simple name of the type. Raises Invalid, which names every wrong
    column."""
    found = list(columns)
    names = {name.lower() for name, _ in found}
    wrong = problems(found, WRITE_COLUMNS, HEADER_TYPES if extra == "headers" else ())
    if "payload" not in names:
        wrong.append("column payload is missing")
    if "topic" not in names and not has_topic:
        wrong.append("column topic is missing, and so is the option topic")
    if {"deliver_after", "delay_ms"} <= names:
        wrong.append("give the column deliver_after or delay_ms, not both")
    if wrong:
        raise Invalid("; ".join(wrong))


def write_schema(*, with_topic: bool) -> str:
    """Columns of a SQL table that is declared without any, as DDL."""
    kinds = {name: kinds[-1] if name != "priority" else "int" for name, kinds in WRITE_COLUMNS.items()}
    left_out = {"delay_ms"} if with_topic else {"delay_ms", "topic"}
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items() if name not in left_out)


class WriteOptions(ServiceOptions):
    """Options of `df.write` and `df.writeStream`. `max_rows_per_second` applies to all tasks that run at a time
    together, 0: no limit; `tasks` is their number. `job_id` names a write of a frame, so that it can be repeated.
    `equal_rows_path` is a folder or URL that the driver and all tasks can use. With `extra_columns=headers` each other
    column of a frame is a header of its items."""

    dedup_keys: Literal["auto", "row", "partition", "none"] = "auto"
    job_id: str | None = None
    batch_rows: Annotated[int, Field(ge=1, le=LIMITS.request_items)] = 2_000
    batch_bytes: Annotated[int, Field(ge=1, le=12 * MiB)] = 4 * MiB
    in_flight: Annotated[int, Field(ge=1, le=64)] = 4
    timeout_ms: Annotated[int, Field(ge=1, le=LONGEST_MS)] = 600_000
    max_rows_per_second: Annotated[float | None, Field(ge=0, le=1e9)] = None
    tasks: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    on_invalid: Literal["fail", "collect"] = "fail"
    invalid_path: str | None = None
    metrics_path: str | None = None
    equal_rows_path: Annotated[str | None, Field(min_length=1)] = None
    extra_columns: ExtraColumns = "refuse"

    @field_validator("job_id")
    @classmethod
    def _short(cls, given: str | None) -> str | None:
        if given is not None and not _JOB.fullmatch(given):
            raise ValueError(f"{given!r} is not 1 to 100 letters, digits, dots, dashes and underscores")
        return given

    @model_validator(mode="after")
    def _belong_together(self) -> WriteOptions:
        if self.on_invalid == "collect" and self.invalid_path is None:
            raise ValueError("onInvalid=collect needs the option invalidPath")
        if self.max_rows_per_second and self.tasks is None:
            raise ValueError("maxRowsPerSecond needs the option tasks: the number of tasks that write at a time")
        return self

    @property
    def rows_per_second(self) -> float | None:
        """Return the share of one task."""
        if not self.max_rows_per_second or self.tasks is None:
            return None
        return self.max_rows_per_second / self.tasks


class ConsumeOptions(ServiceOptions):
    """endpoints        `host:port`, several with commas
    namespace           namespace of the items
    topic               one topic, or several with commas; each gets its share of a batch
    state_dir           absolute path of a folder for this query only; keep it while the checkpoint exists. On a disk
                        of the driver's machine, or on a shared one if the driver may move; only the driver reads it.
                        It contains bodies of items, so protect it like them
    token               credential, if the service requires one, or `@path` of a file (on the driver's machine)
    tls                 as for the client: `on`, or `ca_file=...,cert_file=...,key_file=...,server_name=...`
    lease_ms            lease time of the items, 100 ms to 12 h; extended after a third of it
    max_items_per_batch 1 to 10,000
    max_bytes_per_batch bytes of payloads, metadata and headers; the last item of each connection may exceed its share.
                        The partitions contain the rows, so the driver holds a few copies of a batch while Spark plans
                        it, and one of the next batch
    partitions          tasks that share a batch, 1 to 1,000
    connections         requests to the service at a time, for leases and again for acks, 1 to 64
    wait_ms             longest wait of a trigger for a first item, 0 (at once) to 60,000; stopping the query waits for
                        it too
    timeout_ms          time-out of each call of the service, 1 to 600,000
    extra_columns       `headers`: each other column of the schema is a header of the item
    """

    topic: str
    state_dir: str
    lease_ms: int = Field(default=60_000, ge=LIMITS.lease_min_ms, le=LIMITS.lease_max_ms)
    max_items_per_batch: int = Field(default=1_000, ge=1, le=LIMITS.request_items)
    max_bytes_per_batch: int = Field(default=16 << 20, ge=1, le=1 << 30)
    partitions: int = Field(default=2, ge=1, le=1_000)
    connections: int = Field(default=4, ge=1, le=64)
    wait_ms: int = Field(default=500, ge=0, le=60_000)
    timeout_ms: int = Field(default=30_000, ge=1, le=LIMITS.timeout_max_ms)
    extra_columns: ExtraColumns = "refuse"

    @field_validator("topic")
    @classmethod
    def _topics(cls, given: str) -> str:
        names = _topic_names(given)
        if not names or len(set(names)) != len(names):
            raise ValueError("names no topic, or one twice")
        return given

    @field_validator("state_dir")
    @classmethod
    def _folder(cls, given: str) -> str:
        if not Path(given).is_absolute():
            raise ValueError(
                "is not an absolute path of a folder (the driver writes to it without Spark, so a URL does not work)"
            )
        return given

    @property
    def topics(self) -> list[str]:
        return _topic_names(self.topic)


def _topic_names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]
