from __future__ import annotations

from heapq import heappush

from foqs.fairness.tenants import Level


class Entrant:
    def __init__(self, seq: int) -> None:
        self.seq = seq


def test_first_skips_stale_entries() -> None:
    level: Level[Entrant] = Level(0)
    old, new, other = Entrant(1), Entrant(2), Entrant(3)
    heappush(level.heap, (0.0, 1, old))
    level.newcomers.extend([(2, new), (3, other)])
    old.seq = new.seq = 0
    level.dropped()
    level.dropped()
    level.took_newcomer = True
    assert level.first() is other
    assert (level.heap, list(level.newcomers), level.stale) == ([], [(3, other)], 0)


def test_stale_entries_are_bounded() -> None:
    level: Level[Entrant] = Level(0)
    kept = [Entrant(at + 1) for at in range(100)]
    for at in range(1_000, 3_000):
        entrant = Entrant(at)
        heappush(level.heap, (float(-at), at, entrant))
        entrant.seq = 0
        level.dropped()
        if at < 1_100:
            heappush(level.heap, (float(at), kept[at - 1_000].seq, kept[at - 1_000]))
        assert len(level.heap) < 350
    assert level.first() is kept[0]
