"""Rows of SQL text, cut into statements that a server takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from foqs.store.dialect import ROWS, Statement
from foqs.store.protocol import RowRejected

TOO_LARGE = "an item is larger than the server's max_allowed_packet allows"
CASE_ROWS = 100
"""Rows of a CASE: each is compared with every WHEN before its own."""
_STATEMENT_BYTES = 1 << 20

Row = TypeVar("Row")


def insert(made: list[Statement], table: str, rows: list[str]) -> None:
    insert_pieces(made, table, pieces(rows, ROWS))


def insert_pieces(made: list[Statement], table: str, pieces: Iterable[list[str]]) -> None:
    made += [(f"INSERT INTO {table} VALUES {','.join(rows)}", len(rows)) for rows in pieces]


def pieces(rows: list[Row], count: int) -> Sequence[list[Row]]:
    if len(rows) <= count:
        return (rows,) if rows else ()
    return [rows[at : at + count] for at in range(0, len(rows), count)]


def pieces_by_bytes(rows: list[str], max_statement_bytes: int) -> Iterator[list[str]]:
    wanted = min(_STATEMENT_BYTES, max_statement_bytes)
    piece: list[str] = []
    size = 0
    for row in rows:
        length = len(row) + 1
        if size + length > wanted or len(piece) == ROWS:
            if piece:
                yield piece
            piece, size = [], 0
            if length + 256 > max_statement_bytes:
                raise RowRejected(TOO_LARGE)
        piece.append(row)
        size += length
    if piece:
        yield piece
