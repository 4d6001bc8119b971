"""Copies of a namespace's settings: in ZooKeeper, in a host's memory, and in the database of each shard.

A host acts on no copy that another change has replaced, and on none of another history: whose settings count there is
a decision of the operator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from foqs.errors import Conflict
from foqs.policies.settings import Change, Settings


class Standing(Enum):
    """How a copy stands to the settings that are known."""

    SAME = "same"
    OLDER = "older"
    NEWER = "newer"
    FOREIGN = "of another history"


def standing(copy: Settings, known: Settings) -> Standing:
    """Compare two documents of a namespace. Two that were made apart and have equal entries are of one history."""
    if copy.history.leads_to(known.history):
        return Standing.OLDER if copy.version < known.version else Standing.SAME
    if known.history.leads_to(copy.history):
        return Standing.NEWER
    if copy.entries == known.entries:
        return Standing.NEWER if copy.version > known.version else Standing.OLDER
    return Standing.FOREIGN


def adopt(copy: Settings, place: str) -> Change:
    """Return the change that puts `copy`, found in `place`, where older settings are stored. It raises Conflict."""

    def change(stored: Settings) -> Settings:
        found = standing(copy, stored)
        if found is Standing.FOREIGN:
            raise Conflict(conflict(copy, place, stored, "the cluster"))
        return copy if found is Standing.NEWER else stored

    return change


def conflict(copy: Settings, place: str, other: Settings, other_place: str) -> str:
    """Return an error about two documents, neither of which was made from the other."""
    return (
        f"the settings of namespace {copy.ns} in {place} (version {copy.version}) and in {other_place} "
        f"(version {other.version}) were made apart, and their entries differ"
    )


def remedy(shard: int) -> str:
    """Return the commands that end a conflict of a shard's copy."""
    return (
        f"`foqs shards settings` compares the copies, `foqs shards settings {shard} --export` prints those of shard "
        f"{shard}, and `foqs shards settings {shard} --discard` removes them"
    )


def newest(copies: Iterable[tuple[int, Settings]]) -> dict[str, tuple[int, Settings]]:
    """Return the newest copy of each namespace with its shard. Raises Conflict if copies were made apart."""
    found: dict[str, tuple[int, Settings]] = {}
    for shard, copy in copies:
        before, other = found.get(copy.ns, (shard, copy))
        match standing(copy, other):
            case Standing.FOREIGN:
                low, high = sorted(((shard, copy), (before, other)), key=lambda one: one[0])
                raise Conflict(
                    f"{conflict(low[1], f'shard {low[0]}', high[1], f'shard {high[0]}')}: {remedy(high[0])}; "
                    f"so with {low[0]} for shard {low[0]}"
                )
            case Standing.NEWER:
                found[copy.ns] = shard, copy
            case _:
                found.setdefault(copy.ns, (shard, copy))
    return found


def enough(shards: Collection[int], held: Collection[int]) -> bool:
    """Return True if `held` is a majority of `shards`. Of an even number the lowest counts twice: two majorities
    always have a shard in common, and the lower of two shards suffices."""
    votes = len(shards) + (len(shards) % 2 == 0)
    cast = len(set(shards) & set(held)) + (len(shards) % 2 == 0 and min(shards, default=0) in held)
    return 2 * cast > votes
