"""Another version of a namespace's settings: topics that are not paused any more go on, and throttles change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from foqs.engine import consumers
from foqs.engine.state import State
from foqs.policies.layers import NamespacePolicies
from foqs.policies.settings import Settings

_SLICE = 500
"""Topics that go on in one turn of the event loop."""


def apply(state: State, settings: Settings) -> None:
    """Use the settings from now on, and deliver items of resumed topics to consumers that wait, from the next turn of
    the event loop on."""
    before = state.policies.pausing.get(settings.ns)
    state.policies.apply(settings)
    state.throttling.changed(settings.ns)
    if before is not None:
        state.long_work.append(_resume(state, settings.ns, before))
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
