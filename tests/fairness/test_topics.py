"""The index of topics is that of the shards' lanes after any operations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs.engine import shard_life, stats
from foqs.engine.calls import EnqueueCall
from foqs.engine.engine import Engine
from foqs.fairness.keys import TopicKey
from foqs.rows import NewItem
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import Laboratory
from tests.engine.test_many_topics import ack, dequeue
from tests.sim.audit import audit_topics

IDLE_MS = 700_000
TOPICS: list[TopicKey] = [(ns, topic) for ns in ("a", "b") for topic in ("x", "y", "z")]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.sampled_from(TOPICS), st.integers(1, 3)),
        st.tuples(st.just("take"), st.sampled_from(TOPICS), st.integers(1, 3)),
        st.tuples(st.just("close"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("open"), st.integers(1, 3), st.none()),
        st.tuples(st.just("idle"), st.none(), st.none()),
    ),
    max_size=40,
)


def enqueue(lab: Laboratory, key: TopicKey, count: int) -> None:
    items = [NewItem(b"x", None, None, 0, lab.now_ms, 0, lab.now_ms, 0, 0, 1) for _ in range(count)]
    call = EnqueueCall(count, lambda outcomes: None)
    lab.engine.enqueue(call, list(range(count)), items, [key] * count, [1] * count, lab.now_ms, 5_000)
    lab.settle()


def close(lab: Laboratory, number: int) -> None:
    shard = lab.engine.state.shards[number]
    lab.engine.drained(shard, lab.now_ms)
    lab.stores[number].close(clean=True)
    shard.owner.to(ShardState.ASSIGNED)


def ready_of(engine: Engine) -> dict[TopicKey, int]:
    counts: dict[TopicKey, int] = {}
    for shard in engine.state.serving:
        for lane in shard.memory.lanes.values():
            counts[lane.topic.key] = counts.get(lane.topic.key, 0) + lane.ready
    return {key: ready for key, ready in counts.items() if ready}


def page_of(lab: Laboratory, limit: int, cursor: str | None) -> tuple[list, bool, int]:
    """Return the topics of a page, whether there are more, and the number of turns of the event loop."""
    pages: list[tuple[list, bool]] = []
    stats.active_topics(
        lab.engine.state, None, limit, cursor, "host", None, lab.now_ms, lambda *page: pages.append(page)
    )
    turns = 1
    while not pages:
        lab.engine.pump(lab.now_ms)
        turns += 1
    ((page, more),) = pages
    return page, more, turns


def found(lab: Laboratory, limit: int) -> dict[TopicKey, int]:
    """All active topics, in pages."""
    topics: dict[TopicKey, int] = {}
    cursor, more = None, True
    while more:
        page, more, _ = page_of(lab, limit, cursor)
        topics |= {(topic.ns, topic.topic): topic.ready for topic in page}
        if more:
            assert len(page) == limit
            cursor = stats.topics_cursor(page[-1])
    return topics


@given(steps)
def test_the_index_is_that_of_the_lanes(steps: list) -> None:
    lab = Laboratory(1, 2, 3)
    for what, which, more in steps:
        serving = {shard.number for shard in lab.engine.state.serving}
        if what == "enqueue":
            enqueue(lab, which, more)
        elif what == "take":
            lab.settle()
            for ids in dequeue(lab, [which], 0):
                ack(lab, ids[:more])
        elif what == "close" and which in serving:
            close(lab, which)
        elif what == "open" and which not in serving:
            lab.open(which)
        elif what == "idle":
            lab.now_ms += IDLE_MS
            lab.engine.tick(lab.now_ms)
            lab.settle()
        audit_topics(lab.engine)
        ready = ready_of(lab.engine)
        assert {key: lab.engine.ready(key) for key in TOPICS if lab.engine.ready(key)} == ready
        for limit in (1, 2, 100):
            active = found(lab, limit)
            assert active == ready
            assert list(active) == sorted(active)


def test_a_reopened_shard_has_only_its_new_lanes() -> None:
    """The lanes of its first term are detached later."""
    lab = Laboratory(1)
    keys = [("ns", str(number)) for number in range(3 * shard_life._LANES)]
    for key in keys:
        lab.engine.state.shards[1].memory.lane(key)  # type: ignore[arg-type]
    enqueue(lab, keys[0], 2)
    close(lab, 1)
    assert len(lab.engine.state.topics) == 2 * shard_life._LANES
    assert lab.engine.ready(keys[0]) == 0
    lab.open(1)
    assert lab.engine.ready(keys[0]) == 2
    assert [len(ids) for ids in dequeue(lab, keys[:1], 1_000)] == []
    lab.settle()
    assert list(lab.engine.state.topics) == [keys[0]]
    audit_topics(lab.engine)


def test_a_closed_shards_lanes_are_detached_in_turns() -> None:
    lab = Laboratory(1)
    lanes = 10 * shard_life._LANES
    for number in range(lanes):
        lab.engine.state.shards[1].memory.lane(("ns", str(number)))  # type: ignore[arg-type]
    close(lab, 1)
    left = [len(lab.engine.state.topics)]
    while lab.engine.state.slices.long_work:
        lab.engine.pump(lab.now_ms)
        left.append(len(lab.engine.state.topics))
    assert left == [lanes - shard_life._LANES * turn for turn in range(1, 11)]


def test_a_page_looks_at_the_topics_in_turns() -> None:
    lab = Laboratory(1)
    topics = 3 * stats._TOPICS
    for number in range(topics):
        lab.engine.state.shards[1].memory.lane(("ns", f"{number:06}"))  # type: ignore[arg-type]
    enqueue(lab, ("ns", "last"), 1)
    page, more, turns = page_of(lab, 10, None)
    assert [(topic.topic, topic.ready) for topic in page] == [("last", 1)]
    assert not more
    assert turns == 7  # four to sort the topics, the last of them with the first 500, and three more
