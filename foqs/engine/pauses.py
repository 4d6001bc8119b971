"""Another version of a namespace's settings: resumed topics deliver again, throttles and weights change, and workers
may hold more or fewer items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from foqs.engine import consumers, weights
from foqs.engine.pending import DequeueCall
from foqs.engine.state import State
from foqs.policies.layers import NamespacePolicies
from foqs.policies.settings import Settings

_SLICE = 500
"""Topics that go on in one turn of the event loop."""


def apply(state: State, settings: Settings) -> None:
    """Use the settings from now on, and deliver items of resumed topics to consumers that wait, from the next turn of
    the event loop on."""
    ns, policies = settings.ns, state.policies
    before, limiting, weighing = policies.pausing.get(ns), policies.per_worker.get(ns), policies.namespace(ns)
    policies.apply(settings)
    state.throttling.changed(ns)
    weights.follow(state, ns, weighing)
    if before is not None:
        state.long_work.append(_resume(state, ns, before))
        state.wake()
    if limiting is not None or ns in policies.per_worker:
        state.long_work.append(_limit(state, ns, limiting))
        state.wake()


def _resume(state: State, ns: str, before: NamespacePolicies) -> Iterator[None]:
    keys = iter([key for key in {**state.topics, **state.waiting} if key[0] == ns])
    while part := list(islice(keys, _SLICE)):
        live = [key for key in part if key in state.waiting or consumers.ready(state, key)]
        resumed = [key for key in live if before.of(key[1]).paused and not state.policies.paused(key)]
        consumers.serve(state, resumed, state.now_ms)
        if state.became_ready is not None:
            for key in resumed:
                state.became_ready(key)
        if len(part) == _SLICE:
            yield


def _limit(state: State, ns: str, before: NamespacePolicies | None) -> Iterator[None]:
    """Try the consumers again that wait for topics with another `per_worker`. Answer those that reported what they hold
    and may have no more: a process needs the limit to know when to ask again."""
    holdings, policies = state.holdings, state.policies
    keys = iter([key for key in {**state.topics, **state.waiting, **holdings.parked} if key[0] == ns])
    while part := list(islice(keys, _SLICE)):
        changed: dict[DequeueCall, None] = {}
        for key in part:
            most = policies.of(key).per_worker
            if most == (None if before is None else before.of(key[1]).per_worker):
                continue
            consumers.try_again(state, key, holdings.parked_for(key))
            changed.update(dict.fromkeys(state.waiting.get(key, ())))
            state.ready_again(key)
        consumers.serve(state, part, state.now_ms)
        for call in changed:
            reported = any(limit.holding is not None for limit in (holdings.limits(call) or {}).values())
            if call.waits and reported and call.limits_then != call.limits and holdings.limited(call):
                consumers.answer_empty(state, call)
        if len(part) == _SLICE:
            yield
