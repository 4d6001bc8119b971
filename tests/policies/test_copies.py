"""Copies of settings: which one counts, which are refused, and in how many shards they are safe."""

from __future__ import annotations

from itertools import combinations

import pytest

from foqs.errors import Conflict
from foqs.policies.settings import Head, Settings, Standing, adopt, decode, enough, head_of, newest, remedy, standing


def made(*nonces: str, start: Settings | None = None) -> Settings:
    settings = start or Settings("shop")
    for nonce in nonces:
        settings = settings.changed({"by": nonce}, (), nonce=nonce)
    return settings


OLD, NEW, OTHER = made("a"), made("a", "b"), made("c", "d", "e")


def test_the_standing_of_a_copy() -> None:
    assert standing(NEW, NEW) is Standing.SAME
    assert standing(OLD, NEW) is Standing.OLDER
    assert standing(NEW, OLD) is Standing.NEWER
    assert standing(NEW, Settings("shop")) is Standing.NEWER
    assert standing(NEW, OTHER) is standing(OTHER, NEW) is standing(OLD, OTHER) is Standing.FOREIGN


def test_a_fork_of_one_history_is_foreign_whichever_is_longer() -> None:
    left, right = made("x", start=OLD), made("y", "z", start=OLD)
    assert standing(left, right) is standing(right, left) is Standing.FOREIGN


def test_equal_entries_are_no_conflict() -> None:
    """An operator imported the settings of one installation into another."""
    ours, theirs = made("a", "b"), Settings("shop").changed({"by": "b"}, (), nonce="import")
    assert standing(theirs, ours) is Standing.OLDER
    assert standing(ours, theirs) is Standing.NEWER


def test_a_copy_survives_its_document() -> None:
    again = decode("shop", NEW.encoded())
    assert (again, again.history) == (NEW, NEW.history)
    assert head_of(NEW.encoded()) == Head(NEW.history, 2)
    assert head_of(b'{"stamp": 1}') is head_of(b"[") is head_of(b"") is None


def test_an_entry_that_looks_like_the_end_of_the_history() -> None:
    odd = Settings("shop").changed({'","entries":': 'x","entries":{'}, (), nonce="n")
    assert head_of(odd.encoded()) == Head(odd.history, 1)


def test_adoption_replaces_older_settings_only() -> None:
    assert adopt(NEW, "shard 1")(OLD) is NEW
    assert adopt(OLD, "shard 1")(NEW) is NEW
    assert adopt(NEW, "shard 1")(Settings("shop")) is NEW
    with pytest.raises(
        Conflict, match=r"shop in shard 1 \(version 2\) and in the cluster \(version 3\) were made apart"
    ):
        adopt(NEW, "shard 1")(OTHER)


def test_the_newest_copy_of_each_namespace_counts() -> None:
    mail = Settings("mail").changed({"a": "1"}, (), nonce="m")
    assert newest([(1, OLD), (2, NEW), (2, mail), (3, OLD)]) == {"shop": (2, NEW), "mail": (2, mail)}


@pytest.mark.parametrize("order", [[(1, NEW), (2, OTHER)], [(2, OTHER), (1, NEW)], [(1, OLD), (2, OTHER), (3, NEW)]])
def test_copies_made_apart_name_both_shards_and_commands(order: list[tuple[int, Settings]]) -> None:
    with pytest.raises(Conflict) as raised:
        newest(order)
    for words in ("shard 1", "shard 2", "namespace shop", "`foqs shards settings 2 --discard`"):
        assert words in raised.value.message
    assert remedy(2) in raised.value.message


@pytest.mark.parametrize("count", range(1, 8))
def test_two_majorities_have_a_shard_in_common(count: int) -> None:
    shards = range(3, 3 + count)
    chosen = [set(some) for size in range(count + 1) for some in combinations(shards, size) if enough(shards, some)]
    assert all(one & other for one in chosen for other in chosen)
    assert enough(shards, shards)
    assert not enough(shards, ())
    assert enough(shards, [*shards][: count // 2 + count % 2]), "half of them, with the lowest"


def test_shards_that_are_not_of_the_host_do_not_count() -> None:
    assert not enough([2, 3], [1, 4])
    assert enough([2, 3], [2])
    assert not enough([2, 3], [3])
