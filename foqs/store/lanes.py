"""Rows that refer to a lane without a row in `lane`: a database that was restored in part.

Such items have no topic. A shard that has any is not opened: nothing of it is handed out under a wrong name, nothing is
removed, and the other shards of the host go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from foqs.store.protocol import ShardRefused

REMEDY = "restore all tables from the same backup, or delete the rows of these lanes in item, ready, timer and expiry"
_SHOWN = 5


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
        raise ShardRefused(f"{sum(missing.values())} {words(sorted(missing), 'ready or timer')}: {REMEDY}")
