"""Rows that wait for the event loop, a page of them in one string.

A row as a tuple takes 100 to 200 bytes, and a shard of 100,000 lanes has 200,000 rows: what they took would stay with
the process, in pieces between the objects that are made of them.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


class RowPages(Generic[Row]):
    """Rows of numbers and bytes, which can be read once. `made` makes a row of its columns."""

    def __init__(self, made: Callable[..., Row]) -> None:
        self._made = made
        self._pages: deque[bytes] = deque()

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add a page of rows."""
        self._pages.append(marshal.dumps([tuple(row) for row in rows]))

    def __iter__(self) -> Iterator[Row]:
        while self._pages:
            yield from starmap(self._made, marshal.loads(self._pages.popleft()))  # bytes of `add`
