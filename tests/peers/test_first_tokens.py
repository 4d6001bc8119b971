"""When a throttle key's first tokens come: at once where its coordinator has had the slot for long, as it observes its
slots from the start, and never before the tokens of an earlier coordinator have ended."""

from __future__ import annotations

import pytest

from foqs.idl import idl
from foqs.limits.bucket import TTL_MS
from foqs.peers.coordinator import BEAT_MS
from foqs.policies.settings import Settings
from tests.api.wire import spec
from tests.support.one_host import OneHost, routing_of

pytestmark = pytest.mark.memory

BURST = 5
PER_MS = 0.01


class Coordinator(OneHost):
    """Of all keys, in a cluster. Its shard was opened just now."""

    def __init__(self) -> None:
        super().__init__(1, routing=routing_of({1: "a"}))

    def set_throttle(self) -> None:
        self.settings.apply(Settings("n", 1, {"throttle.api": f'{{"per_second": 10, "burst": {BURST}}}'}))
        items = [spec("t", b"x", throttle_keys=["api"]) for _ in range(2 * BURST)]
        assert all(one.error is None for one in self.ask("Enqueue", ns="n", items=items).outcomes)

    def got(self) -> int:
        call = self.call("Dequeue", ns="n", wants=[idl.TopicCount("t", 100)])
        if not call.answers:
            self.wait(1)
        return len(call.answer.items)

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.wait(50)


@pytest.fixture
def host() -> Coordinator:
    return Coordinator()


def test_a_new_throttle_gives_its_burst_at_once(host: Coordinator) -> None:
    host.pass_ms(BEAT_MS + TTL_MS + int(BURST / PER_MS))
    host.set_throttle()
    assert host.got() == BURST


def test_a_young_coordinator_gives_what_the_rate_made(host: Coordinator) -> None:
    host.pass_ms(BEAT_MS + TTL_MS + int(2 / PER_MS))
    host.set_throttle()
    assert host.got() == 2
