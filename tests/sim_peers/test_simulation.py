"""Runs FOQS_SIM_SEEDS seeds (default 100), or the seed that FOQS_SIM_SEED names. A failure prints its seed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kernel import seeds
from tests.kernel.seeds import Kind
from tests.sim_peers.simulation import simulate

_OFTEN = ("stored", "delivered", "ack", "nack", "release", "extend", "delete", "get", "enqueued", "charged")
_SEEN = ("ack OUTCOME_UNKNOWN", "enqueue OVERLOADED", "ack STALE_LEASE")
_CHANGES = ("put", "put CONFLICT", "put UNAVAILABLE", "put OUTCOME_UNKNOWN", "applied", "missing")

KINDS = (
    Kind(
        first=12,
        counts={
            **dict.fromkeys(_OFTEN, 6),
            **dict.fromkeys(_SEEN, 1),
            "ack and dequeue": 101,
            "forwarded": 501,
            "moved slots": 31,
        },
    ),
    Kind("slots", share=5),  # slots move all the time
    Kind("pauses", share=5, first=4, counts={"pauses": 11}),
    Kind(
        "changed",
        share=5,
        first=4,
        counts={"change": 11, "placed": 6, "change CONFLICT": 1, "leases during a pause of tenants": 11},
    ),
    Kind("settings", share=5, first=6, counts=dict.fromkeys(_CHANGES, 6)),
    Kind("bounds", share=5, first=4, counts={"at the bound": 11}),
    Kind("orders", share=5, first=4, counts={"ordered": 100, "turns": 100, "moved slots": 20}),
    Kind("silence", share=5),  # silent connections delay items for seconds only
    Kind(
        "throttles",
        share=20,
        first=3,
        counts={"throttled": 200, "given back": 1, "throttles changed": 5, "measured": 2},
    ),
)


@pytest.mark.parametrize(("kind", "batch"), seeds.parameters(KINDS))
def test_promises_hold(kind: Kind, batch: Sequence[int]) -> None:
    kind.run(simulate, batch)


def test_a_seed_gives_the_same_run_every_time() -> None:
    first, again = simulate(3), simulate(3)
    assert first.lines() == again.lines()
    assert first.digest() == again.digest()
