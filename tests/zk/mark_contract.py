"""What every FactStore does with the marks of shards: a part of `tests.zk.contract`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foqs.ids import Mark
from foqs.shardmgr.facts import Session
from foqs.zk.protocol import ZkUnavailable

if TYPE_CHECKING:
    from tests.zk.contract import Client, Rig


class MarkContract:
    def test_marks_of_shards_are_kept_by_epoch(self, a: Client, b: Client) -> None:
        """They belong to no session, and one of an earlier owner does not replace a later owner's."""
        first, later, early = Mark(5, 100, 200), Mark(6, 150, 300), Mark(4, 900, 1_000)
        assert a.remember(3, first) is None
        assert b.recall(3) == {"a1": first}
        assert b.remember(3, later) is None
        assert a.remember(3, early) is None
        assert a.recall(3) == {"a1": later}
        a.close()
        assert b.recall(3) == {"a1": later}
        assert b.recall(4) == {}

    def test_each_identity_of_a_number_has_its_mark(self, a: Client, b: Client) -> None:
        """A database without an identity has one, too."""
        marks = {"a1": Mark(5, 100, 200, 7), "b2": Mark(1, 2, 3), "": Mark(4, 5, 6)}
        for identity, mark in marks.items():
            assert a.remember(3, mark, identity) is None
        assert a.remember(4, Mark(9, 9, 9), "c3") is None
        assert b.recall(3) == marks

    def test_marks_are_refused_without_a_connection(self, rig: Rig, a: Client) -> None:
        rig.cut(a.store)
        rig.until(lambda: a.sessions[-1] is Session.SUSPENDED)
        assert isinstance(a.remember(3, Mark(1, 2, 3)), ZkUnavailable)
        found: list[Any] = []
        a.store.recall(3, lambda mark, error: found.append((mark, error)))
        rig.until(lambda: found)
        assert found[0][0] == {}
        assert isinstance(found[0][1], ZkUnavailable)
        rig.mend(a.store)
