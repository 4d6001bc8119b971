"""When a shard was open here."""

from __future__ import annotations

from typing import Any


class Tenure:
    """The time between the opening of a shard and its end. `shard` is None when it is over.

    Tenures are numbered in the order in which they began."""

    __slots__ = ("number", "shard")

    def __init__(self, number: int, shard: Any) -> None:
        self.number = number
        self.shard = shard
