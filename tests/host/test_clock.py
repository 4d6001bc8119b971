"""A host whose clock was wrong, and is set."""

from __future__ import annotations

from typing import Any

from foqs.host.requests import DequeueCall
from tests.forward.nodes import cluster_in

_HOUR_MS = 3_600_000


def test_who_waits_is_answered_in_time_when_the_clock_is_set_back(tmp_path: Any) -> None:
    """By an hour, as the database's and the wall's clock say."""
    answers: list[list[Any]] = []

    def reply(items: list[Any], doubtful: list[int]) -> bool:
        answers.append(items)
        return True

    with cluster_in(tmp_path) as cluster:
        member = cluster.add("a", 1)
        cluster.tell()

        def wait() -> None:
            member._clock._anchor_ns += _HOUR_MS * 1_000_000
            member.host.dequeue(DequeueCall([(("test", "t"), 1)], 1_000, 1_000, 0, reply), member.now_ms(), 2_500)

        cluster.on_loop(wait)
        cluster.until(lambda: member.counters.clock_jumps > 0, "the clock that is set")
        cluster.until(lambda: bool(answers), "the answer")
        assert answers == [[]]
