"""A command whose change gets no answer, with a simulated ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foqs.config.schema import ZookeeperSection
from foqs.errors import Forbidden, Invalid, Unavailable
from foqs.shardmgr.facts import Facts, Session, ShardFact
from foqs.shardmgr.operate import Change, add_shard
from foqs.zk import session as module
from foqs.zk.protocol import Done, ZkConflict, ZkError, ZkRefused, ZkUnavailable, ZkUnknown
from foqs.zk.session import Cluster

FACT = ShardFact(7, "sqlite:///seven")


class Played:
    """Answers each attempt to add a shard with the next one of `answers`.

    The first attempt adds the shard; the command sees the shard only after the second one.
    """

    answers: list[ZkError | None]
    facts = Facts()

    def __init__(self, _config: object, _loop: object) -> None:
        self.tries = 0

    def start(self, changed: Callable[[Facts], None], session: Callable[[Session], None]) -> None:
        self._changed, self._session = changed, session
        self._connected()

    def close(self, done: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(done)

    def put_shard(self, fact: ShardFact, *, new: bool, done: Done) -> None:
        self.tries += 1
        asyncio.get_running_loop().call_soon(self._answer, fact, done, self.answers[self.tries - 1])

    def _answer(self, fact: ShardFact, done: Done, error: ZkError | None) -> None:
        done(error)
        if self.tries > 1:  # the session reports a lost connection, then a new one
            self._session(Session.SUSPENDED)
            self.facts = replace(self.facts, shards={fact.id: fact})
            self._connected()

    def _connected(self) -> None:
        self._session(Session.CONNECTED)
        self._changed(self.facts)


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, list[bool]]]:
    def carried_out(*answers: ZkError | None) -> tuple[Any, list[bool]]:
        audited: list[bool] = []
        monkeypatch.setattr(module, "ZkFactStore", Played)
        monkeypatch.setattr(Played, "answers", list(answers), raising=False)

        async def work() -> Change:
            async with Cluster(ZookeeperSection(hosts="nowhere:1"), 20) as cluster:
                return await cluster.carry_out(
                    lambda facts: add_shard(facts, FACT), lambda _, sure: audited.append(sure)
                )

        try:
            return asyncio.run(work()), audited
        except (Invalid, Forbidden, Unavailable) as error:
            return error, audited

    return carried_out


@pytest.mark.parametrize("second", [ZkUnavailable("lost"), ZkConflict("exists"), ZkUnknown("lost")])
def test_a_command_recognises_its_own_change(carried_out: Any, second: ZkError) -> None:
    """The first answer was lost, and the facts after it are older: from a lagging server or from before the loss."""
    change, audited = carried_out(ZkUnknown("lost"), second)
    assert isinstance(change, Change), change
    assert audited == [True]


def test_an_uncertain_change_is_audited_if_its_retry_is_refused(carried_out: Any) -> None:
    error, audited = carried_out(ZkUnknown("lost"), ZkRefused("no"))
    assert isinstance(error, Forbidden)
    assert audited == [False]
