"""The keys of topics in order, for pages of topics.

New keys wait unsorted until a reader needs them, and the reader sorts a bounded number at a time. So a host that opens
100,000 topics sorts none of them for its own work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable

from foqs.fairness.keys import TopicKey

_PIECE = 500
"""Keys are kept in pieces of up to twice this many: an insertion moves the keys of one piece."""


class TopicOrder:
    """`used_ms` is when the last page was read."""

    __slots__ = ("_ends", "_pieces", "_unsorted", "used_ms")

    def __init__(self, keys: Iterable[TopicKey]) -> None:
        self.used_ms = 0
        self._unsorted = list(keys)
        self._pieces: list[list[TopicKey]] = []
        self._ends: list[TopicKey] = []  # the last key of each piece

    def add(self, key: TopicKey) -> None:
        self._unsorted.append(key)

    def discard(self, key: TopicKey) -> None:
        at = bisect_left(self._ends, key)
        if at == len(self._ends):
            return
        piece = self._pieces[at]
        inside = bisect_left(piece, key)
        if piece[inside] != key:
            return  # not sorted yet: `sort` drops it
        del piece[inside]
        if piece:
            self._ends[at] = piece[-1]
        else:
            del self._pieces[at], self._ends[at]

    def sort(self, most: int, known: Container[TopicKey]) -> bool:
        """Sort `most` of the new keys that are still in `known`. Return whether unsorted keys are left."""
        unsorted = self._unsorted
        for _ in range(min(most, len(unsorted))):
            key = unsorted.pop()
            if key in known:
                self._insert(key)
        return bool(unsorted)

    def _insert(self, key: TopicKey) -> None:
        if not self._pieces:
            self._pieces.append([key])
            self._ends.append(key)
            return
        at = min(bisect_left(self._ends, key), len(self._ends) - 1)
        piece = self._pieces[at]
        inside = bisect_left(piece, key)
        if inside < len(piece) and piece[inside] == key:
            return  # the topic ended and began again
        piece.insert(inside, key)
        if len(piece) > 2 * _PIECE:
            self._pieces.insert(at, piece[:_PIECE])
            self._ends.insert(at, piece[_PIECE - 1])
            del piece[:_PIECE]
            at += 1
        self._ends[at] = piece[-1]

    def after(self, key: TopicKey, most: int) -> list[TopicKey]:
        """Return the first sorted keys behind `key`, at most `most`."""
        keys: list[TopicKey] = []
        for at in range(bisect_right(self._ends, key), len(self._ends)):
            piece = self._pieces[at]
            start = bisect_right(piece, key)
            keys += piece[start : start + most - len(keys)]
            if len(keys) == most:
                break
        return keys

    def __repr__(self) -> str:
        return f"TopicOrder({sum(map(len, self._pieces))} sorted, {len(self._unsorted)} not)"
