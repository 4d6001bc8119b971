"""Hosts publish their ready topics, learn those of other hosts, and drop stale ones. No test here runs a host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.engine.calls import LongPoll
from foqs.errors import Unavailable
from foqs.fairness.keys import TopicKey
from foqs.idl import idl
from foqs.peers import ready_topics
from foqs.peers.gather import Pages
from foqs.peers.ready_topics import MOST_NEWS, PUBLISH_AGAIN_MS, News, ReadyPublisher, ReadySubscriber
from tests.support.examples import examples

T, U = ("n", "t"), ("n", "u")


class Room:
    """A publisher, the items ready on its host, and the callbacks that it has scheduled."""

    def __init__(self, now_ms: int = 1) -> None:
        self.ready: dict[TopicKey, int] = {}
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[int, Callable[[], None]]] = []
        self.room = ReadyPublisher(
            lambda key: self.ready.get(key, 0), now_ms, self.soon.append, lambda ms, do: self.later.append((ms, do))
        )

    def put(self, key: TopicKey, count: int = 1) -> None:
        self.ready[key] = self.ready.get(key, 0) + count
        self.room.became_ready(key)

    def run(self) -> None:
        soon = self.soon.copy()
        self.soon.clear()
        for do in soon:
            do()


def test_a_ready_topic_is_published_once() -> None:
    at = Room()
    first = at.room.after(None)
    assert (first.whole, first.topics) == (True, [])
    at.put(T, 3)
    at.put(T, 2)
    told = at.room.after(first.version)
    assert told == News(told.version, False, [(T, 5)])
    at.put(T)
    assert at.room.after(told.version) == News(told.version, False, [])
    at.put(U)
    assert at.room.after(told.version).topics == [(U, 1)]


def test_a_topic_that_local_consumers_emptied_is_not_published() -> None:
    at = Room()
    at.room.became_ready(T)
    assert at.room.after(None).topics == []
    at.put(T)
    at.ready[T] = 0
    version = at.room.after(None)
    assert version.topics == []
    at.put(T)
    assert at.room.after(version.version).topics == [(T, 1)], "the host publishes the topic again"


def test_a_topic_is_published_again_after_an_empty_answer() -> None:
    at = Room()
    at.put(T)
    version = at.room.after(None).version
    at.ready[T] = 0
    assert at.room.found_nothing([T]) == version
    assert at.later == []
    at.put(T)
    assert at.room.after(version).topics == [(T, 1)]


def test_a_topic_that_could_not_be_leased_is_published_later() -> None:
    at = Room()
    at.put(T)
    version = at.room.after(None).version
    at.room.found_nothing([T])
    assert at.room.after(version).topics == []
    ((after_ms, do),) = at.later
    do()
    assert (after_ms, at.room.after(version).topics) == (PUBLISH_AGAIN_MS, [(T, 1)])


def test_waiting_hosts_get_one_answer_for_all_news_of_a_turn() -> None:
    at = Room()
    answered: list[LongPoll] = []
    version = at.room.after(None).version
    calls = [LongPoll(version, answered.append) for _ in range(3)]
    assert all(at.room.wait(call) for call in calls)
    at.room.forget(calls[2])
    at.put(T)
    at.put(U)
    assert answered == []
    at.run()
    assert answered == calls[:2]
    assert not at.room.wait(LongPoll(version, answered.append)), "there is news already"


def test_a_forgotten_watch_call_is_done() -> None:
    """The host need not wait for the deadline of the call."""
    at = Room()
    call = LongPoll(at.room.after(None).version, lambda call: None)
    assert at.room.wait(call)
    at.room.forget(call)
    assert call.done


def test_a_version_of_another_run_gets_all() -> None:
    before, after = Room(now_ms=1_000), Room(now_ms=1_001)
    before.put(T)
    after.put(U)
    news_ = after.room.after(before.room.after(None).version)
    assert (news_.whole, news_.topics) == (True, [(U, 1)])


def test_many_topics_come_in_parts() -> None:
    at, found = Room(), []
    keys = [("n", str(n)) for n in range(2 * MOST_NEWS + 7)]
    for key in keys:
        at.put(key)
    part = at.room.after(None)
    whole = [part.whole]
    while part.topics:
        found += [key for key, _ in part.topics]
        part = at.room.after(part.version)
        whole.append(part.whole)
    assert found == keys
    assert whole == [True, False, False, False]


def test_dropped_topics_are_published_again_with_a_new_item(monkeypatch: Any) -> None:
    monkeypatch.setattr(ready_topics, "MOST_TOPICS", 10)
    at = Room()
    for n in range(25):
        at.put(("n", str(n)))
    assert len(at.room._logged) <= 20
    version = at.room.after(None).version
    at.put(("n", "0"))
    assert at.room.after(version).topics == [(("n", "0"), 2)]


@given(st.lists(st.sampled_from(["put", "take", "ask", "come"]), max_size=60))
def test_a_host_that_follows_the_news_misses_no_ready_topic(steps: list[str]) -> None:
    """After the last answer, the other host knows the topic if any of its items are ready."""
    at, version, believed = Room(), None, False
    for step in [*steps, "ask"]:
        if step == "put":
            at.put(T)
        elif step == "take":
            at.ready[T] = 0
        elif step == "ask":
            told = at.room.after(version)
            version = told.version
            believed = bool(told.topics) or (believed and not told.whole)
        elif believed:
            if not at.ready.get(T):
                at.room.found_nothing([T])
                believed = False
            else:
                at.ready[T] -= 1
    assert believed or not at.ready.get(T)


class Watching:
    """A subscriber, and the questions that it asked: (address, request, done)."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, Callable[[Any, Any], None]]] = []
        self.later: list[Callable[[], None]] = []
        self.told: list[tuple[TopicKey, int, str]] = []
        self.watch = ReadySubscriber(
            lambda address, _m, request, _t, done: self.asked.append((address, request, done)),
            lambda _ms, do: self.later.append(do),
            lambda *told: self.told.append(told),
        )

    def answer(self, version: int, *topics: str, whole: bool = False) -> None:
        """Answer the oldest question."""
        _, _, done = self.asked.pop(0)
        done(idl.WatchTopicsResponse(version, whole, [idl.TopicNews("n", topic, 1) for topic in topics]), None)


