"""What one entry `push.<name>` of a namespace says: the topic, and the endpoint that gets its items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Envelope = Literal["none", "cloudevents"]


@dataclass(frozen=True)
class Target:
    """An endpoint that gets the items of a topic, one a request.

    name         of the entry, without `push.`
    ns, topic    where the items are
    url          where the requests go, https unless an exception allows http
    headers      more headers of each request; a value may hold `{secret:NAME}`
    concurrency  requests at a time, of one process
    timeout_ms   bounds a whole exchange: from the resolution of the name to the end of the reply
    secrets      names of the secrets that sign, none, one or two
    """

    name: str
    ns: str
    topic: str
    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 4
    timeout_ms: int = 10_000
    secrets: tuple[str, ...] = ()
    envelope: Envelope = "none"
