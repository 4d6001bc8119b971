"""What is known of topics that have something ready on other hosts: learned from each by one question that waits.

What is known may be over: whoever comes for a topic and finds nothing has it forgotten, until it is told again. That it
was told again may arrive before the answer with nothing, over another connection, and both carry the version of the
host's news: an answer that is older than what was told has nothing forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from foqs.errors import FoqsError
from foqs.idl import idl
from foqs.prefetch.lane import LaneKey
from foqs.rpc.peer import Done

Ask = Callable[[str, str, Any, int, Done], None]
"""(address, method, request, timeout_ms, done); see `foqs.rpc.client.Caller.call`."""

WAIT_MS = 30_000
_MARGIN_MS = 5_000
AGAIN_MS = 500
"""After a question that failed."""
NO_ANSWER_MS = 2_000
"""Nobody comes for a topic so soon after one who got no answer: if its host hangs, that costs each a wait."""


class Watch:
    """`told(key, ready, address)` is called for each topic that another host has news of. `later(ms, do)` is a
    timer."""

    def __init__(
        self, ask: Ask, later: Callable[[int, Callable[[], None]], object], told: Callable[[LaneKey, int, str], None]
    ) -> None:
        self._ask = ask
        self._later = later
        self._told = told
        self._hosts: dict[str, dict[LaneKey, int]] = {}  # what each has told, and with which version of its news
        self._topics: dict[LaneKey, dict[str, None]] = {}

    def hosts(self, addresses: Iterable[str]) -> None:
        """The other hosts there are now."""
        wanted = set(addresses)
        for address in self._hosts.keys() - wanted:
            self._drop(address)
            del self._hosts[address]
        for address in sorted(wanted - self._hosts.keys()):
            keys = self._hosts[address] = dict[LaneKey, int]()
            self._question(address, keys, None)

    def having(self, ns: str, topic: str) -> Sequence[str]:
        """Addresses of hosts that are known to have something of it ready."""
        return list(self._topics.get((ns, topic), ()))

    def found_nothing(self, address: str, key: LaneKey, version: int) -> None:
        """The host had nothing as of this version of its news."""
        keys = self._hosts.get(address)
        if keys is not None and key in keys and keys[key] <= version:
            del keys[key]
            self._hide(address, key)

    def no_answer(self, address: str, key: LaneKey) -> None:
        """Whether the host has something is not known: it believes that it has told, and will not do so again."""
        keys = self._hosts.get(address)
        if keys is not None and self._hide(address, key):
            self._later(NO_ANSWER_MS, partial(self._still, address, keys, key))

    def _still(self, address: str, keys: dict[LaneKey, int], key: LaneKey) -> None:
        if self._hosts.get(address) is keys and key in keys:
            self._learn(address, key, 1, keys[key])

    def _hide(self, address: str, key: LaneKey) -> bool:
        """Whether the host was known to have the topic."""
        hosts = self._topics.get(key, {})
        known = address in hosts
        if known:
            del hosts[address]
            if not hosts:
                del self._topics[key]
        return known

    def _question(self, address: str, keys: dict[LaneKey, int], version: int | None) -> None:
        """`keys` is what the host is known by: another one when it went and came again."""
        if self._hosts.get(address) is not keys:
            return

        def answered(response: Any, error: FoqsError | None) -> None:
            if self._hosts.get(address) is not keys:
                return
            if error is not None or response.version is None:
                self._drop(address)
                self._later(AGAIN_MS, lambda: self._question(address, keys, None))
                return
            if response.whole:
                self._drop(address)
            for topic in response.topics or ():
                self._learn(address, (topic.ns, topic.topic), topic.ready or 1, response.version)
            self._question(address, keys, response.version)

        request = idl.WatchTopicsRequest(version, WAIT_MS)
        self._ask(address, "WatchTopics", request, WAIT_MS + _MARGIN_MS, answered)

    def _learn(self, address: str, key: LaneKey, ready: int, version: int) -> None:
        self._hosts[address][key] = version
        self._topics.setdefault(key, {})[address] = None
        self._told(key, ready, address)

    def _drop(self, address: str) -> None:
        for key in self._hosts[address]:
            self._hide(address, key)
        self._hosts[address].clear()
