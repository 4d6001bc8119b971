"""Rows of `lane`, and rows that refer to a lane without one: a database that was restored in part.

Such items have no topic. A shard that has any is not opened: nothing of it is handed out under a wrong name, nothing is
removed, and the other shards of the host go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from foqs.fairness.keys import unpack_throttles
from foqs.store.protocol import ShardRefused

REMEDY = (
    "restore all tables from the same backup, or delete the rows of these lanes in item, ready, timer and failure, and "
    "the rows of their items in expiry"
)
_SHOWN = 5
_SHOWN_BYTES = 40
_THROTTLES = 4


def orphans(lanes: Iterable[int], referred: Iterable[int]) -> list[int]:
    """Numbers in `referred` that are not in `lanes`, in order."""
    return sorted(set(referred) - set(lanes))


def words(missing: list[int], tables: str) -> str:
    shown = ", ".join(map(str, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
    one = len(missing) == 1
    return f"rows in {tables} refer to {'lane' if one else f'{len(missing)} lanes'} {shown}, which table lane lacks"


def refuse_orphans(missing: Mapping[int, int]) -> None:
    """`missing` counts the rows of `ready` and `timer` by the lane that they refer to in vain. Raises ShardRefused."""
    if missing:
        raise ShardRefused(f"{sum(missing.values())} {words(sorted(missing), 'ready or timer')}", mend=REMEDY)


def refuse_dead_orphans(missing: Collection[int]) -> None:
    """`missing` are the lanes that rows of `failure` refer to in vain. Raises ShardRefused."""
    if missing:
        raise ShardRefused(words(sorted(missing), "failure"), mend=REMEDY)


def refuse_names(page: Sequence[Sequence[Any]], known: set[bytes]) -> None:
    """`page` has rows of `lane`: number, three names, and with tenancy the throttle set and the weight.

    `known` are throttle sets that were read before. Raises ShardRefused for a name that is not UTF-8.
    """
    try:
        for column in (1, 2, 3):
            b"\0".join([row[column] for row in page]).decode()
        if page and len(page[0]) > _THROTTLES:
            new = {row[_THROTTLES] for row in page} - known
            for one in new:
                unpack_throttles(one)
            known |= new
    except (UnicodeDecodeError, TypeError):
        for lane, *names in page:
            for name in names[:_THROTTLES]:
                _refuse_name(lane, name)


def _refuse_name(lane: int, name: bytes | str) -> None:
    if isinstance(name, str):  # SQLite stores any type
        why = f"lane {lane} in table lane has a name that is text and not bytes: {name[:_SHOWN_BYTES]!r}"
        columns = ", ".join(
            [f"{column} = CAST({column} AS BLOB)" for column in ("ns", "topic", "fairness", "throttles")]
        )
        raise ShardRefused(why, mend=f"UPDATE lane SET {columns}")
    try:
        name.decode()
    except UnicodeDecodeError:
        why = f"lane {lane} in table lane has a name that is not UTF-8: {name[:_SHOWN_BYTES]!r}"
        raise ShardRefused(why, mend="restore table lane from a backup") from None
