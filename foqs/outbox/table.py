"""The table of an outbox, and how an item becomes a row of it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec
from uuid import uuid4

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text
from sqlalchemy.dialects.mysql import LONGTEXT

from foqs.client import Invalid, ItemSpec
from foqs.client.arguments import check_item, spec_entry
from foqs.client.item_copies import spec_json, spec_of_line
from foqs.tasks import Task
from foqs.wire.protocol import encode_struct

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session, scoped_session

    Transaction = Connection | Session | scoped_session[Any]

P = ParamSpec("P")

TABLE = "foqs_outbox"
ERROR_CHARACTERS = 500


class Outbox:
    """A table of items that wait for their enqueue, in the `metadata` of the application: its `create_all`, or Alembic,
    makes the table.

    >>> outbox = Outbox(MetaData())
    >>> with Session(engine) as session, session.begin():           # doctest: +SKIP
    ...     session.add(order)
    ...     outbox.add(session, send_mail, "ada@example.org", subject="hi")

    `foqs outbox relay` enqueues the items once the transaction has committed, and never if it is rolled back.
    With an `AsyncSession`: `await session.run_sync(outbox.add, send_mail, "ada@example.org", subject="hi")`.
    """

    def __init__(self, metadata: MetaData, table: str = TABLE) -> None:
        self.table = Table(
            table,
            metadata,
            Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
            Column("created_at_ms", BigInteger(), nullable=False),
            Column("attempted_at_ms", BigInteger()),
            Column("error", String(ERROR_CHARACTERS)),
            Column("item", Text().with_variant(LONGTEXT(), "mysql", "mariadb"), nullable=False),
            sqlite_autoincrement=True,
        )

    def add(self, transaction: Transaction, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Store a call of a task, or of `task.options(...)`, in the transaction of a `Session` or a `Connection`.
        Return its dedup key.

        Raises Invalid for arguments that do not fit the task, before anything is stored."""
        return self.add_item(transaction, task.message(*args, **kwargs).spec)

    def add_item(self, transaction: Transaction, spec: ItemSpec, /) -> str:
        """Like `add`, for an item that is no call of a task. Raises Invalid for a wrong field."""
        if hasattr(transaction, "run_sync"):
            raise Invalid(
                f"this is of type {type(transaction).__name__}: call `await session.run_sync(outbox.add, task, ...)`"
            )
        fixed = fixed_item(spec_entry(spec), uuid4().hex, now_ms := time.time_ns() // 1_000_000)
        transaction.execute(self.table.insert().values(created_at_ms=now_ms, item=json.dumps(spec_json(fixed))))
        assert fixed.dedup_key is not None
        return fixed.dedup_key


def fixed_item(spec: ItemSpec, key: str, now_ms: int) -> ItemSpec:
    """Return the item with `key` if it has no dedup key, and with its delay and its TTL counted from `now_ms` (Unix
    epoch). Raises Invalid for a wrong field."""
    check_item(spec)
    if spec.order_key:
        raise Invalid("an outbox takes no item with an order_key: its dedup_key decides the shard of an item")
    changes: dict[str, Any] = {}
    if spec.dedup_key is None:
        changes["dedup_key"] = key
    if spec.delay_ms is not None:
        changes |= {"delay_ms": None, "deliver_after_ms": now_ms + spec.delay_ms}
    if spec.ttl_ms is not None:
        changes |= {"ttl_ms": None, "expires_at_ms": now_ms + spec.ttl_ms}
    fixed = replace(spec, **changes)
    encode_struct(fixed)  # refuses what an enqueue would refuse
    return fixed


def item_of(row: object) -> ItemSpec:
    """Return the item of a row, which any program may have written. Raises Invalid."""
    if not isinstance(row, str):  # SQLite stores any type in any column
        raise Invalid(f"the item is of type {type(row).__name__}: it must be text")
    spec = spec_of_line(row.encode(), topic="")
    if spec.dedup_key is None:
        raise Invalid("the item has no dedup_key, so it might be stored twice")
    return spec
