"""Look-ups of items by id that wait for their shard's next batch."""

from __future__ import annotations

from collections.abc import Callable

from foqs.errors import FoqsError
from foqs.item import Item
from foqs.rows import Found

Look = Callable[[Item | None, Found | None, FoqsError | None], None]
"""Called with the item that an id names, and its rows; None twice where there is none, or the error of the look-up."""


class Looks(dict[int, list[Look]]):
    """The look-ups by id: several callers may ask for one item. `count` is the number of look-ups.

    A dict, because each batch checks whether it is empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def add(self, item_id: int, look: Look) -> None:
        self.setdefault(item_id, []).append(look)
        self.count += 1

    def take(self, item_id: int) -> list[Look]:
        waiting = self.pop(item_id)
        self.count -= len(waiting)
        return waiting
