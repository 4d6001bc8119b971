"""Rows that arrive one by one, and are inserted many at a time.

foqs worker examples.bulk:app
seq 100000 | python -m examples.bulk
"""

import os
import sqlite3
import sys
from contextlib import closing

from foqs import App, Call

app = App.from_env()


def row(number: int, text: str = "") -> None:
    """The parameters of a call."""


@app.task(topic="rows", batch=500, batch_wait=0.5, arguments=row)
def insert(calls: list[Call]) -> None:
    rows = [(call.job.id, call.kwargs["number"], call.kwargs.get("text", "")) for call in calls]
    with closing(sqlite3.connect(os.environ.get("ROWS_DB", "rows.db"))) as database, database as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, number INTEGER, text TEXT)")
        connection.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?)", rows)  # a call may come again


if __name__ == "__main__":
    messages = [insert.message(int(line)) for line in sys.stdin]
    refused = [outcome for outcome in app.enqueue_many(messages) if isinstance(outcome, Exception)]
    print(f"{len(messages) - len(refused)} stored, {len(refused)} refused {refused[:3]}")
