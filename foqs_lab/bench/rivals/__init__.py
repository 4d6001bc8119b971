"""Queues that users would otherwise pick, on the same work: durable, random priorities, lease then ack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from foqs_lab.bench.rig import Rig
from foqs_lab.bench.rivals.beanstalkd import Beanstalkd
from foqs_lab.bench.rivals.node import BullMq, GraphileWorker
from foqs_lab.bench.rivals.rival import Rival
from foqs_lab.bench.rivals.sql import Pgmq, SkipLocked
from foqs_lab.servers import ServerUnavailable

__all__ = ["RIVALS", "Rival", "Rivals", "started"]

_OWN_SERVERS = (Pgmq, GraphileWorker, BullMq, Beanstalkd)
RIVALS: Mapping[str, type[Rival]] = {rival.name: rival for rival in (SkipLocked, *_OWN_SERVERS)}


@dataclass(slots=True)
class Rivals:
    """The rivals that run, and the reason of each that does not, by name."""

    running: list[Rival] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


@contextmanager
def started(rig: Rig) -> Iterator[Rivals]:
    """Start every rival that is installed. SKIP LOCKED uses the server of the shards, if there is one."""
    rivals = Rivals()
    with ExitStack() as stack:
        if rig.server_pid:
            rivals.running.append(SkipLocked(rig))
            stack.callback(rivals.running[0].close)
        for make in _OWN_SERVERS:
            rival = make()
            try:
                rival.start()
            except ServerUnavailable as error:
                rivals.missing[rival.name] = error.reason
                continue
            stack.callback(rival.close)
            rivals.running.append(rival)
        yield rivals
