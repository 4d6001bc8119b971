"""Items with throttle keys on one host: what a dequeue delivers, its empty replies, and consumers that wait."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.api.wire import spec
from tests.support.one_host import Call, OneHost

pytestmark = pytest.mark.memory

API = {"throttle.api": '{"per_second": 10, "burst": 5}'}


class Throttled(OneHost):
    def __init__(self, entries: dict[str, str], *shards: int) -> None:
        super().__init__(*(shards or (1, 2)))
        self.version = 0
        self.apply(entries)
        self.wait(2_000_000)  # a coordinator begins with no tokens

    def apply(self, entries: dict[str, str]) -> None:
        self.version += 1
        self.settings.apply(Settings("n", self.version, entries))
        self.run()

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms // 5):
            self.wait(5)

    def put(self, items: int, *keys: str, topic: str = "t", tenant: str | None = None) -> None:
        specs = [spec(topic, b"x", throttle_keys=list(keys) or None, fairness_key=tenant) for _ in range(items)]
        response = self.ask("Enqueue", ns="n", items=specs)
        assert all(outcome.error is None for outcome in response.outcomes)

    def dequeue(self, count: int = 100, topic: str = "t", wait_ms: int = 0) -> Call:
        return self.call("Dequeue", ns="n", wants=[idl.TopicCount(topic, count)], wait_ms=wait_ms)

    def got(self, count: int = 100, topic: str = "t") -> int:
        call = self.dequeue(count, topic)
        if not call.answers:
            self.wait(1)  # the answer for a cold key has come, and ends the call in the next tick
        return len(call.answer.items)


def test_a_dequeue_gets_no_more_than_the_burst() -> None:
    host = Throttled(API)
    host.put(20, "api")
    assert host.got() == 5
    empty = host.dequeue().answer
    assert (empty.items, empty.reason) == ([], "throttled: api")
    assert 1 <= empty.retry_after_ms <= 200
    host.pass_ms(1_000)
    assert 4 <= host.got() <= 5


def test_items_without_a_dry_key_do_not_wait() -> None:
    """Promise 12: neither of another tenant, nor of the same, nor of another topic."""
    host = Throttled({"throttle.dry": '{"per_second": 0.001, "burst": 1}'})
    for number in range(300):
        host.put(2, "dry", tenant=f"t{number % 7}")
    assert host.got() == 1
    host.put(3)
    host.put(3, "free", tenant="t1")
    host.put(3, topic="u")
    assert host.got(10) == 6
    assert host.got(10, "u") == 3
    assert host.got() == 0


def test_redeliveries_take_tokens_and_releases_return_them() -> None:
    host = Throttled({"throttle.dry": '{"per_second": 0.001, "burst": 2}'})
    host.put(1, "dry")
    (item,) = host.dequeue(1).answer.items
    released = host.ask("Nack", items=[idl.NackItem(item.id, item.lease, release=True)])
    assert released.outcomes[0].error is None
    for _ in range(2):
        (item,) = host.dequeue(1).answer.items
        host.ask("Nack", items=[idl.NackItem(item.id, item.lease)])
    assert host.got() == 0


def test_a_policy_adds_keys_to_all_items_of_a_topic() -> None:
    host = Throttled({**API, "topic.t": '{"throttles": ["api"]}'})
    host.put(20)
    host.put(20, tenant="a")
    host.put(20, topic="u")
    assert host.got() == 5
    assert host.got(topic="u") == 20


def test_a_policy_without_its_throttle_lets_consumers_go_on() -> None:
    host = Throttled({"throttle.api": '{"per_second": 0.001, "burst": 1}', "topic.t": '{"throttles": ["api"]}'})
    host.put(20)
    host.got()
    call = host.dequeue(wait_ms=1_000)
    assert not call.answers
    host.apply({"throttle.api": '{"per_second": 0.001, "burst": 1}'})
    assert len(call.answer.items) == 19


def test_two_thousand_keys_of_one_tenant() -> None:
    host = Throttled({"throttle.c:*": '{"per_second": 1}'}, 1)
    for at in range(0, 2_000, 100):
        response: Any = host.ask(
            "Enqueue", ns="n",
            items=[spec("t", b"x", throttle_keys=[f"c:{number}"]) for number in range(at, at + 100)] * 2,
        )  # fmt: skip
        assert response
    got = 0
    for _ in range(60):
        got += host.got(100)
    assert got == 2_000
    assert host.got() == 0