def test_a_watch_asks_for_the_news_after_the_last_answer() -> None:
    w = Watching()
    w.watch.hosts(["b:1"])
    assert [(address, request.version) for address, request, _ in w.asked] == [("b:1", None)]
    w.answer(5, "t", "u", whole=True)
    assert w.told == [(T, 1, "b:1"), (U, 1, "b:1")]
    assert (w.asked[0][1].version, w.watch.having(*T)) == (5, ["b:1"])
    w.watch.found_nothing("b:1", T, 5)
    assert (w.watch.having(*T), w.watch.having(*U)) == ([], ["b:1"])
    w.answer(6, "t", whole=True)
    assert (w.watch.having(*T), w.watch.having(*U)) == (["b:1"], [])


def test_a_host_that_cannot_be_asked_is_known_to_have_nothing() -> None:
    w = Watching()
    w.watch.hosts(["b:1", "c:1"])
    w.answer(5, "t")
    w.answer(5, "t")
    assert sorted(w.watch.having(*T)) == ["b:1", "c:1"]
    w.asked.pop(0)[2](None, Unavailable("gone"))
    assert (w.watch.having(*T), len(w.asked)) == (["c:1"], 1)
    w.later.pop()()
    assert (w.asked[1][0], w.asked[1][1].version) == ("b:1", None)


def test_an_empty_answer_older_than_the_news_drops_no_topic() -> None:
    w = Watching()
    w.watch.hosts(["b:1"])
    w.answer(5, "t")
    w.answer(7, "t")
    w.watch.found_nothing("b:1", T, 6)
    assert w.watch.having(*T) == ["b:1"]
    w.watch.found_nothing("b:1", T, 7)
    w.watch.found_nothing("c:1", T, 7)
    assert w.watch.having(*T) == []


def test_a_topic_of_a_silent_host_is_skipped_only_for_a_while() -> None:
    w = Watching()
    w.watch.hosts(["b:1"])
    w.answer(5, "t", "u")
    w.told.clear()
    w.watch.no_answer("b:1", T)
    w.watch.no_answer("b:1", T)
    w.watch.no_answer("b:1", U)
    w.watch.no_answer("c:1", U)
    assert (w.watch.having(*T), w.watch.having(*U), len(w.later)) == ([], [], 2)
    w.watch.found_nothing("b:1", U, 5)
    for do in w.later:
        do()
    assert (w.watch.having(*T), w.watch.having(*U), w.told) == (["b:1"], [], [(T, 1, "b:1")])


