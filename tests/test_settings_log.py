"""The log of settings: its bounds, and the versions that are made of it again."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid, NotFound
from foqs.policies.settings import MOST_BYTES, Settings, adopt, decode, parse_document
from foqs.settings_log import (
    LOG_BYTES,
    MOST_VERSIONS,
    NO_LOG,
    TRANSACTION_BYTES,
    UNKNOWN,
    Log,
    SettingsStamp,
    SettingsVersion,
    ValueDigest,
    decode_stamps,
    difference,
    digest_of,
    encode_stamps,
    undoing,
)
from foqs.settings_log import decode as decode_log
from tests.policies.log_checks import disagreements

ANN, BEN = SettingsStamp(1_000, "ann"), SettingsStamp(2_000, "ben")


def put(settings: Settings, stamp: SettingsStamp, /, *remove: str, **entries: str) -> Settings:
    return settings.changed(entries, remove, nonce=f"{settings.version}{entries}", stamp=stamp)


def reverted(settings: Settings, to: int, *only: str) -> Settings:
    entries, remove = undoing(settings.log.records, settings.version, to, only)
    return settings.changed(entries, remove, nonce="revert", stamp=BEN) if entries or remove else settings


def written_by_an_older_host(settings: Settings, entries: Mapping[str, str]) -> Settings:
    """A host of the version before this one reads a document, and writes it without the fields that are new."""
    known = json.loads(settings.document())
    known["stamp"], known["entries"] = known["stamp"] + 1, entries
    known["past"] = ["of an older host", *known["past"]][:32]
    for name in ("logged", "stamps"):
        known.pop(name, None)
    return parse_document(settings.ns, json.dumps(known).encode())


# ------------------------------------------------------------------------------------------ records and stamps


def test_a_change_is_logged_with_its_author_and_its_values() -> None:
    settings = put(put(Settings("shop"), ANN, a="1", b="1"), BEN, "b", a="2")
    first, second = settings.log.records
    assert first == SettingsVersion(1, ANN, {"a": (None, "1"), "b": (None, "1")})
    assert second == SettingsVersion(2, BEN, {"a": ("1", "2"), "b": ("1", None)})
    assert settings.stamps == {"a": BEN}


def test_an_entry_that_keeps_its_value_keeps_its_stamp() -> None:
    """A command that is repeated asks the hosts again, and is no change of the entry."""
    settings = put(put(Settings("shop"), ANN, a="1"), BEN, a="1", b="1")
    assert settings.stamps == {"a": ANN, "b": BEN}
    assert settings.log.records[-1].changes == {"b": (None, "1")}


def test_a_document_has_its_log_and_its_stamps() -> None:
    settings = put(put(Settings("shop"), ANN, a="1", ä="\n"), BEN, b="2")
    again = decode("shop", settings.encoded())
    assert (again.log, again.stamps, again.logged) == (settings.log, settings.stamps, 2)
    apart = decode("shop", settings.document())
    assert (apart.log, apart.stamps, apart.whole) == (NO_LOG, settings.stamps, False)
    assert apart.with_log(decode_log(settings.log.encoded())).whole


@pytest.mark.parametrize("log", [b"[", b'{"version": 1}', b'{"version":2,"at":0}\n{"version":1,"at":0}'])
def test_an_unreadable_log_is_refused_alone(log: bytes) -> None:
    settings = put(Settings("shop"), ANN, a="1")
    with pytest.raises(Invalid):
        decode_log(log)
    spoilt = settings.document()[:-1] + b',"log":[7],"stamps":7}'
    again = decode("shop", spoilt)
    assert (again, again.log) == (settings, NO_LOG)


def test_an_unreadable_record_is_none() -> None:
    settings = put(put(Settings("shop"), ANN, a="1"), ANN, a="2")
    spoilt = decode_log(settings.log.lines[0].replace(b'"1"', b"7") + b"\n" + settings.log.lines[1])
    assert [record.version for record in spoilt.records] == [2]
    with pytest.raises(NotFound, match="the log no longer has version 1, or never had it"):
        undoing(spoilt.records, 2, 0)


def test_a_pause_and_the_last_change_have_two_authors() -> None:
    settings = put(Settings("shop"), ANN, **{"topic.mail": '{"paused": true}'})
    assert settings.set_by("topic.mail", "paused") == (ANN, True)
    settings = put(settings, BEN, **{"topic.mail": '{"paused": true, "priority": 1}'})
    assert settings.set_by("topic.mail", "paused") == (ANN, True)
    forgetful = replace(settings, log=Log(settings.log.lines[1:]))
    assert forgetful.set_by("topic.mail", "paused") == (BEN, False)
    assert replace(settings, log=NO_LOG, stamps={}).set_by("topic.mail", "paused") == (UNKNOWN, False)


# ------------------------------------------------------------------------------------------ bounds


def test_the_oldest_versions_make_room() -> None:
    settings = Settings("shop")
    for number in range(MOST_VERSIONS + 7):
        settings = put(settings, ANN, a=str(number))
    versions = [record.version for record in settings.log.records]
    assert versions == list(range(8, MOST_VERSIONS + 8))
    assert disagreements(settings) == []
    with pytest.raises(NotFound, match="the log no longer has version 7"):
        undoing(settings.log.records, settings.version, 6)


def test_the_log_is_bounded_in_bytes() -> None:
    settings = Settings("shop")
    for number in range(100):
        settings = put(settings, ANN, **{f"key{number % 3}": f"{number} {'x' * 4_000}"})
        assert len(settings.log.encoded()) <= LOG_BYTES
    assert len(settings.log.encoded()) > 0.95 * LOG_BYTES
    assert 20 < len(settings.log.records) < 40
    assert disagreements(settings) == []
    assert reverted(settings, 90).entries == {"key2": f"89 {'x' * 4_000}", "key1": f"88 {'x' * 4_000}",
                                              "key0": f"87 {'x' * 4_000}"}  # fmt: skip


def test_the_greatest_settings_have_a_log_too() -> None:
    """Both fit one transaction of ZooKeeper, also when every value changes at once."""
    keys = [f"{number:04}" for number in range(218)]
    settings = put(Settings("shop"), ANN, **dict.fromkeys(keys, "x" * 4_096))
    for number in range(5):
        settings = put(settings, ANN, **dict.fromkeys(keys, str(number) * 4_096))
        assert len(settings.document()) > 0.98 * MOST_BYTES
        assert len(settings.document()) + len(settings.log.encoded()) <= TRANSACTION_BYTES + 100
        assert settings.log.version == settings.version
    with pytest.raises(NotFound, match=r"version 5 cannot be restored exactly: .* of 0000 \(4,096 bytes\), "):
        undoing(settings.log.records, settings.version, 5)
    small = put(settings, BEN, **{"0007": "y"})
    assert reverted(small, settings.version) == replace(settings, version=small.version + 1)
    assert disagreements(small) == []


def test_a_large_change_is_undone_while_its_old_values_fit() -> None:
    old = {f"{number:03}": f"{number} " + "x" * 3_000 for number in range(60)}
    settings = put(put(Settings("shop"), ANN, **old), BEN, **dict.fromkeys(old, "y" * 4_000))
    record = settings.log.records[-1]
    assert any(isinstance(new, ValueDigest) for _, new in record.changes.values())
    assert all(isinstance(before, str) for before, _ in record.changes.values())
    assert reverted(settings, 1).entries == old
    assert disagreements(settings) == []


def test_more_keys_than_the_log_has_room_for() -> None:
    keys = {f"key {number:06} {'k' * 40}": "" for number in range(12_000)}
    settings = put(put(Settings("shop"), ANN, a="1"), ANN, **keys)
    record = settings.log.records[-1]
    assert len(settings.log.encoded()) <= TRANSACTION_BYTES - len(settings.document())
    assert record.left_out + len(record.changes) == len(keys)
    assert record.left_out > 0
    with pytest.raises(NotFound, match="version 2 changed more than the log has room for"):
        undoing(settings.log.records, 2, 1)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
records = st.builds(
    SettingsVersion,
    st.integers(1, 9_999),
    st.builds(SettingsStamp, st.integers(0, 10**13), texts),
    st.dictionaries(texts, st.tuples(st.none() | texts, st.none() | texts), max_size=30),
    st.just(0),
)


@given(records, st.integers(200, 4_000))
def test_a_record_fits_its_room_and_reads_back(record: SettingsVersion, room_bytes: int) -> None:
    cut = record.within(room_bytes)
    assert len(cut.encoded()) <= room_bytes
    assert cut.left_out + len(cut.changes) == len(record.changes)
    assert decode_log(cut.encoded()).records == (cut,)
    if len(record.encoded()) <= room_bytes // 2:
        assert cut == record


@given(st.lists(st.integers(0, 5), max_size=200), st.integers(20, 500))
def test_stamps_fit_their_room(places: list[int], room_bytes: int) -> None:
    keys = [f"{number:04}" for number in range(len(places))]
    stamps = {key: SettingsStamp(place, f"by {place}") for key, place in zip(keys, places, strict=True) if place}
    made = encode_stamps(keys, stamps, room_bytes)
    assert not made or len(json.dumps(made, separators=(",", ":"))) <= room_bytes
    found = decode_stamps(keys, made) if made else {}
    kept = min((stamp for stamp in found.values()), default=SettingsStamp(9, ""))
    assert found == {key: stamp for key, stamp in stamps.items() if stamp >= kept}


def test_all_stamps_of_usual_settings_are_kept() -> None:
    settings = Settings("shop")
    for number in range(300):
        settings = put(settings, SettingsStamp(number + 1, f"10.0.0.1:{number}"), **{f"{number * 7 % 300}": "x"})
    assert len(decode("shop", settings.encoded()).stamps) == 300


# ------------------------------------------------------------------------------------------ earlier versions

changes = st.tuples(
    st.dictionaries(st.sampled_from("abcdef"), st.text("xyz", max_size=3), max_size=4),
    st.sets(st.sampled_from("abcdef"), max_size=3),
)


@given(st.lists(changes, min_size=1, max_size=12), st.data())
def test_a_revert_gives_exactly_the_entries_of_the_version(
    made: list[tuple[dict[str, str], set[str]]], data: st.DataObject
) -> None:
    versions = [Settings("shop")]
    for entries, remove in made:
        gone = remove & versions[-1].entries.keys() - entries.keys()
        versions.append(versions[-1].changed(entries, gone, nonce=str(len(versions)), stamp=ANN))
    present = versions[-1]
    to = data.draw(st.integers(0, present.version - 1))
    assert reverted(present, to).entries == versions[to].entries
    key = data.draw(st.sampled_from("abcdef"))
    only = reverted(present, to, key)
    others = {one: value for one, value in present.entries.items() if one != key}
    assert {one: value for one, value in only.entries.items() if one != key} == others
    assert only.entries.get(key) == versions[to].entries.get(key)
    again = reverted(present, to)
    assert disagreements(again) == []
    if again is not present:
        assert reverted(again, present.version).entries == present.entries


@given(st.lists(changes, min_size=2, max_size=8), st.data())
def test_a_difference_is_that_of_the_entries(made: list[tuple[dict[str, str], set[str]]], data: st.DataObject) -> None:
    versions = [Settings("shop")]
    for entries, remove in made:
        gone = remove & versions[-1].entries.keys() - entries.keys()
        versions.append(versions[-1].changed(entries, gone, nonce=str(len(versions)), stamp=ANN))
    early = data.draw(st.integers(0, len(made) - 1))
    late = data.draw(st.integers(early + 1, len(made)))
    before, after = versions[early].entries, versions[late].entries
    both = {key: (before.get(key), after.get(key)) for key in {*before, *after}}
    expected = {key: (old, new) for key, (old, new) in both.items() if old != new}
    assert difference(versions[-1].log.records, early, late) == (expected, [])


@pytest.mark.parametrize("to", [-1, 3, 4])
def test_no_version_but_an_earlier_one_is_restored(to: int) -> None:
    settings = put(put(put(Settings("shop"), ANN, a="1"), ANN, a="2"), ANN, a="3")
    with pytest.raises(Invalid, match=f"version {to} is none before version 3"):
        undoing(settings.log.records, 3, to)


def test_a_digest_is_compared_with_a_text() -> None:
    records = [
        SettingsVersion(1, ANN, {"a": (None, digest_of("x"))}),
        SettingsVersion(2, ANN, {"a": ("x", "y")}),
        SettingsVersion(3, ANN, {"a": ("y", "x")}),
    ]
    assert difference(records, 1, 3) == ({}, [])


# ------------------------------------------------------------------------------------------ hosts of an older version


def test_versions_of_an_older_host_have_no_record() -> None:
    first = put(put(Settings("shop"), ANN, a="1", b="1"), ANN, a="2")
    older = written_by_an_older_host(first, {"a": "3", "b": "1"}).with_log(first.log)
    assert (older.version, older.entries, older.whole) == (3, {"a": "3", "b": "1"}, True)
    assert older.stamps == {"b": ANN}, "the log still has the author of b"
    settings = put(older, BEN, c="1")
    assert [record.version for record in settings.log.records] == [1, 2, 4]
    assert settings.stamps == {"b": ANN, "c": BEN}
    assert disagreements(settings, older_hosts=True) == []
    assert difference(settings.log.records, 1, 4).unknown == [3]
    assert reverted(settings, 3).entries == older.entries
    with pytest.raises(NotFound, match=r"version 3 was made by a host of an older version .* version 3 is the oldest"):
        undoing(settings.log.records, 4, 2)


def test_a_value_that_was_changed_by_hand_is_noticed() -> None:
    """As after a change by hand."""
    records = [SettingsVersion(1, ANN, {"a": (None, "1")}), SettingsVersion(2, ANN, {"a": ("by hand", "2")})]
    assert difference(records, 0, 2).unknown == [2]


def test_copies_of_one_history_have_both_logs() -> None:
    old = put(put(Settings("shop"), ANN, a="1"), ANN, a="2")
    new = put(put(old, BEN, a="3"), BEN, a="4")
    bare = replace(new, log=Log(new.log.lines[-1:]))
    assert bare.united(old).log.lines == (*old.log.lines, new.log.lines[-1])
    assert new.united(old) is new
    assert adopt(new, "shard 1")(replace(new, log=NO_LOG)).log == new.log
    other = put(put(Settings("shop"), BEN, b="1"), BEN, "b", a="4")
    assert other.united(new) is other, "made apart"


def test_a_seeded_life_of_a_namespace() -> None:
    """Changes, reverts, copies that are read again, and hosts of an older version."""
    for seed in range(60):
        rng = random.Random(seed)
        settings, older = Settings("shop"), seed % 3 == 0
        known = {0: settings.entries}
        for step in range(rng.randint(1, 160)):
            sizes = [rng.choice([1, 3, 2_000]) for _ in range(rng.randint(1, 3))]
            entries = {rng.choice("abcd"): "v" * size + str(step) for size in sizes}
            if rng.random() < 0.1:
                settings = decode("shop", settings.encoded())
            if rng.random() < 0.1 and settings.version:
                to = rng.randrange(settings.version)
                try:
                    settings = reverted(settings, to)
                except NotFound:
                    assert older or to < settings.version - 20
                else:
                    assert settings.entries == known[to]
            elif older and rng.random() < 0.1:
                settings = written_by_an_older_host(settings, {**settings.entries, **entries}).with_log(settings.log)
            else:
                settings = put(settings, SettingsStamp(step + 1, f"seed {seed}"), **entries)
            known[settings.version] = settings.entries
            assert disagreements(settings, older_hosts=older) == [], f"seed {seed}"
