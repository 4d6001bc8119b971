"""Simulated hosts that act in ZooKeeper with the real controller, and commands that run beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from foqs.shardmgr.controller import Controller, ControllerSettings
from foqs.shardmgr.facts import Facts, HostFact, OwnerFact
from foqs.zk.protocol import ZkError
from tests.api.hosts import start
from tests.zk.rig import ZookeeperRig

_AT_ONCE = ControllerSettings(session_timeout_ms=0, settle_ms=0, balance_every_ms=3_600_000)


def served_by(facts: Facts) -> dict[int, str]:
    return {shard: owner.host for shard, owner in facts.owners.items()}


class Player:
    """A simulated host that announces each shard assigned to it once the old owner is gone, and releases other shards.

    It neither announces nor releases the shards in `holds`.
    """

    def __init__(self, rig: ZookeeperRig, name: str) -> None:
        self.rig, self.name = rig, name
        self.holds: set[int] = set()
        self.facts = Facts()
        self.controls = True
        self._epochs: dict[int, int] = {}
        self._controller = Controller(name, _AT_ONCE)
        self.store = rig.store()
        self.store.start(self._changed, lambda _: None)
        self.join()
        # The first player has to win the election before the next player starts and becomes a candidate.
        rig.until(lambda: name in self.facts.hosts and self.facts.controller is not None)

    def join(self, *, leaving: bool = False) -> None:
        self.store.join(HostFact(self.name, f"{self.name}:7707", "run", leaving))

    def sees(self, condition: Callable[[Facts], object]) -> None:
        self.rig.until(lambda: condition(self.facts))

    def let_go(self) -> None:
        self.holds.clear()
        self._changed(self.facts)

    def assign(self, hosts: dict[int, str]) -> None:
        outcomes: list[ZkError | None] = []
        self.store.assign(hosts, self.facts.assignment.version, outcomes.append)
        self.rig.until(lambda: outcomes)
        assert outcomes == [None]

    def _changed(self, facts: Facts) -> None:
        self.facts = facts
        if self.controls and (write := self._controller.decide(facts, 0).write) is not None:
            self.store.assign(write.hosts, write.version, lambda _: None)
        mine = {shard for shard, host in facts.assignment.hosts.items() if host == self.name}
        for shard in mine - self.holds:
            owner = facts.owners.get(shard)
            if owner is None and shard not in self._epochs:
                self._epochs[shard] = epoch = facts.assignment.version + 1
                self.store.own(OwnerFact(shard, self.name, f"{self.name}:7707", epoch), lambda _: None)
        for shard in self._epochs.keys() - mine - self.holds:
            self.store.disown(shard, self._epochs.pop(shard), lambda _: None)


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    """A process `python -m foqs ARGS`. The loop of the players runs while a test waits for it.

    With `terminal` the command reads from a terminal, where `stdin` was typed ahead.
    """

    def __init__(
        self, rig: ZookeeperRig, folder: Path, *args: str | Path, stdin: str = "", terminal: bool = False
    ) -> None:
        self._rig = rig
        read, keyboard = os.openpty()[::-1] if terminal else os.pipe()
        os.write(keyboard, stdin.encode())
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = start([*map(str, args)], read, out.fileno(), err.fileno())
        os.close(read)
        self._keyboard = keyboard if terminal else None
        if not terminal:
            os.close(keyboard)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def says(self, words: str) -> None:
        self._rig.until(lambda: words in self.out + self.err or self.process.poll() is not None)
        assert words in self.out + self.err

    def ended(self) -> Ran:
        self._rig.until(lambda: self.process.poll() is not None)
        assert "Traceback" not in self.err, self.err
        return Ran(self.process.returncode, self.out, self.err)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._keyboard is not None:
            os.close(self._keyboard)
            self._keyboard = None