def test_a_host_that_returns_does_not_regain_its_old_topics() -> None:
    w = Watching()
    w.watch.hosts(["b:1"])
    w.answer(5, "t")
    w.watch.no_answer("b:1", T)
    w.watch.hosts([])
    w.watch.hosts(["b:1"])
    w.later.pop()()
    assert w.watch.having(*T) == []


class Lossy:
    """A publisher and a subscriber. Messages between them arrive in any order, or are lost."""

    def __init__(self) -> None:
        self.at = Room()
        self.coming: list[Callable[[bool], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.watch = ReadySubscriber(self.ask, lambda _ms, do: self.timers.append(do), lambda *_: None)
        self.watch.hosts(["b:1"])

    def ask(
        self, _address: str, _method: str, request: Any, _timeout_ms: int, done: Callable[[Any, Any], None]
    ) -> None:
        def answer(_call: object) -> None:
            news_ = self.at.room.after(request.version)
            topics = [idl.TopicNews(*key, ready) for key, ready in news_.topics]
            response = idl.WatchTopicsResponse(news_.version, news_.whole, topics)
            self.coming.append(lambda lost: done(None, Unavailable("lost")) if lost else done(response, None))

        call = LongPoll(request.version, answer)
        if request.version is None or not self.at.room.wait(call):
            answer(call)

    def come(self) -> None:
        """Dequeue T from the host if the subscriber lists it there."""
        if not self.watch.having(*T):
            return
        if self.at.ready.get(T):
            self.at.ready[T] -= 1
            version = None
        else:
            version = self.at.room.found_nothing([T])

        def arrived(lost: bool) -> None:
            if lost:
                self.watch.no_answer("b:1", T)
            elif version is not None:
                self.watch.found_nothing("b:1", T, version)

        self.coming.append(arrived)

    def settle(self) -> None:
        while self.coming or self.at.soon or self.at.later or self.timers:
            self.at.run()
            later, self.at.later = self.at.later, []
            timers, self.timers = self.timers, []
            for do in [*(do for _, do in later), *timers]:
                do()
            while self.coming:
                self.coming.pop(0)(False)


_STEPS = ("put", "take", "come", "first arrives", "last arrives", "first is lost")


@settings(max_examples=examples(10))
@given(st.lists(st.sampled_from(_STEPS), max_size=20))
def test_other_hosts_know_ready_topics_in_any_message_order(steps: list[str]) -> None:
    net = Lossy()
    for step in ["last arrives", "put", "last arrives", "take", *steps]:
        if step == "put":
            net.at.put(T)
            net.at.run()
        elif step == "take":
            net.at.ready[T] = 0
        elif step == "come":
            net.come()
        elif net.coming:
            net.coming.pop(-1 if step == "last arrives" else 0)(step == "first is lost")
    net.settle()
    assert net.watch.having(*T) or not net.at.ready.get(T)


def test_a_host_that_went_and_came_again_is_asked_once() -> None:
    w = Watching()
    w.watch.hosts(["b:1"])
    w.answer(5, "t")
    w.watch.hosts([])
    assert w.watch.having(*T) == []
    w.watch.hosts(["b:1"])
    assert len(w.asked) == 2
    w.answer(6, "t")  # answers the question from before the host went
    assert (w.watch.having(*T), len(w.asked)) == ([], 1)


def page(*topics: tuple[str, int, str]) -> list[Any]:
    return [idl.ActiveTopic("n", topic, ready, 100 + ready, [host]) for topic, ready, host in topics]


def test_pages_of_all_hosts_make_one() -> None:
    pages = Pages(2)
    pages.add_answer("a:1", idl.GetActiveTopicsResponse(page(("t", 1, "a"), ("v", 1, "a")), None))
    pages.add_answer("b:1", idl.GetActiveTopicsResponse(page(("t", 2, "b"), ("u", 1, "b")), None))
    topics, more = pages.page()
    assert [(one.topic, one.ready, one.oldest_ready_at_ms, one.hosts) for one in topics] == [
        ("t", 3, 101, ("a", "b")),
        ("u", 1, 101, ("b",)),
    ]
    assert more
