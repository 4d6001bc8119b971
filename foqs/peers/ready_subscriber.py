"""Topics that have items ready on other hosts, learned from each host by a long poll (WatchTopics).

The knowledge may be stale: a host that returns nothing is dropped from that topic's list until it publishes the topic
again. The new publication may arrive before the empty answer, over another connection. Both carry the version of that
host's news, and an empty answer that is older than the publication drops nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.idl import idl

Done = Callable[[Any, FoqsError | None], None]
"""(response, None) or (None, error), once."""
Ask = Callable[[str, str, Any, int, Done], None]
"""(address, method, request, timeout_ms, done); see `foqs.rpc.peer_caller.PeerCaller.call`."""

WAIT_MS = 5_000
"""A host without news answers after this time, as a sign that the connection lives. Shorter waits cost more: a question
takes 0.3 ms of processor time, and each host asks every other one."""
_MARGIN_MS = 2_000
"""Beyond it, the answer is given up and the host is asked again, over another connection."""
AGAIN_MS = 500
"""After a question that failed."""
NO_ANSWER_MS = 2_000
"""How long a topic of a host is skipped after a request to that host got no answer: a host that hangs would cost every
consumer a wait."""


class ReadySubscriber:
    """`learned(key, ready, address)` is called for each topic that another host publishes. `later(ms, do)` is a
    timer."""

    def __init__(
        self,
        ask: Ask,
        later: Callable[[int, Callable[[], None]], object],
        learned: Callable[[TopicKey, int, str], None],
    ) -> None:
        self._ask = ask
        self._later = later
        self._learned = learned
        self._hosts: dict[
            str, dict[TopicKey, int]
        ] = {}  # by address: the topics it published, and the version of that news
        self._topics: dict[TopicKey, dict[str, None]] = {}

    def hosts(self, addresses: Iterable[str]) -> None:
        """Subscribe to the hosts at exactly these addresses."""
        wanted = set(addresses)
        for address in self._hosts.keys() - wanted:
            self._drop(address)
            del self._hosts[address]
        for address in sorted(wanted - self._hosts.keys()):
            keys = self._hosts[address] = dict[TopicKey, int]()
            self._question(address, keys, None)

    def having(self, ns: str, topic: str) -> Sequence[str]:
        """Return the addresses of hosts that published the topic."""
        return list(self._topics.get((ns, topic), ()))

    def found_nothing(self, address: str, key: TopicKey, version: int) -> None:
        """Drop the topic of the host, unless the host published it after this version of its news."""
        keys = self._hosts.get(address)
        if keys is not None and key in keys and keys[key] <= version:
            del keys[key]
            self._hide(address, key)

    def no_answer(self, address: str, key: TopicKey) -> None:
        """Skip the topic of the host for a while. The host will not publish it again, so it is not dropped."""
        keys = self._hosts.get(address)
        if keys is not None and self._hide(address, key):
            self._later(NO_ANSWER_MS, partial(self._still, address, keys, key))

    def _still(self, address: str, keys: dict[TopicKey, int], key: TopicKey) -> None:
        if self._hosts.get(address) is keys and key in keys:
            self._learn(address, key, 1, keys[key])

    def _hide(self, address: str, key: TopicKey) -> bool:
        """Remove the host from the topic's list. Return whether it was there."""
        hosts = self._topics.get(key, {})
        known = address in hosts
        if known:
            del hosts[address]
            if not hosts:
                del self._topics[key]
        return known

    def _question(self, address: str, keys: dict[TopicKey, int], version: int | None) -> None:
        """Ask for news after `version`. `keys` identifies the subscription: a host that returns gets another one."""
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

    def _learn(self, address: str, key: TopicKey, ready: int, version: int) -> None:
        self._hosts[address][key] = version
        self._topics.setdefault(key, {})[address] = None
        self._learned(key, ready, address)

    def _drop(self, address: str) -> None:
        for key in self._hosts[address]:
            self._hide(address, key)
        self._hosts[address].clear()
