"""What every `SettingsStore` does: ZooKeeper's, a lone host's shard, and the fake that simulations run on.

A subclass has the fixtures `keeper` and `other_keeper`, on the same settings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations

import pytest

from foqs.errors import Conflict, FoqsError, Invalid
from foqs.policies.settings import MOST_BYTES, VALUE_BYTES, Settings, SettingsStore, adopt
from foqs.settings_log import SettingsStamp
from tests.policies.log_checks import disagreements

NAMESPACES = ["shop", ".", "..", "a/b", "%2E", "zookeeper", "ä 🙂", "n" * 255, "'\"\\;--", "🙂" * 63]


class Keeper:
    """A store whose answers are awaited. `until` lets time pass until its condition holds."""

    def __init__(self, store: SettingsStore, until: Callable[[Callable[[], object]], None]) -> None:
        self._store = store
        self._until = until

    def changing(self, ns: str, change: Callable[[Settings], Settings]) -> list[Settings | FoqsError]:
        """Return a list that gets the outcome."""
        outcomes: list[Settings | FoqsError] = []
        self._store.change_settings(ns, change, outcomes.append)
        assert not outcomes, "called back before it returned"
        return outcomes

    def ended(self, *outcomes: list[Settings | FoqsError]) -> list[Settings | FoqsError]:
        self._until(lambda: all(outcomes))
        return [outcome for (outcome,) in outcomes]

    def put(self, ns: str, entries: dict[str, str], *remove: str, expected: int | None = None) -> Settings:
        """Raises the error."""
        put = partial(Settings.changed, entries=entries, remove=remove, expected_version=expected)
        (outcome,) = self.ended(self.changing(ns, put))
        if isinstance(outcome, FoqsError):
            raise outcome
        return outcome

    def read(self, ns: str) -> Settings:
        (outcome,) = self.ended(self.changing(ns, lambda settings: settings))
        assert isinstance(outcome, Settings)
        return outcome


class SettingsContract:
    @pytest.mark.parametrize("ns", NAMESPACES)
    def test_settings_of_any_namespace_are_stored(self, keeper: Keeper, other_keeper: Keeper, ns: str) -> None:
        assert keeper.read(ns) == Settings(ns)
        entries = {"plans/acme": "gold", "ä": "\0'\"\\", "topic.t*": '{"paused": true}'}
        assert keeper.put(ns, entries) == Settings(ns, 1, entries)
        assert other_keeper.read(ns) == Settings(ns, 1, entries)
        assert other_keeper.read("another") == Settings("another")

    def test_each_change_adds_one_version(self, keeper: Keeper, other_keeper: Keeper) -> None:
        keeper.put("ns", {"a": "1", "b": "2"}, expected=0)
        assert other_keeper.put("ns", {"a": "3"}, "b", expected=1) == Settings("ns", 2, {"a": "3"})
        assert keeper.put("ns", {"c": ""}) == Settings("ns", 3, {"a": "3", "c": ""})

    def test_the_last_removal_leaves_an_empty_document(self, keeper: Keeper, other_keeper: Keeper) -> None:
        keeper.put("ns", {"a": "1"})
        keeper.put("ns", {}, "a")
        assert other_keeper.read("ns") == Settings("ns", 2, {})
        assert other_keeper.put("ns", {"b": "2"}).version == 3

    def test_the_error_of_a_change_changes_nothing(self, keeper: Keeper) -> None:
        keeper.put("ns", {"a": "1"})
        with pytest.raises(Conflict, match="version 1, not 0"):
            keeper.put("ns", {"a": "2"}, expected=0)
        with pytest.raises(Invalid, match="b: there is no such key"):
            keeper.put("ns", {"a": "2"}, "b")
        assert keeper.read("ns") == Settings("ns", 1, {"a": "1"})

    def test_of_two_changes_of_one_version_one_is_made(self, keeper: Keeper, other_keeper: Keeper) -> None:
        for version in range(5):
            outcomes = keeper.ended(
                *[
                    one.changing(
                        "ns", partial(Settings.changed, entries={"by": by}, remove=(), expected_version=version)
                    )
                    for one, by in ((keeper, "a"), (other_keeper, "b"))
                ]
            )
            (made,) = [outcome for outcome in outcomes if isinstance(outcome, Settings)]
            (refused,) = [outcome for outcome in outcomes if not isinstance(outcome, Settings)]
            assert isinstance(refused, Conflict)
            assert (made.version, made) == (version + 1, keeper.read("ns"))

    def test_changes_that_expect_no_version_are_all_made(self, keeper: Keeper, other_keeper: Keeper) -> None:
        outcomes = keeper.ended(
            *[
                one.changing("ns", partial(Settings.changed, entries={str(number): ""}, remove=()))
                for number, one in enumerate([keeper, other_keeper] * 3)
            ]
        )
        versions = [outcome.version for outcome in outcomes if isinstance(outcome, Settings)]
        assert sorted(versions) == [1, 2, 3, 4, 5, 6]
        assert other_keeper.read("ns").entries.keys() == set("012345")

    def test_each_version_knows_those_before_it(self, keeper: Keeper, other_keeper: Keeper) -> None:
        made = [keeper.put("ns", {"a": str(number)}) for number in range(4)]
        for early, late in combinations(made, 2):
            assert early.history.leads_to(late.history)
            assert not late.history.leads_to(early.history)
        assert other_keeper.read("ns").history == made[-1].history

    def test_each_version_is_stored_with_its_record(self, keeper: Keeper, other_keeper: Keeper) -> None:
        stamps = [SettingsStamp(at_ms, f"ann {at_ms}") for at_ms in (1, 2)]
        change = partial(Settings.changed, entries={"a": "1", "b": "1"}, remove=(), stamp=stamps[0])
        keeper.ended(keeper.changing("ns", change))
        change = partial(Settings.changed, entries={"a": "2"}, remove=["b"], stamp=stamps[1])
        other_keeper.ended(other_keeper.changing("ns", change))
        for found in (keeper.read("ns"), other_keeper.read("ns")):
            assert [(one.version, one.stamp) for one in found.log.records] == [(1, stamps[0]), (2, stamps[1])]
            assert found.log.records[1].changes == {"a": ("1", "2"), "b": ("1", None)}
            assert found.stamps == {"a": stamps[1]}
            assert disagreements(found) == []

    def test_changes_at_once_have_a_record_each(self, keeper: Keeper, other_keeper: Keeper) -> None:
        keeper.ended(
            *[
                one.changing("ns", partial(Settings.changed, entries={"a": str(number)}, remove=(), nonce=str(number)))
                for number, one in enumerate([keeper, other_keeper] * 5)
            ]
        )
        found = keeper.read("ns")
        assert [one.version for one in found.log.records] == list(range(1, 11))
        assert disagreements(found) == []

    def test_a_copy_is_adopted_with_its_log(self, keeper: Keeper, other_keeper: Keeper) -> None:
        copy = Settings("ns").changed({"a": "1"}, (), nonce="1").changed({"b": "2"}, (), nonce="2")
        keeper.ended(keeper.changing("ns", adopt(copy, "shard 1")))
        assert other_keeper.read("ns").log == copy.log
        assert disagreements(other_keeper.put("ns", {"c": "3"})) == []

    def test_a_copy_is_adopted_in_the_place_of_older_settings(self, keeper: Keeper, other_keeper: Keeper) -> None:
        """Those of a lone host whose shards join a cluster. The next change goes on from its version."""
        copy = Settings("ns").changed({"a": "1"}, (), nonce="1").changed({"b": "2"}, (), nonce="2")
        for one in (keeper, other_keeper):
            (stored,) = one.ended(one.changing("ns", adopt(copy, "shard 1")))
            assert isinstance(stored, Settings)
            assert (stored, stored.history) == (copy, copy.history)
        assert other_keeper.put("ns", {"c": "3"}, expected=2) == Settings("ns", 3, {"a": "1", "b": "2", "c": "3"})
        (stored,) = keeper.ended(keeper.changing("ns", adopt(copy, "shard 1")))
        assert isinstance(stored, Settings)
        assert stored.version == 3

    def test_settings_that_were_made_apart_are_not_adopted(self, keeper: Keeper, other_keeper: Keeper) -> None:
        before = keeper.put("ns", {"a": "1"})
        copy = Settings("ns").changed({"b": "2"}, (), nonce="1").changed({"c": "2"}, (), nonce="2")
        (refused,) = other_keeper.ended(other_keeper.changing("ns", adopt(copy, "shard 7")))
        assert isinstance(refused, Conflict)
        assert "in shard 7 (version 2)" in refused.message
        assert keeper.read("ns") == before

    def test_of_adoptions_at_once_the_newest_stays(self, keeper: Keeper, other_keeper: Keeper) -> None:
        old = Settings("ns").changed({"a": "1"}, (), nonce="1")
        new = old.changed({"a": "2"}, (), nonce="2")
        newest = new.changed({"a": "3"}, (), nonce="3")
        keeper.ended(
            *[
                one.changing("ns", adopt(copy, "shard 1"))
                for one, copy in ((keeper, new), (other_keeper, newest), (keeper, old), (other_keeper, new))
            ]
        )
        assert keeper.read("ns") == newest == other_keeper.read("ns")

    def test_settings_of_the_greatest_size(self, keeper: Keeper, other_keeper: Keeper) -> None:
        entries = {f"{number:04}": "x" * VALUE_BYTES for number in range(MOST_BYTES // (VALUE_BYTES + 20))}
        made = keeper.put("ns", entries)
        assert 0.98 * MOST_BYTES < len(made.document()) <= MOST_BYTES
        assert other_keeper.read("ns") == made
        for value in "yz":  # every value changes at once: the log has no room for them
            made = keeper.put("ns", dict.fromkeys(entries, value * VALUE_BYTES))
        found = other_keeper.read("ns")
        assert (found, found.log.version) == (made, 3)
        assert disagreements(found) == []
        with pytest.raises(Invalid, match=f"more than {MOST_BYTES}"):
            keeper.put("ns", {f"more{number}": "x" * VALUE_BYTES for number in range(5)})
