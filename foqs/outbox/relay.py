"""The relay of an outbox: it enqueues the items of committed rows, and deletes the rows.

A round has two transactions. The first one notes the time of the first attempt in each row of a batch, before anything
is sent. The second one sends the items, deletes the rows of stored ones, and takes the time out of rows whose item is
certainly not stored. So a row that a killed relay leaves behind says whether its item may be stored, and since when.
Its dedup key makes a repeated enqueue harmless while the service remembers the key. After that the row is held.

A relay that takes a row with a time makes it a millisecond earlier. So each relay sees whether another one has taken
the row since: it neither sends such a row, nor takes the time out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
from sqlalchemy import Engine, NullPool, bindparam, create_engine, event, func, inspect, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from tenacity import Retrying, retry_if_exception, wait_random_exponential
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set

from foqs.bounds import LIMITS
from foqs.client import FoqsError, Forbidden, Invalid, ItemSpec, Overloaded, Unauthenticated, Unavailable
from foqs.client.call import requests_of
from foqs.outbox.table import ERROR_CHARACTERS, item_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    from foqs.client import Client

log = structlog.get_logger("foqs.outbox")

SENDING_S = 30
"""A round begins no request after this time."""
MARGIN_MS = 120_000
"""A row is not sent again this long before the service may forget its key: more than `SENDING_S`, a request, and the
difference of the clocks of two hosts."""
_LONGEST_PAUSE_S = 10.0
_SHARED_PAUSE_S = 1.0
"""Unordered, new rows wait for the end of a pause that is for rows which stay."""
_LONGEST_REQUEST_BYTES = LIMITS.frame_bytes // 2
_IDLE_S = MARGIN_MS // 1000
_SET_UP = {
    "mysql": f"SET SESSION wait_timeout = {_IDLE_S}",
    "mariadb": f"SET SESSION wait_timeout = {_IDLE_S}",
    "postgresql": f"SELECT set_config('tcp_keepalives_idle', '{_IDLE_S // 2}', false), "
    f"set_config('tcp_keepalives_interval', '{_IDLE_S // 12}', false), set_config('tcp_keepalives_count', '6', false)",
    "sqlite": None,
}
"""By dialect: a server soon ends the session of a machine that is gone, which keeps its locks until then."""


class Batch(NamedTuple):
    """What the first transaction of a round took: the number of rows, and the id of the last. `marks` are the times by
    row, less the late rows, and the rows of `fresh` had none before. The last request begins before `until`, of the
    monotonic clock, in seconds."""

    rows: int
    last: int
    marks: dict[int, int]
    fresh: set[int]
    until: float


class Outcome(NamedTuple):
    """What follows from the answers to a batch: rows to delete, rows to hold, why rows stay, and the rows that were
    not sent."""

    stored: list[int]
    refused: dict[int, str]
    left: dict[int, FoqsError]
    unsent: list[int]

    @property
    def absent(self) -> list[int]:
        """The rows that stay although this round has certainly not stored their items."""
        return [*self.unsent, *(row for row, error in self.left.items() if isinstance(error, _NOT_STORED))]


def is_late(attempted_at_ms: int | None, now_ms: int, window_ms: int) -> bool:
    """Return True if the item of a row may be stored already, and the service may have forgotten its key. Times are
    Unix epoch milliseconds of the service's clock."""
    return attempted_at_ms is not None and now_ms >= attempted_at_ms + window_ms - MARGIN_MS


_NOT_STORED = (Overloaded, Unavailable, Unauthenticated, Forbidden)
"""The client gives OutcomeUnknown instead of these if an earlier request for the item may have stored it. A code of a
newer service, or a closed client, says nothing."""


def outcome_of(ids: Sequence[int], answers: Sequence[int | FoqsError]) -> Outcome:
    """Judge the answers to the first of the rows `ids`, in order. Invalid alone holds a row: after any other error the
    row is sent again."""
    made = Outcome([], {}, {}, [*ids[len(answers) :]])
    for row, answer in zip(ids, answers, strict=False):
        if not isinstance(answer, FoqsError):
            made.stored.append(row)
        elif isinstance(answer, Invalid):
            made.refused[row] = answer.message
        else:
            made.left[row] = answer
    return made


