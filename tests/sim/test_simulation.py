"""Runs FOQS_SIM_SEEDS seeds (default 100), or the seed that FOQS_SIM_SEED names.

A failure prints its seed and the last events, or those about the item it names.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kernel import seeds
from tests.kernel.seeds import Kind
from tests.sim.simulation import simulate

_OFTEN = ("enqueue", "delivered", "redelivered", "order", "ack", "nack", "release", "extend", "delete")
_SEEN = ("ack STALE_LEASE", "ack NOT_FOUND", "ack UNAVAILABLE", "nack STALE_LEASE", "ack OUTCOME_UNKNOWN")
_CAUSES = ("ack", "nack", "delete", "ttl", "dropped")
_DEATHS = ("FAILED", "EXPIRED", "REJECTED", "LIMIT")

# A fifth of the seeds for each kind with a name: of its mutants, the seeds up to 100 find all that those up to 250 do.
KINDS = (
    Kind(
        first=12,
        counts={
            **dict.fromkeys(_OFTEN, 21),
            **dict.fromkeys(_SEEN, 1),
            **{f"removed by {cause}": 1 for cause in _CAUSES},
            "served together": 6,
        },
    ),
    Kind("topics", share=5),  # a dequeue that names many topics finds all ready items, however few memory holds
    Kind("lanes", share=5),
    Kind("cut", share=5),  # windows are cut while their pages are read
    Kind("refused", share=5),  # rows are refused while outcomes are lost
    Kind(
        "dead",
        share=5,
        first=8,
        counts={
            **{f"dead {cause}": 11 for cause in _DEATHS},
            "dead": 200,
            "fault": 100,
            "removed by rejected": 6,
            "removed by exhausted": 6,
            "exact attempts": 101,
            "last failures": 200,
            "redriven": 21,
        },
    ),
    Kind(
        "kept",
        share=5,
        first=8,
        counts={
            "kept COMPLETED": 200,
            "kept FAILED": 8,
            "kept and removed": 200,
            "removed above most": 50,
            "result COMPLETED": 50,
            "result FAILED": 10,
            "result NOT_FOUND": 10,
        },
    ),
    Kind(
        "rules",
        share=5,
        first=8,
        counts={"dead": 100, "kept COMPLETED": 50, "redriven": 6, "exact attempts": 50, "uncounted attempts": 5},
    ),
    Kind(
        # The check asked for too much after a pause of the database (393, 471), and of a full one (35); a caller that
        # waited got no end (411).
        "progress",
        share=5,
        first=8,
        counts={"checkpoints": 500, "progress rows": 500, "with checkpoint": 100},
        also=(35, 393, 411, 471),
    ),
    Kind(
        "unique",
        share=5,
        first=16,
        counts={
            "unique stored": 40,
            "unique kept": 60,
            "unique redriven": 1,
            "unique cancelled": 2,
            "unique replaced": 1,
            "redriven": 6,
        },
    ),
    Kind(
        "tenants",
        share=5,
        first=8,
        counts={"redriven": 6, "order": 501, **{f"items of tenant-{n}": 1 for n in range(5)}},
    ),
    Kind("fair", share=5, first=8, counts={"shares": 501, "ranks": 501, "newcomers": 51}),
    # Tenants were skipped for a shard that could lease again (467, 891); two flows returned each other's tokens without
    # end (544).
    Kind(
        "throttles",
        share=5,
        first=4,
        counts={"throttled": 51, "short": 51, "idle tokens": 51, "shares": 51, "given back": 1},
        also=(467, 544, 891),
    ),
    Kind("slots", share=5, first=8, counts={"limited": 51, "at the limit": 51}),
    Kind(
        "schedules",
        share=5,
        first=12,
        counts={
            "times": 400,
            "times again": 6,
            "times refused": 50,
            "times in a row": 200,
            "times skipped": 20,
            "times in pauses": 3,
            "overlaps": 10,
            "rows of schedules": 500,
            "rows of schedules that moved": 10,
        },
    ),
    Kind(
        "changed",
        share=5,
        first=12,
        counts={
            "changed": 200,
            "placed ready": 50,
            "placed delayed": 50,
            "change CONFLICT": 5,
            "change NOT_FOUND": 1,
            "leased in a pause": 50,
        },
    ),
    Kind("full", share=5, first=24, counts={"fitted": 200, "fault": 100, "ack": 400, "tails": 5}),
    # An item was lost whose outcome was known late (33), or that a read dropped (55); a retry with a new priority lost
    # its place (54); a replaced owner read items of a lane that it did not know (217).
    Kind(
        "orders",
        share=5,
        first=12,
        counts={
            "ordered": 500,
            "order first": 500,
            "order chains": 400,
            "order entered": 100,
            "order put off": 20,
            "order home": 1,
        },
        also=(33, 54, 55, 217),
    ),
    Kind(
        "batches",
        share=5,
        first=12,
        counts={
            "batch created": 100,
            "batch members": 200,
            "batch COMPLETED": 50,
            "batch DELETED": 10,
            "batch EXPIRED": 10,
            "batch FAILED": 10,
            "batch redriven": 1,
            "batch swept": 10,
            "batch INVALID": 50,
            "batch handlers": 10,
            "batch in a batch": 5,
            "batch callbacks": 100,
            "batch headers": 50,
            "batch ended SUCCEEDED": 50,
            "batch ended ENDED": 5,
            "batch ended EXPIRED": 20,
            "batch ended CANCELLED": 20,
            "batch removed": 100,
        },
    ),
    Kind(
        "events",
        share=5,
        first=16,
        counts={
            "event completed": 400,
            "event failed": 30,
            "event expired": 30,
            "event deleted": 8,
            "event lease_ended": 8,
            "event with result": 200,
            "event with failure": 30,
            "event of an event": 100,
            "event delivered": 500,
            "ack refused": 20,  # with their events
            "redriven": 10,
            "fault": 200,
        },
    ),
    Kind("skew", share=10),  # each host's clock is right, or two hours ahead or behind the databases'
)


@pytest.mark.parametrize(("kind", "batch"), seeds.parameters(KINDS))
def test_promises_hold(kind: Kind, batch: Sequence[int]) -> None:
    kind.run(simulate, batch)


def test_a_seed_gives_the_same_run_every_time() -> None:
    first, again = simulate(3), simulate(3)
    assert first.lines() == again.lines()
    assert first.digest() == again.digest()
