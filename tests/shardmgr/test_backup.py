"""The document of an export, and what an import of it writes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from foqs.errors import Invalid
from foqs.ids import HASH_SLOTS, Mark, Stamp
from foqs.policies.settings import Settings
from foqs.shardmgr.backup import Backup, Import, decode_backup, encode_backup, plan_import
from foqs.shardmgr.facts import Assignment, Identity, ShardFact, ShardUse, SlotMove, Slots

FIRST = Settings("shop").changed({"plans/a": "1"}, (), nonce="1")
SECOND = FIRST.changed({"plans/a": "2"}, (), nonce="2")
FULL = Backup(
    Identity(3, "the-id", ("lost-1",)),
    {1: ShardFact(1, "mysql://u:p@h/1", 2.0), 7: ShardFact(7, "sqlite:////ä", use=ShardUse.DISABLED)},
    Slots(4, (1,) * HASH_SLOTS, {9: SlotMove(7, 5)}, 6),
    Assignment(5, {1: "a/b"}),
    frozenset({"a", "ü"}),
    {1: {"": Mark(1, 2, 3), "ab": Mark(4, 5, 6, 7, Stamp(8, 9, "h"))}},
    {"shop": SECOND, "a/b": Settings("a/b", 3)},
)
NO_SHARDS: frozenset[int] = frozenset()


def text(backup: Backup = FULL) -> str:
    return encode_backup(backup, at="2026-01-01T00:00:00+00:00", version="1")


def test_a_document_is_read_as_it_was_written() -> None:
    read = decode_backup(text())
    assert read == replace(
        FULL, identity=replace(FULL.identity, version=-1), slots=replace(FULL.slots, version=-1),
        assignment=replace(FULL.assignment, version=-1),
    )  # fmt: skip
    assert read.settings["shop"].history == SECOND.history
    assert decode_backup(text(Backup())) == Backup()


def test_each_record_has_a_line() -> None:
    assert sum(line.lstrip().startswith('"1": {"url"') for line in text().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 2}, "format 2"),
        ({"shards": None}, "shards: missing"),
        ({"shards": {"0": {}}}, "shards: '0' is no shard number"),
        ({"shards": {"1": {"url": ""}}}, "shard 1: url is missing"),
        ({"slots": {"shards": [1]}}, "slots: shards is no list"),
        ({"drained": [1]}, "drained: not a list of texts"),
        ({"marks": {"1": {"a": {}}}}, "mark of shard 1: epoch"),
        ({"settings": {"ns": {"stamp": 1}}}, "settings of ns"),
        ({"cluster": {"id": 7}}, "cluster: id is missing"),
    ],
)
def test_a_document_that_cannot_be_read_says_where(change: dict[str, object], error: str) -> None:
    with pytest.raises(Invalid, match=error):
        decode_backup(json.dumps(json.loads(text()) | change))


@pytest.mark.parametrize("wrong", ["", "{", "[]", "{}", text()[:-100]])
def test_another_text_is_refused(wrong: str) -> None:
    with pytest.raises(Invalid):
        decode_backup(wrong)


def test_an_empty_cluster_gets_all() -> None:
    plan = plan_import(FULL, Backup(), NO_SHARDS)
    assert (plan.shards, plan.replaces, plan.keeps) == (tuple(FULL.shards.values()), (), ())
    assert plan.slots == replace(FULL.slots, version=-1)
    assert (plan.assignment, plan.drained, plan.marks) == ({1: "a/b"}, {"a", "ü"}, FULL.marks)
    assert plan.settings == (SECOND, Settings("a/b", 3))
    assert plan.identity == Identity(-1, "the-id", ("lost-1",))
    assert not any("mysql" in line for line in plan.adds)


def test_the_same_cluster_gets_nothing() -> None:
    assert plan_import(FULL, FULL, NO_SHARDS) == Import()


def test_nothing_is_lowered() -> None:
    later = SECOND.changed({"plans/a": "3"}, (), nonce="3")
    now = replace(
        FULL, slots=replace(FULL.slots, stamp=99), settings={"shop": later, "a/b": Settings("a/b", 3)},
        marks={1: {"": Mark(1, 2, 4), "ab": Mark(4, 1, 1)}},
    )  # fmt: skip
    plan = plan_import(FULL, now, NO_SHARDS)
    assert (plan.slots, plan.settings, plan.marks) == (None, (), {1: {"ab": FULL.marks[1]["ab"]}})
    assert len(plan.keeps) == 2
    assert plan_import(FULL, now, frozenset({1})).marks == {}, "its owner writes the mark itself"


def test_settings_that_were_made_apart_stay() -> None:
    apart = Settings("shop").changed({"plans/a": "9"}, (), nonce="9")
    plan = plan_import(FULL, replace(FULL, settings={"shop": apart}), NO_SHARDS)
    assert plan.settings == (Settings("a/b", 3),)
    assert any("made apart" in line for line in plan.keeps)


def test_differences_of_shards_are_shown_without_urls() -> None:
    now = replace(FULL, shards={1: ShardFact(1, "mysql://u:p@other/1"), 9: ShardFact(9, "z")})
    plan = plan_import(FULL, now, NO_SHARDS)
    assert (plan.shards, plan.replaces) == ((FULL.shards[7],), (FULL.shards[1],))
    assert plan.keeps == ("shard 1: another URL, weight 1, in the file 2", "shard 9: not in the file")


def test_another_cluster_and_an_event_are_refused() -> None:
    with pytest.raises(Invalid, match="of cluster the-id, and ZooKeeper has cluster other"):
        plan_import(FULL, Backup(Identity(0, "other")), NO_SHARDS)
    with pytest.raises(Invalid, match="wait for the end"):
        plan_import(FULL, Backup(Identity(0, "the-id", ("lost-2",), open=True)), NO_SHARDS)
