"""Tenants that stand aside are tried again: when their shards may lease items again, and after a time in any case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from foqs.engine import turns
from foqs.engine.state import State
from foqs.fairness.keys import TopicKey
from foqs.fairness.tenants import ASIDE, DOWN, UNRANKED
from foqs.fairness.turns import Turns
from foqs.item import Item
from foqs.prefetch.lane import Lane

_SLICE = 1_000
"""Tenants that return in one turn of the event loop."""
_AGAIN_MS = 250
"""A tenant that stands aside is tried again after this time, whatever it waits for: the item may have ended, or memory
was short when its page came."""
_AGAIN = 64
"""Tenants that a dequeue tries again."""


def try_again(topic_turns: Turns[Lane[Item]], now_ms: int) -> None:
    """Let tenants take turns that stood aside for long, and rank those again whose shards may lease items again. Of
    those with the same start, the last that enters comes first, so the one that stood aside the longest enters last."""
    for standing in (topic_turns.aside, topic_turns.down):
        if standing:
            oldest = islice(standing.items(), _AGAIN)
            due = list(takewhile(lambda one: not 0 <= now_ms - one[1] < _AGAIN_MS, oldest))
            for tenant, _ in reversed(due):
                topic_turns.enter(tenant)
    for tenant in list(islice(topic_turns.incomplete, _AGAIN)):
        del topic_turns.incomplete[tenant]
        topic_turns.place(tenant, UNRANKED)


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
        for tenant in reversed((*topic.turns.aside, *topic.turns.down, *incomplete)):
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
