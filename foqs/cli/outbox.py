"""`foqs outbox`: items that an application has stored in its own database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.checks import counted, printable
from foqs.cli.connection import Connection
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.terminal import Column, duration, fail, in_table, listing, piped
from foqs.errors import Invalid

if TYPE_CHECKING:
    from sqlalchemy import Connection as Database
    from sqlalchemy import Engine, Table

URL = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        envvar="FOQS_OUTBOX_URL",
        help="The SQLAlchemy URL of the application's database, such as postgresql+psycopg://user:password@db/shop.",
    ),
]
TableOption = Annotated[
    str, typer.Option("--table", metavar="[SCHEMA.]NAME", help="The outbox is in this table of the database.")
]
DEFAULT_TABLE = "foqs_outbox"
MOST_BATCH = 1_000

app = typer.Typer()
outboxes = commands(
    app,
    "outbox",
    "Enqueue items that an application stores in its own database.",
    "foqs outbox relay postgresql+psycopg://app@db/shop --ns shop",
    "foqs outbox held postgresql+psycopg://app@db/shop",
)


@command(
    outboxes,
    "foqs outbox relay postgresql+psycopg://app@db/shop --ns shop",
    "foqs outbox relay mysql+pymysql://app@db/shop --ns shop --unordered",
    "foqs outbox relay sqlite:///shop.sqlite3 --once",
)
def relay(
    url: URL,
    table: TableOption = DEFAULT_TABLE,
    order: Annotated[
        bool,
        typer.Option(
            "--order/--unordered",
            help="Each row is enqueued after the lower ids, by one relay. --unordered: relays share the rows.",
        ),
    ] = True,
    batch: Annotated[int, typer.Option(min=1, max=MOST_BATCH, help="A transaction takes this many rows.")] = 100,
    poll_ms: Annotated[
        int, typer.Option(min=1, max=60_000, help="An empty outbox is looked at again after this time (ms).")
    ] = 500,
    once: Annotated[
        bool, typer.Option("--once", help="The command ends when the outbox is empty, and at the first error.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Enqueue the rows of an outbox and delete them, until SIGTERM.

    The relay continues after errors of the database and of the service. A row whose item is refused, or that has waited
    after its first attempt until the service may have forgotten its dedup key, is held: `foqs outbox held` lists it.
    Another signal, more than a second later, ends the command at once.
    """
    import os
    import signal
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    from foqs.client.signals import stop_signals
    from foqs.outbox.relay import Relay, check_table

    stop = Event()

    def end(number: int) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    with (
        _opened(url, table) as (engine, rows),
        connection.client(routing=True) as client,
        closing(Relay(engine, rows, client, in_order=order, batch=batch)) as relaying,
    ):
        if once:
            with _typed_errors():
                check_table(engine, rows)
                if not relaying.has_outbox():
                    fail(f"another relay has the outbox {printable(rows.fullname)}: end it, or give --unordered")
                while relaying.round():
                    pass
            return
        with stop_signals(end), ThreadPoolExecutor(1) as pool:  # in a driver's C code the main thread takes no signal
            pool.submit(relaying.run, stop, poll_ms / 1000).result()


@command(
    outboxes, "foqs outbox held postgresql+psycopg://app@db/shop", "foqs outbox held sqlite:///shop.sqlite3 --json"
)
@piped
def held(url: URL, table: TableOption = DEFAULT_TABLE, as_json: JsonOption = False) -> None:
    """List the rows that the relay holds, with the reasons.

    The list is a table on a terminal, else JSON lines. `foqs item --dedup-key KEY` shows if the item is stored. To drop
    a row, delete it from the table.
    """
    from sqlalchemy import select

    with _opened(url, table) as (engine, rows), _transaction(engine, rows) as database:
        found = database.execute(select(rows).where(rows.c.error.is_not(None)).order_by(rows.c.id)).all()
    records = [_record(row) for row in found]
    if records or not in_table(as_json):
        listing(records, _columns(), as_json, lambda record: record)
    else:
        print(f"{printable(rows.fullname)} holds no row")


@command(
    outboxes,
    "foqs outbox retry postgresql+psycopg://app@db/shop --row 17 --row 18",
    "foqs outbox retry sqlite:///shop.sqlite3 --all",
)
def retry(
    url: URL,
    row: Annotated[
        list[int] | None,
        typer.Option(min=1, help="This held row is meant, by its id. Repeat the option for several rows."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All held rows are meant.")] = False,
    table: TableOption = DEFAULT_TABLE,
) -> None:
    """Let the relay send held rows again, as if for the first time.

    An item that was stored before the service forgot its dedup key is then stored twice.
    """
    from sqlalchemy import update

    if bool(row) == every:
        fail("give --row with the id of a row that `foqs outbox held` lists, or --all", 2)
    with _opened(url, table) as (engine, rows), _transaction(engine, rows) as database:
        freed = update(rows).where(rows.c.error.is_not(None)).values(error=None, attempted_at_ms=None)
        count = database.execute(freed.where(rows.c.id.in_(row)) if row else freed).rowcount
    print(f"the relay sends {counted(count, 'row')} again")
    if row and count < len(set(row)):
        fail(f"the outbox does not hold {counted(len(set(row)) - count, 'row')} of these ids")


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Report an error of the database as a typed one."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        raise Invalid(f"the database: {error.orig}") from None


@contextmanager
def _opened(url: str, table: str) -> Iterator[tuple[Engine, Table]]:
    from sqlalchemy import MetaData

    from foqs.outbox import Outbox
    from foqs.outbox.relay import open_engine

    schema, _, name = table.rpartition(".")
    engine = open_engine(url)
    try:
        yield engine, Outbox(MetaData(schema=schema or None), name).table
    finally:
        engine.dispose()


@contextmanager
def _transaction(engine: Engine, table: Table) -> Iterator[Database]:
    from foqs.outbox.relay import check_table

    with _typed_errors():
        check_table(engine, table)
        with engine.begin() as database:
            yield database


def _record(row: Any) -> dict[str, Any]:
    from foqs.outbox.table import item_of

    try:
        spec = item_of(row.item)
        of_item = {"topic": spec.topic, "dedup_key": spec.dedup_key}
    except Invalid:
        of_item = {}
    times = {"created_at_ms": row.created_at_ms, "attempted_at_ms": row.attempted_at_ms}
    return {"id": row.id, **of_item, **times, "error": row.error}


def _columns() -> list[Column[dict[str, Any]]]:
    import time

    def age(record: dict[str, Any]) -> str:
        return duration(int(time.time() * 1000) - record["created_at_ms"])

    return [
        Column("id", lambda record: str(record["id"])),
        Column("topic", lambda record: printable(record.get("topic", "")) or None, "folded"),
        Column("age", age),
        Column("dedup key", lambda record: printable(record.get("dedup_key") or "") or None, "folded"),
        Column("error", lambda record: printable(record["error"]), "folded"),
    ]
