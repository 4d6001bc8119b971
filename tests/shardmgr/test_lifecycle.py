"""The table of a shard's life: only its steps are allowed, and every state leads on."""

from __future__ import annotations

import itertools

import pytest

from foqs.shardmgr.lifecycle import ShardState, moved

ASSIGNED, OPENING, SERVING, DRAINING, CLOSED = (
    ShardState.ASSIGNED, ShardState.OPENING, ShardState.SERVING, ShardState.DRAINING, ShardState.CLOSED,
)  # fmt: skip
STEPS = {
    (ASSIGNED, OPENING),
    (ASSIGNED, CLOSED),
    (OPENING, SERVING),
    (OPENING, ASSIGNED),
    (OPENING, CLOSED),
    (SERVING, DRAINING),
    (SERVING, CLOSED),
    (DRAINING, CLOSED),
    (CLOSED, ASSIGNED),
}


@pytest.mark.parametrize(("state", "to"), list(itertools.product(ShardState, repeat=2)))
def test_only_the_steps_of_the_table_are_allowed(state: ShardState, to: ShardState) -> None:
    if (state, to) in STEPS:
        assert moved(state, to) is to
    else:
        with pytest.raises(ValueError, match="cannot become"):
            moved(state, to)
