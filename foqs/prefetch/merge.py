"""The k-way merge of a lane's windows over shards, by lane order.

Windows are sorted lists, so the first n of their union are found by sorting the first of each: Timsort (Peters,
listsort.txt) sees k runs and merges them in C, several times faster than a heap of heads in Python. Merging is
right only as far as every window is known: behind the `end` of a window that has more, another shard's entry may
not overtake rows that were not read yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from foqs.prefetch.lane import Lane
from foqs.prefetch.window import Entry, T, Window
from foqs.rows import Key

_CUT_ITEMS = 32
"""For fewer items, sorting that many of each window is cheaper than finding those that can be among the first."""
LOWEST: Key = (-(1 << 63), 0, 0)


def bound_of(windows: Sequence[Window[T]]) -> Key | None:
    """Return the last key up to which all `windows` are known; None when all of them are complete."""
    ends = [window.end or LOWEST for window in windows if window.more]
    return min(ends) if ends else None


def first(windows: Sequence[Window[T]], count: int, bound: Key | None) -> list[Entry[T]]:
    """Up to `count` entries of `windows` in lane order, none behind `bound`. Takes nothing out."""
    if len(windows) == 1:
        entries = windows[0].entries[:count]
    elif count == 1:
        heads = [window.entries[0] for window in windows if window.entries]
        entries = [min(heads)] if heads else []
    else:
        last = _last_of(windows, count) if count >= _CUT_ITEMS else None
        entries = []
        for window in windows:
            most = min(count, len(window.entries))
            entries += window.entries[: most if last is None else bisect_right(window.entries, last, 0, most)]
        entries.sort()
        del entries[count:]
    if bound is not None and entries and entries[-1][:3] > bound:
        del entries[bisect_right(entries, bound, key=_key_of) :]
    return entries


def _last_of(windows: Sequence[Window[T]], count: int) -> Entry[T] | None:
    """Return an entry behind which none of the first `count` stand; None if the windows are short.

    Up to it, either one window has `count` entries, or each of them has its share. The first is close where items came
    in batches, as a batch is stored on one shard; the second where the shards took turns."""
    lasts = [window.entries[count - 1] for window in windows if len(window.entries) >= count]
    share = -(-count // len(windows))
    if min([len(window.entries) for window in windows]) >= share:
        lasts.append(max([window.entries[share - 1] for window in windows]))
    return min(lasts, default=None)


def _key_of(entry: Entry[T]) -> Key:
    return entry[:3]


def take(lanes: Sequence[Lane[T]], last: Entry[T]) -> None:
    """Removes all entries up to and including `last` from the lanes' windows: they are leased."""
    for lane in lanes:
        window = lane.window
        if window is not None and window.entries and window.entries[0] <= last:
            lane.lease(window.take(last))
