"""Mutants of the lanes of a topic: see test_mutants.py."""

from __future__ import annotations

from foqs.engine import consumers, shard_life
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.fairness.topics import Topic
from tests.sim.mutants import Patch, mutant


@mutant
def a_lane_belongs_to_no_topic(patch: Patch) -> None:
    """Its items are stored and never delivered."""
    patch.setattr(Topic, "attach", lambda topic, lane: None)


@mutant
def a_closed_shards_lanes_stay_in_their_topics(patch: Patch) -> None:
    patch.setattr(shard_life, "_detach", lambda state, lanes: iter(()))


@mutant
def a_closed_shards_lanes_are_merged(patch: Patch) -> None:
    """They are in their topics until they are detached."""

    def close(shard: Shard) -> None:
        term = shard.memory.term
        original(shard)
        term.shard = shard

    original = Shard.close
    patch.setattr(Shard, "close", close)
    patch.setattr(shard_life, "_LANES", 1)


@mutant
def a_stalled_topic_is_not_tried_again(patch: Patch) -> None:
    """Its consumer goes on waiting when the shard hands out again."""

    def wake(state: State, shard: Shard, now_ms: int) -> None:
        shard.memory.stalled.clear()
        original(state, shard, now_ms)

    original = consumers.wake
    patch.setattr(consumers, "wake", wake)
