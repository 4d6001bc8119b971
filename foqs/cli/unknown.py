"""A topic that does not exist: it has no items and no settings. A wrong name looks like an empty topic otherwise."""

from __future__ import annotations

import json
import sys
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

from foqs.errors import FoqsError
from foqs.shardmgr.operate import name

if TYPE_CHECKING:
    from foqs.client import Client

_LOOKED_AT = 10_000
"""Topics among which a similar name is looked for."""
_TIMEOUT_MS = 2_000


def unknown(client: Client, topic: str) -> str:
    """Return why a topic with this name does not exist; empty if it does, or if the host does not say.

    A topic that takes the dead letters of another exists also while it is empty."""
    try:
        if _exists(client, topic) or _takes_dead_letters(client, topic):
            return ""
        listed = client.active_topics(all_states=True, timeout_ms=_TIMEOUT_MS)
        others = [one.topic for one in islice(listed, _LOOKED_AT)]
    except FoqsError:  # the command itself was allowed, or has its own error
        return ""
    near = get_close_matches(topic, [one for one in others if one != topic], n=1)
    hint = f"; did you mean {name(near[0])}?" if near else ""
    where = f"in namespace {name(client.namespace)}"
    return f"no topic {name(topic)} is known {where}: it has no items and no policy of its own{hint}"


def _exists(client: Client, topic: str) -> bool:
    found = client.topic_stats(topic, timeout_ms=_TIMEOUT_MS)
    own = f"topic.{topic}" in found.policy_layers.values()
    return own or bool(found.ready or found.delayed or found.leased or found.missing)


def _takes_dead_letters(client: Client, topic: str) -> bool:
    from foqs.policies.topic_policy import DEAD_SUFFIX, PREFIX

    if topic.endswith(DEAD_SUFFIX) and _exists(client, topic.removesuffix(DEAD_SUFFIX)):
        return True
    values = client.settings(PREFIX, timeout_ms=_TIMEOUT_MS).entries.values()
    return any((json.loads(value).get("dead") or {}).get("topic") == topic for value in values)


def say_unknown(client: Client, topic: str) -> bool:
    """Say on stderr that a topic does not exist. Return True if that is so."""
    if why := unknown(client, topic):
        print(f"foqs: {why}", file=sys.stderr, flush=True)
    return bool(why)
