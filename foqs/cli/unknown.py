"""A topic that does not exist: it has no items and no settings. A wrong name looks like an empty topic otherwise."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

from foqs.errors import FoqsError
from foqs.shardmgr.change import name

if TYPE_CHECKING:
    from foqs.client import Client

_LOOKED_AT = 10_000
"""Topics among which a similar name is looked for."""
_TIMEOUT_MS = 2_000


def unknown(client: Client, topic: str) -> str:
    """Return why a topic with this name does not exist; empty if it does, or if the host does not say."""
    try:
        found = client.topic_stats(topic, timeout_ms=_TIMEOUT_MS)
        layers = set(found.policy_layers.values())
        if found.ready or found.delayed or found.leased or found.missing or f"topic.{topic}" in layers:
            return ""
        listed = client.active_topics(all_states=True, timeout_ms=_TIMEOUT_MS)
        others = [one.topic for one in islice(listed, _LOOKED_AT)]
    except FoqsError:  # the command itself was allowed, or has its own error
        return ""
    near = get_close_matches(topic, [one for one in others if one != topic], n=1)
    hint = f"; did you mean {name(near[0])}?" if near else ""
    where = f"in namespace {name(client.namespace)}"
    return f"no topic {name(topic)} is known {where}: it has no items and no policy of its own{hint}"


def say_unknown(client: Client, topic: str) -> bool:
    """Say on stderr that a topic does not exist. Return True if that is so."""
    if why := unknown(client, topic):
        print(f"foqs: {why}", file=sys.stderr, flush=True)
    return bool(why)
