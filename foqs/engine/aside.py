"""Tenants that stand aside are tried again when their shards may lease items again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from foqs.engine import turns
from foqs.engine.state import State
from foqs.fairness.flow import ASIDE, DOWN, UNRANKED
from foqs.fairness.keys import TopicKey

_SLICE = 1_000
"""Tenants that return in one turn of the event loop."""


def resume(state: State, keys: Iterable[TopicKey]) -> None:
    """Tenants of these topics that stand aside, or whose most urgent items were left out, are tried again: a shard may
    lease items again."""
    turns.begin(state, _resume(state, [key for key in keys if key in state.topics]))


def _resume(state: State, keys: list[TopicKey]) -> Iterator[None]:
    left = _SLICE
    for key in keys:
        topic = state.topics.get(key)
        if topic is None or topic.turns is None:
            continue
        incomplete, topic.turns.incomplete = topic.turns.incomplete, {}
        for tenant in (*topic.turns.aside, *topic.turns.down, *incomplete):
            if topic.turns.ranked:
                topic.turns.place(tenant, UNRANKED)
            if tenant.away in (ASIDE, DOWN):
                topic.turns.enter(tenant)
            left -= 1
            if not left:
                state.due[key] = None
                yield
                left = _SLICE
        state.due[key] = None
    state.wake()
