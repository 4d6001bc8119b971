"""What ExplainItem says of items of random histories is true."""

from __future__ import annotations

import random
from typing import Any

import pytest

from foqs.idl import idl
from foqs.policies.settings import Settings
from tests.api.wire import State
from tests.support.one_host import OneHost, put, take

pytestmark = pytest.mark.memory
R = idl.Reason
STEPS = 60


class History:
    """Items of a topic on two shards, with or without tenants."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.host = OneHost(1, 2)
        self.tenants = self.dice.choice([(None,), (None,), ("a", "b"), (None, "a", "b", "c")])
        self.ids: list[int] = []
        self.held: dict[int, Any] = {}
        self.version = 0

    def step(self) -> None:
        dice, host = self.dice, self.host
        match dice.choice(("put", "put", "put", "take", "take", "end", "wait", "pause", "reopen", "memory")):
            case "put":
                fields: dict[str, Any] = {"priority": dice.randint(-1, 1), "fairness_key": dice.choice(self.tenants)}
                if dice.random() < 0.2:
                    fields["delay_ms"] = dice.randint(1, 5_000)
                self.ids += put(host, *[b"x"] * dice.randint(1, 3), **fields)
            case "take":
                self.take(dice.randint(1, 4), lease_ms=dice.choice([1_000, 60_000]))
            case "end":
                for item_id, lease in list(self.held.items())[: dice.randint(1, 3)]:
                    del self.held[item_id]
                    if dice.random() < 0.5:
                        host.ask("Ack", items=[idl.AckItem(item_id, lease)])
                    else:
                        delay_ms = dice.choice([0, 0, 2_000])
                        host.ask("Nack", items=[idl.NackItem(item_id, lease, delay_ms=delay_ms)])
            case "wait":
                host.wait(dice.choice([10, 500, 3_000]))
            case "pause":
                self.version += 1
                paused = {"topic.t": '{"paused": true}'} if dice.random() < 0.3 else {}
                host.settings.apply(Settings("n", self.version, paused))
                host.run()
            case "reopen":
                if dice.random() < 0.2:
                    host.reopen(clean=dice.random() < 0.5)
                    host.run()
            case "memory":
                shard = host.engine.state.shards[dice.choice([1, 2])]
                for lane in list(shard.memory.lanes.values()):
                    if dice.random() < 0.3:
                        shard.memory.drop_window(lane)

    def take(self, count: int, **fields: Any) -> list[int]:
        call = self.host.call("Dequeue", ns="n", wants=[idl.TopicCount("t", count)], wait_ms=1, **fields)
        while not call.answers:
            self.host.wait(50)
        items = call.answer.items
        self.held |= {item.id: item.lease for item in items}
        return [item.id for item in items]

    def check(self) -> None:
        item_id = self.dice.choice(self.ids)
        answer = self.host.ask("ExplainItem", id=item_id)
        codes = [reason.code for reason in answer.reasons]
        assert codes == sorted(codes)
        listed = {item.id: item.state for item in self.host.ask("ListItems", ns="n", topic="t", limit=1_000).items}
        assert answer.state == listed.get(item_id), codes
        assert (R.GONE in codes) == (item_id not in listed)
        assert (R.DELAYED in codes) == (answer.state == State.DELAYED)
        assert (R.LEASED in codes) == (answer.state == State.LEASED)
        if not codes:
            assert self.take(1) == [item_id], "it is the next"
        elif codes == [R.BEHIND_IN_LANE] and self.tenants == (None,) and " to " not in answer.reasons[0].text:
            before, now_ms, got = answer.reasons[0].count, self.host.now_ms, []
            while len(got) <= before and self.host.now_ms == now_ms:
                got += self.take(before + 1 - len(got))
            if self.host.now_ms == now_ms:  # else more items may have become ready
                assert got[-1] == item_id, "exactly so many come first"


@pytest.mark.parametrize("seed", range(8))
def test_explanations_are_true(seed: int) -> None:
    history = History(seed)
    history.ids += put(history.host, b"x")
    for _ in range(STEPS):
        history.step()
        history.check()


def test_the_topic_agrees_with_its_items() -> None:
    host = OneHost(1)
    put(host, b"x")
    assert [reason.code for reason in host.ask("ExplainItem", ns="n", topic="t").reasons] == [R.NO_CONSUMER]
    take(host)
    assert [reason.code for reason in host.ask("ExplainItem", ns="n", topic="t").reasons] == [R.LEASED]
