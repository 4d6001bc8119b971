"""Tenants that take turns: their weights, and another try for tenants that dequeues skipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile

from foqs.engine.state import State, in_slices
from foqs.fairness.keys import TopicKey
from foqs.fairness.tenants import DOWN, SKIPPED, UNRANKED, Tenant
from foqs.fairness.topics import Topic
from foqs.fairness.turns import Turns
from foqs.item import Item
from foqs.policies.layers import NamespacePolicies
from foqs.prefetch.lane import Lane

_SLICE = 1_000
"""Tenants that are looked at in one slice of the event loop."""


# ------------------------------------------------------------------------------------------ weights

# A tenant that waits for its turn was charged by its old weight. With a new one its debt has another length, so that a
# change counts for all turns and tokens from then on, and not when the tenant has its next turn.


def weigh(state: State, topic: Topic[Lane[Item]], tenant: Tenant[Lane[Item]]) -> bool:
    """Give a tenant its present weight, in its turns and where its flows are parked. Return True if its start has
    changed."""
    assert topic.turns is not None, "the topic's tenants take turns"
    ns, name = topic.key
    topic.turns.unweighed.pop(tenant, None)
    tenant.changes = state.policies.changes
    weight = state.policies.namespace(ns).weight(name, tenant.name, tenant.given_weight)
    return topic.turns.weigh(tenant, weight) and _moved(topic, tenant)


def scale(topic: Topic[Lane[Item]], tenant: Tenant[Lane[Item]], factor: float) -> None:
    """Multiply the weight of a tenant by `factor`, as `weigh` does."""
    assert topic.turns is not None, "the topic's tenants take turns"
    if topic.turns.scale(tenant, factor):
        _moved(topic, tenant)


def _moved(topic: Topic[Lane[Item]], tenant: Tenant[Lane[Item]]) -> bool:
    """Change the places of the tenant's parked flows, which are in the order of their tenants' starts."""
    if len(tenant.unparked) < len(tenant.flows):
        for flow in tenant.flows.values():
            if flow.parked is not None:
                flow.parked.moved(topic.key, flow, tenant.start, flow.waits_ms)
    return True


def catch_up(state: State, topic: Topic[Lane[Item]]) -> None:
    """Weigh the tenants whose items came with another weight, some at a time."""
    assert topic.turns is not None, "the topic's tenants take turns"
    for tenant in list(islice(topic.turns.unweighed, _SLICE)):
        weigh(state, topic, tenant)


@in_slices
def follow(state: State, ns: str, before: NamespacePolicies) -> Iterator[None]:
    """Weigh the tenants of the namespace's topics by the settings in effect, where these had other weights before."""
    left = _SLICE
    for key in [key for key in state.topics.in_turns if key[0] == ns]:
        topic, now = state.topics.in_turns.get(key), state.policies.namespace(ns)
        if topic is None or topic.turns is None:
            continue
        if now.has_weights_of(key[1], before):
            left -= 1
        else:
            for tenant in list(topic.turns.tenants.values()):
                weigh(state, topic, tenant)
                left -= len(tenant.flows)
                if left <= 0:
                    yield
                    left = _SLICE
        if left <= 0:
            yield
            left = _SLICE


_AGAIN_MS = 250
"""A skipped tenant is tried again after this time, whatever it waits for: the item may have ended, or memory was short
when its page came."""
_AGAIN = 64
"""Tenants that a dequeue tries again."""


def retry_skipped(topic_turns: Turns[Lane[Item]], now_ms: int) -> None:
    """Let tenants take turns that were skipped long ago; without another tenant in the queue, let all skipped ones.
    Rank tenants again whose shards may lease items again.

    Of tenants with the same start, the last that enters comes first, so the longest skipped tenant enters last."""
    only = bool(topic_turns.skipped) and topic_turns.first() is None
    for skipped, again_ms in ((topic_turns.skipped, 0 if only else _AGAIN_MS), (topic_turns.down, _AGAIN_MS)):
        if skipped:
            oldest = islice(skipped.items(), _AGAIN)
            due = list(takewhile(lambda one: not 0 <= now_ms - one[1] < again_ms, oldest))  # noqa: B023
            for tenant, _ in reversed(due):
                topic_turns.enter(tenant)
    for tenant in list(islice(topic_turns.incomplete, _AGAIN)):
        del topic_turns.incomplete[tenant]
        topic_turns.place(tenant, UNRANKED)


def retry_waited(state: State) -> None:
    """Try skipped tenants of topics again for which consumers wait: memory may have been short when a page came."""
    keys = []
    for key in state.waiting:
        topic = state.topics.get(key)
        if topic is not None and topic.turns is not None and topic.turns.skipped:
            keys.append(key)
    if keys:
        resume(state, keys)


@in_slices
def resume(state: State, keys: Iterable[TopicKey]) -> Iterator[None]:
    """Try skipped tenants of these topics again, and tenants whose most urgent items were left out: a shard may lease
    items again."""
    keys = [key for key in keys if key in state.topics]
    left = _SLICE
    for key in keys:
        topic = state.topics.get(key)
        if topic is None or topic.turns is None:
            continue
        incomplete, topic.turns.incomplete = topic.turns.incomplete, {}
        for tenant in reversed((*topic.turns.skipped, *topic.turns.down, *incomplete)):
            if topic.turns.ranked:
                topic.turns.place(tenant, UNRANKED)
            if tenant.away in (SKIPPED, DOWN):
                topic.turns.enter(tenant)
            left -= 1
            if not left:
                state.due[key] = None
                yield
                left = _SLICE
        state.due[key] = None
    state.wake()
