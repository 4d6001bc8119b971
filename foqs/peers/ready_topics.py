"""Topics that have items ready on other hosts, so that this host forwards its consumers' dequeues to them.

Each host publishes its topics and answers the long polls of all other hosts (WatchTopics). A topic is published when an
item of it is ready that no consumer there takes. It is not published again until another host asked for it and received
nothing: until then every host that knows of it may ask. So a queue whose consumers keep up publishes nothing, and a
full queue publishes each topic once.

The knowledge may be stale: a host that returns nothing is dropped from that topic's list until it publishes the topic
again. The new publication may arrive before the empty answer, over another connection. Both carry the version of that
host's news, and an empty answer that is older than the publication drops nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from foqs.engine.calls import LongPoll
from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.idl import idl
from foqs.peers.forwarded import Ask

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
    """Learns the topics of other hosts. `learned(key, ready, address)` is called for each topic that another host
    publishes."""

    def __init__(
        self,
        ask: Ask,
        later: Callable[[int, Callable[[], None]], object],
        learned: Callable[[TopicKey, int, str], None],
    ) -> None:
        self._ask = ask
        self._later = later
        self._learned = learned
        self._hosts: dict[str, dict[TopicKey, int]] = {}
        """By address: the topics that the host published, and the version of that news."""
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
        """Remove the host from the topic's list. Return True if it was there."""
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


MOST_TOPICS = 100_000
"""Beyond this, the topics published longest ago are dropped, and published again when a new item of them is ready."""
MOST_NEWS = 1_000
"""Topics in one answer; the answer to the next question continues."""
PUBLISH_AGAIN_MS = 1_000
"""Delay before a topic is published again whose items could not be leased (its shard's database is down)."""


class News(NamedTuple):
    """`topics`: with the approximate number of ready items. `whole`: they replace all topics of earlier answers."""

    version: int
    whole: bool
    topics: list[tuple[TopicKey, int]]


class ReadyPublisher:
    """Publishes this host's topics. `ready(key)`: items of a topic that are ready here. `soon` calls back at the next
    turn of the event loop, `later` after a time in ms. Versions of one run of the process are above all versions of
    earlier runs."""

    def __init__(
        self,
        ready: Callable[[TopicKey], int],
        now_ms: int,
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self._ready = ready
        self._soon = soon
        self._later = later
        self._first = self._version = now_ms << 20
        self._logged: dict[TopicKey, int] = {}
        self._log: list[tuple[int, TopicKey]] = []  # by version; an entry whose topic has a later entry does not count
        self._waiting: dict[LongPoll, None] = {}
        self._due = False

    def became_ready(self, key: TopicKey) -> None:
        """Publish the topic if items of it are ready. The caller may be late: they may be leased already."""
        if key in self._logged or not self._ready(key):
            return
        self._version += 1
        self._logged[key] = self._version
        self._log.append((self._version, key))
        if len(self._log) > 2 * MOST_TOPICS:
            self._shorten()
        if self._waiting and not self._due:
            self._due = True
            self._soon(self._tell)

    def again(self, key: TopicKey) -> None:
        """Publish the topic, even if it is published: another host was refused its items for one consumer."""
        self._logged.pop(key, None)
        self.became_ready(key)

    def found_nothing(self, keys: Iterable[TopicKey]) -> int:
        """Record that another host asked for the topics and received nothing. Return the version of the news at this
        moment: a later publication has a higher one, and may reach that host before this answer."""
        for key in keys:
            if self._logged.pop(key, None) is not None and self._ready(key):
                self._later(PUBLISH_AGAIN_MS, partial(self.became_ready, key))
        return self._version

    def after(self, version: int | None) -> News:
        """Return the topics published after `version`, which an earlier answer had; None: return all."""
        whole = version is None or not self._first <= version <= self._version
        since = self._first if whole or version is None else version
        topics: list[tuple[TopicKey, int]] = []
        for logged, key in self._log[bisect_right(self._log, since, key=lambda entry: entry[0]) :]:
            if len(topics) == MOST_NEWS:
                break
            since = logged
            if self._logged.get(key) != logged:
                continue
            ready = self._ready(key)
            if ready:
                topics.append((key, ready))
            else:
                del self._logged[key]
        else:
            since = self._version
        return News(since, whole, topics)

    def wait(self, call: LongPoll) -> bool:
        """Answer `call` as soon as there is news for it. Return False if there is news already."""
        if call.version != self._version:
            return False
        self._waiting[call] = None
        return True

    def forget(self, call: LongPoll) -> None:
        call.done = True
        self._waiting.pop(call, None)

    def stop(self) -> None:
        """Answer every WatchTopics that waits."""
        self._tell()

    def _tell(self) -> None:
        self._due = False
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.answer()

    def _shorten(self) -> None:
        log = [entry for entry in self._log if self._logged.get(entry[1]) == entry[0]]
        self._log = log[-MOST_TOPICS:]
        for _, key in log[:-MOST_TOPICS]:
            del self._logged[key]
