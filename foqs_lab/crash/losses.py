"""Named losses: changes that an older copy of a database may have undone.

The checks of a history ask here before they report a change as lost. Each answer of True is counted, by the fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

from foqs.ids import shard_of
from foqs_lab.crash.history import Event, Loss

NEVER = 1 << 62


class Losses:
    """The losses of a run. All times are ns of the monotonic clock. All ids belong to items."""

    def __init__(self, losses: Iterable[Loss] = ()) -> None:
        self.all = sorted(losses)
        self._of: dict[int, list[Loss]] = defaultdict(list)
        self._named: dict[tuple[str, str], set[Hashable]] = defaultdict(set)
        for loss in self.all:
            for shard in loss.shards:
                self._of[shard].append(loss)

    def of(self, item_id: int) -> list[Loss]:
        """Return the losses of the item's shard."""
        return self._of.get(shard_of(item_id), [])

    def undone(self, what: str, item_id: int, began: int, ended: int, seen: int = NEVER) -> bool:
        """Return True if a change that was made between `began` and `ended` may have been undone when something that
        ended at `seen` saw its absence. Then it is counted once as `what`."""
        for loss in self.of(item_id):
            if began < loss.ended and ended > loss.began and seen > loss.ended:
                self._named[loss.what, what].add((item_id, began))
                return True
        return False

    def certain(self, item_id: int, began: int, ended: int) -> bool:
        """Return True if a change that was requested at `began` and confirmed at `ended` is undone for certain."""
        return any(began >= loss.copied and ended <= loss.ended for loss in self.of(item_id))

    def forgot_leases(self, what: str, item_id: int, began: int, ended: int) -> bool:
        """Return True if the leases of the item's shard ended at a moment in between. Then it is counted as `what`."""
        for loss in self.of(item_id):
            if began < loss.back and ended > loss.ended:
                self._named[loss.what, what].add((item_id, began))
                return True
        return False

    def name(self, loss: Loss, what: str, which: Hashable) -> None:
        """Count a loss that the caller has decided about."""
        self._named[loss.what, what].add(which)

    def named(self) -> dict[str, Counter[str]]:
        """Return the number of named losses by fault and by their kind."""
        found: dict[str, Counter[str]] = {loss.what: Counter() for loss in self.all}
        for (fault, what), which in sorted(self._named.items()):
            found[fault][what] = len(which)
        return found

    def __str__(self) -> str:
        """One line for each fault that occurred: `3 database_restored: 41 items lost, 60 acks undone`."""
        times = Counter(loss.what for loss in self.all)
        lines = []
        for fault, counts in self.named().items():
            said = ", ".join(f"{count:,} {what}" for what, count in counts.items()) or "nothing was lost"
            lines.append(f"losses of {times[fault]} {fault}: {said}, all in their windows")
        return "\n  ".join(lines)


def losses_of(events: Iterable[Event]) -> Losses:
    return Losses(event for event in events if isinstance(event, Loss))