def short_ms(size_bytes: int) -> int:
    """Return the timeout of a request whose closed topics are not waited for: it lasts at 1 MB/s."""
    return 1_000 * (1 + size_bytes // 1_000_000)


def passes(error: BaseException) -> bool:
    """Return True for an error after which the relay continues."""
    if isinstance(error, FoqsError):
        return not isinstance(error, Invalid | Unauthenticated | Forbidden)
    return isinstance(error, DBAPIError)


class Relay:
    """Moves the rows of one outbox to one namespace, on one connection to the database.

    in_order  each row is sent after all lower ids that were committed when its batch was read. One relay works, and
              a second one waits until its connection ends (not on SQLite). Else items of a batch are sent together,
              relays share the rows, and a row that stays holds up no other one
    batch     rows of a round
    """

    def __init__(self, engine: Engine, table: Table, client: Client, *, in_order: bool, batch: int) -> None:
        self._engine = engine
        self._table = table
        self._client = client
        self._in_order = in_order
        self._batch = batch
        self._connection: Connection | None = None
        self._may_work = False
        # Unordered, rows that stay are passed until a sweep ends: of the ids that there were at the first of them.
        self._stays: FoqsError | None = None
        self._after = 0
        self._end = 0

    def run(self, stop: Event, poll_s: float) -> None:
        """Relay until `stop` is set. After an error of the database or of the service it continues, with pauses up to
        10 s, unordered 1 s. At the end its connection is closed. Raises Invalid for a wrong table, and errors that do
        not pass, such as Forbidden."""
        longest_s = _LONGEST_PAUSE_S if self._in_order else _SHARED_PAUSE_S
        retrying = Retrying(
            retry=retry_if_exception(passes), wait=wait_random_exponential(multiplier=0.1, max=longest_s),
            stop=stop_when_event_set(stop), sleep=sleep_using_event(stop), before_sleep=_say,
            retry_error_callback=lambda _: False,
        )  # fmt: skip
        retrying(check_table, self._engine, self._table)
        log.info(
            "outbox.started", table=self._table.fullname, address=self._client.address,
            namespace=self._client.namespace, in_order=self._in_order,
        )  # fmt: skip
        with closing(self):
            while not stop.is_set():
                if not retrying(self.round):
                    stop.wait(poll_s)

    def round(self) -> bool:
        """Relay one batch. Return True if there may be more rows. Raises DBAPIError, and the error of an item that
        must be sent again: unordered, when the rows behind it have been sent."""
        try:
            return self.has_outbox() and self._relay(self._connected())
        except DBAPIError:
            self.close()
            raise

    def has_outbox(self) -> bool:
        """Return False if rows are relayed in order, and another relay does that."""
        if not self._may_work:
            connection = self._connected()
            lock = _lock_of(connection, self._table) if self._in_order else None
            with connection.begin():
                self._may_work = lock is None or bool(connection.scalar(lock))
        return self._may_work

    def close(self) -> None:
        """Close the connection to the database: another relay may work then."""
        connection, self._connection, self._may_work = self._connection, None, False
        if connection is not None:
            connection.close()

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _relay(self, connection: Connection) -> bool:
        with connection.begin():
            batch = self._mark(connection)
        left: dict[int, FoqsError] = {}
        if batch.marks:
            with connection.begin():
                left = self._send(connection, batch)
                if left and self._stays is None:
                    self._end = connection.scalar(select(func.max(self._table.c.id))) or 0
        more = batch.rows == self._batch
        if left:
            self._stays = self._stays or next(iter(left.values()))
            self._after = max(left)
        fatal = next((error for error in left.values() if not passes(error)), None)
        left.clear()
        stays = fatal or self._stays
        try:
            if stays is not None and (fatal or self._in_order or not more or batch.last >= self._end):
                self._stays, self._after = None, 0
                raise stays
        finally:
            del stays, fatal  # or the error would hold itself, by this frame
        return more

    def _mark(self, connection: Connection) -> Batch:
        """Note the attempt in the rows of the next batch, and hold late ones."""
        table = self._table
        waiting = select(table.c.id, table.c.attempted_at_ms).where(table.c.error.is_(None), table.c.id > self._after)
        rows = connection.execute(self._locked(waiting.order_by(table.c.id).limit(self._batch))).all()
        if not rows:
            return Batch(0, 0, {}, set(), 0.0)
        info = self._client.server_info()
        until = monotonic() + SENDING_S
        window_ms = info.limits["dedup_window_ms"]
        late = {row.id: _MAY_BE_STORED for row in rows if is_late(row.attempted_at_ms, info.now_ms, window_ms)}
        self._hold(connection, late)
        first = {row.id: row.attempted_at_ms for row in rows if row.id not in late}
        marks = {row: info.now_ms if at_ms is None else at_ms - 1 for row, at_ms in first.items()}
        if marks:
            marked = table.update().where(table.c.id == bindparam("row")).values(attempted_at_ms=bindparam("at_ms"))
            connection.execute(marked, [{"row": row, "at_ms": at_ms} for row, at_ms in marks.items()])
        fresh = {row for row, at_ms in first.items() if at_ms is None}
        return Batch(len(rows), rows[-1].id, marks, fresh, until)

    def _send(self, connection: Connection, batch: Batch) -> dict[int, FoqsError]:
        """Send the items, and change their rows. Return why rows stay."""
        table = self._table
        chosen = select(table.c.id, table.c.item, table.c.attempted_at_ms)
        chosen = chosen.where(table.c.id.in_(batch.marks), table.c.error.is_(None)).order_by(table.c.id)
        specs: dict[int, ItemSpec] = {}
        wrong: dict[int, str] = {}
        for row in connection.execute(self._locked(chosen)):
            if row.attempted_at_ms != batch.marks[row.id]:
                continue
            try:
                specs[row.id] = item_of(row.item)
            except Invalid as error:
                wrong[row.id] = error.message
        outcome = outcome_of(list(specs), self._answers(list(specs.values()), batch.until))
        this = table.c.id == bindparam("row")
        if outcome.stored:
            connection.execute(table.delete().where(this), [{"row": row} for row in outcome.stored])
        if absent := batch.fresh.intersection(outcome.absent):
            ours = this & (table.c.attempted_at_ms == bindparam("at_ms"))
            unmarked = table.update().where(ours).values(attempted_at_ms=None)
            connection.execute(unmarked, [{"row": row, "at_ms": batch.marks[row]} for row in sorted(absent)])
        self._hold(connection, wrong | outcome.refused)
        return outcome.left

    def _answers(self, specs: Sequence[ItemSpec], until: float) -> list[int | FoqsError]:
        """Send the items, and return their answers: fewer if the time has ended. In order, no item is sent after one
        that is neither stored nor refused. Unordered, the timeout is short."""
        answers: list[int | FoqsError] = []
        for request in zip(specs) if self._in_order else requests_of(specs, _LONGEST_REQUEST_BYTES):
            if monotonic() >= until:
                break
            timeout_ms = None if self._in_order else short_ms(sum(spec.size_bytes for spec in request))
            answers += self._client.enqueue_many(request, timeout_ms=timeout_ms)
            if self._in_order and isinstance(answers[-1], FoqsError) and not isinstance(answers[-1], Invalid):
                break
        return answers

    def _locked(self, rows: Any) -> Any:
        """In order there is one relay. Locks would wait for rows that are not committed."""
        return rows if self._in_order else rows.with_for_update(skip_locked=True)  # SQLAlchemy leaves it out for SQLite

    def _hold(self, connection: Connection, reasons: dict[int, str]) -> None:
        for row, reason in reasons.items():
            error = reason.encode("unicode_escape").decode()[:ERROR_CHARACTERS]  # for a column of any character set
            connection.execute(self._table.update().where(self._table.c.id == row).values(error=error))
            log.error("outbox.held", row=row, reason=error)


_MAY_BE_STORED = "its first attempt is longer ago than the service remembers dedup keys: the item may be stored already"


def open_engine(url: str) -> Engine:
    """Return the engine of the application's database. Raises Invalid for a URL that cannot be used; its text, which
    may hold a password, is not in the error."""
    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise Invalid("the URL of the database is not one that SQLAlchemy can read") from None
    if dialect.name not in _SET_UP:
        raise Invalid(f"the outbox is for MySQL, MariaDB, PostgreSQL and SQLite, not for {dialect.name}")
    if dialect.is_async:
        raise Invalid(f"{parsed.drivername} is a driver for asyncio: name a blocking one, such as postgresql+psycopg")
    # Under InnoDB's default a locking read would lock the gaps, too, and so the applications' inserts.
    options = {} if dialect.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
    try:
        engine = create_engine(parsed, hide_parameters=True, poolclass=NullPool, **options)
    except ModuleNotFoundError as error:
        raise Invalid(f"the driver {error.name} is not installed: install it, or name another one in the URL") from None
    if (statement := _SET_UP[dialect.name]) is not None:

        @event.listens_for(engine, "connect")
        def set_up(dbapi_connection: Any, _: object) -> None:
            with closing(dbapi_connection.cursor()) as cursor:
                cursor.execute(statement)
            dbapi_connection.commit()

    return engine


def _lock_of(connection: Connection, table: Table) -> Any:
    """Return the statement that takes the lock of the relay which works in order, for the life of a connection. None:
    SQLite has no such locks. A schema is a database of MySQL; PostgreSQL has its locks by database."""
    if connection.dialect.name == "sqlite":
        return None
    schema = table.schema or inspect(connection).default_schema_name
    name = sha256(f"{schema}.{table.name}".encode()).hexdigest()
    if connection.dialect.name == "postgresql":
        return select(func.pg_try_advisory_lock(int(name[:15], 16)))
    return select(func.get_lock(f"foqs_outbox {name[:32]}", 0))


def check_table(engine: Engine, table: Table) -> None:
    """Raise Invalid if the database has no table of an outbox with that name."""
    look = inspect(engine)
    if not look.has_table(table.name, table.schema):
        raise Invalid(
            f"the database has no table {table.fullname}: name that of the Outbox by --table, or create it by the "
            "create_all of its metadata"
        )
    found = {column["name"] for column in look.get_columns(table.name, table.schema)}
    if lacks := {*table.columns.keys()} - found:
        raise Invalid(f"the table {table.fullname} is not of an Outbox: it has no column {min(lacks)}")


def _say(state: Any) -> None:
    error = state.outcome.exception()
    log.warning("outbox.retried", reason=str(getattr(error, "orig", None) or error))
