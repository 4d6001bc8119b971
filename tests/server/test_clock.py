"""A host whose clock was wrong, and is set."""

from __future__ import annotations

from typing import Any

from foqs.engine.calls import DequeueCall
from tests.peers.nodes import cluster_in

_HOUR_MS = 3_600_000


def test_waiting_consumers_get_answers_after_a_clock_step_back(tmp_path: Any) -> None:
    """The database's clock and the machine's clock are an hour behind the host's."""
    answers: list[list[Any]] = []

    def reply(items: list[Any], doubtful: list[int]) -> bool:
        answers.append(items)
        return True

    with cluster_in(tmp_path) as cluster:
        member = cluster.add("a", 1)
        cluster.tell()

        def wait() -> None:
            member._clock._anchor_ns += _HOUR_MS * 1_000_000
            member.engine.dequeue(DequeueCall([(("test", "t"), 1)], 1_000, 1_000, 0, reply), member.now_ms(), 2_500)

        cluster.on_loop(wait)
        cluster.until(lambda: member.counters.clock_jumps > 0, "the clock that is set")
        cluster.until(lambda: bool(answers), "the answer")
        assert answers == [[]]
