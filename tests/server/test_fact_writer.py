"""Writes to ZooKeeper's facts: their arguments, the lines of their outcomes, and conflicts that are no failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.server.cluster_node import LoggedFactWriter
from foqs.shardmgr.controller import Write
from foqs.shardmgr.facts import HostFact, OwnerFact, SlotMove, Slots
from foqs.zk.protocol import ZkConflict, ZkError, ZkUnavailable

pytestmark = pytest.mark.memory

OWNER = OwnerFact(7, "a", "a:1", 3)
WRITE = Write({1: "a", 2: "b"}, 4, placed=(1,), moved=(2,), dropped=(3,))
SLOTS = Slots(5, (1,), {0: SlotMove(2, 9)}, 9)
DOWN = ZkUnavailable("no connection")


class Store:
    """Notes each write; the last argument of all but `join` is called with the outcome."""

    def __init__(self, error: ZkError | None = None) -> None:
        self.error = error
        self.asked: list[tuple[Any, ...]] = []

    def join(self, host: HostFact) -> None:
        self.asked.append(("join", host))

    def __getattr__(self, name: str) -> Callable[..., None]:
        def write(*args: Any) -> None:
            self.asked.append((name, *args[:-1]))
            args[-1](self.error)

        return write


def write(do: Callable[[LoggedFactWriter], None], error: ZkError | None = None) -> tuple[list[Any], list[Any]]:
    """Return the requests to the store, and the lines of the log."""
    store = Store(error)
    with capture_logs() as lines:
        do(LoggedFactWriter(store))  # type: ignore[arg-type]
    return store.asked, lines


def test_a_host_joins_without_an_outcome() -> None:
    fact = HostFact("a", "a:1", "run")
    assert write(lambda writer: writer.join(fact)) == ([("join", fact)], [])


def test_only_a_failed_announcement_is_logged() -> None:
    assert write(lambda writer: writer.own(OWNER)) == ([("own", OWNER)], [])
    _, (line,) = write(lambda writer: writer.own(OWNER), DOWN)
    assert (line["event"], line["what"], line["shard"]) == ("owner.not_written", "announce", 7)
    assert line["reason"] == "no connection"
    asked, (line,) = write(lambda writer: writer.disown(7, 3), DOWN)
    assert (asked, line["what"]) == ([("disown", 7, 3)], "withdraw")


def test_a_written_assignment_is_logged_with_its_changes() -> None:
    asked, (line,) = write(lambda writer: writer.assign(WRITE))
    assert asked == [("assign", WRITE.hosts, 4)]
    assert line == {
        "event": "assignment.written", "log_level": "info", "version": 5, "placed": (1,), "moved": (2,),
        "dropped": (3,),
    }  # fmt: skip


def test_a_failed_assignment_is_a_warning_and_a_conflict_none() -> None:
    _, (line,) = write(lambda writer: writer.assign(WRITE), DOWN)
    assert (line["event"], line["log_level"], line["version"]) == ("assignment.not_written", "warning", 5)
    assert write(lambda writer: writer.assign(WRITE), ZkConflict("changed"))[1] == []


@pytest.mark.parametrize(
    ("error", "event"), [(None, "slots.written"), (DOWN, "slots.not_written"), (ZkConflict("changed"), None)]
)
def test_a_write_of_slots_is_done_with_any_outcome(error: ZkError | None, event: str | None) -> None:
    done: list[bool] = []
    asked, lines = write(lambda writer: writer.share_slots(SLOTS, lambda: done.append(True)), error)
    assert (asked, done) == ([("share_slots", SLOTS)], [True])
    assert [line["event"] for line in lines] == ([event] if event else [])
    assert all((line["version"], line["moving"]) == (6, 1) for line in lines)
