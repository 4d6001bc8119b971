"""The part of the contract that is about reading dead letters in order."""

from __future__ import annotations

import random
from itertools import product

from foqs.policies.failures import FailureFilter
from foqs.rows import Batch, DeadRow, FailureCause, FailureGroup, FailurePosition, FailureRow, NewItem
from foqs.store.protocol import ShardStore
from tests.store.dead_contract import DEAD
from tests.store.row_contract import insert, ready_key, ready_row, timer_row
from tests.store.shards import NOW_MS, new_item

OTHER = DEAD._replace(lane=3, topic=b"other.dlq")
PRINTS = (-(1 << 63), -5, 0, 7, (1 << 63) - 1)
FILTERS = (
    FailureFilter(),
    FailureFilter(fingerprint=-5),
    FailureFilter(fingerprint=PRINTS[0], cause=FailureCause.FAILED),
    FailureFilter(cause=FailureCause.EXPIRED),
    FailureFilter(reason_contains=b"it's \\ 100%"),
    FailureFilter(reason_contains=b"\xff\0"),
    FailureFilter(died_from_ms=NOW_MS + 3, died_before_ms=NOW_MS + 7),
    FailureFilter(min_attempts=2, max_attempts=3),
    FailureFilter(origin_topic=b"two"),
    FailureFilter(fairness=b"acme"),
    FailureFilter(fairness=b""),
    FailureFilter(fingerprint=1),
    FailureFilter(item_id=7),
    *(FailureFilter(fingerprint=one, item_id=7) for one in PRINTS),
    FailureFilter(without=(PRINTS[1], (FailureCause.FAILED, FailureCause.REJECTED))),
)


def stored(store: ShardStore, count: int = 60) -> tuple[list[FailureRow], dict[int, NewItem]]:
    """Store dead letters in lane 2, a third of them in `timer`, and one in lane 3; return those of lane 2 in order."""
    source, rows, items = random.Random(3), [], {}
    for number in range(1, count + 1):
        item = new_item(
            number, lane=2 if number < count else 3, priority=number % 3, expires_at_ms=NOW_MS * (number % 2)
        )
        item.headers = b'{"a": "b"}' if number % 4 else None
        row = FailureRow(
            item.lane, source.choice(PRINTS), item.id, source.choice((FailureCause.FAILED, FailureCause.EXPIRED)),
            source.randrange(1, 5), NOW_MS + source.randrange(10), source.choice((b"one", b"two")),
            source.choice((b"", b"acme")),
            source.choice((b"it's \\ 100% broken", b"no \xff\0", b"")),
        )  # fmt: skip
        items[item.id] = item
        rows.append(row)
    store.commit(Batch(lanes_new=[DEAD, OTHER], next_number=1_000))
    insert(store, *items.values(), next_number=1_000)
    leased = [item for item in items.values() if item.id % 3 == 0]
    store.commit(
        Batch(
            ready_gone=[ready_key(item) for item in leased],
            timer_new=[timer_row(item, NOW_MS, 5, 1, 9) for item in leased],
            failure_new=rows,
            next_number=1_000,
        )
    )
    return sorted(rows[:-1], key=lambda row: (row.fingerprint, row.id)), items


class DeadReadContract:
    """`store` is open, with lane 1."""

    def test_pages_of_dead_letters(self, store: ShardStore) -> None:
        failures, items = stored(store)
        for wanted, (limit, rows) in product(FILTERS, ((500, 10_000), (7, 13), (4, 59), (1, 1))):
            after: FailurePosition | None = None
            found: list[DeadRow] = []
            while True:
                page = store.dead_page(2, after, wanted, limit, rows)
                places = [place(row.failure) for row in page.rows]
                assert len(places) <= limit
                assert after is None or page.next is None or after < page.next
                assert all((after or (-(1 << 63), 0)) < at <= (page.next or at) for at in places)
                found += page.rows
                after = page.next
                if after is None:
                    break
            assert [row.failure for row in found] == [row for row in failures if wanted.matches(row)]
            assert found == [dead_row(row.failure, items) for row in found]

    def test_groups_of_dead_letters(self, store: ShardStore) -> None:
        failures, _ = stored(store)
        for wanted, (limit, rows) in product(FILTERS, ((100, 10_000), (2, 13), (3, 59), (1, 1))):
            after: FailurePosition | None = None
            found: dict[tuple[int, int], FailureGroup] = {}
            while True:
                page = store.failure_groups(2, after, wanted, limit, rows)
                assert [group[:2] for group in page.groups] == sorted(group[:2] for group in page.groups)
                assert len({group.fingerprint for group in page.groups}) <= limit
                for group in page.groups:
                    known = found.get(group[:2])
                    found[group[:2]] = group if known is None else both(known, group)
                after = page.next
                if after is None:
                    break
            expected: dict[tuple[int, int], FailureGroup] = {}
            for row in failures:
                if wanted.matches(row):
                    key, at_ms = (row.fingerprint, row.cause), row.died_at_ms
                    group = FailureGroup(*key, 1, at_ms, at_ms, row.id, row.reason)
                    expected[key] = group if key not in expected else both(expected[key], group)
            assert found == expected


def place(row: FailureRow) -> FailurePosition:
    return row.fingerprint, row.id


def dead_row(failure: FailureRow, items: dict[int, NewItem]) -> DeadRow:
    """The row as `stored` made it."""
    item = items[failure.id]
    about = (item.priority, item.deliver_after_ms, item.expires_at_ms, item.headers)
    if item.id % 3:
        return DeadRow(failure, *about, ready_row(item), None)
    return DeadRow(failure, *about, None, timer_row(item, NOW_MS, 5, 1, 9))


def both(first: FailureGroup, second: FailureGroup) -> FailureGroup:
    """The group of both ranges; the sample of the first range has the lower id."""
    return first._replace(
        items=first.items + second.items,
        first_died_at_ms=min(first.first_died_at_ms, second.first_died_at_ms),
        last_died_at_ms=max(first.last_died_at_ms, second.last_died_at_ms),
    )
