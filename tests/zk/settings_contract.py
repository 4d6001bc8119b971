"""What every FactStore does with settings: a part of `tests.zk.contract`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from foqs.errors import Unavailable
from foqs.shardmgr.facts import Session
from tests.policies.settings_contract import Keeper, SettingsContract

if TYPE_CHECKING:
    from tests.zk.contract import Client, Rig


class SettingsFactContract(SettingsContract):
    @pytest.fixture
    def keeper(self, a: Client) -> Keeper:
        return Keeper(a.store, a.rig.until)

    @pytest.fixture
    def other_keeper(self, b: Client) -> Keeper:
        return Keeper(b.store, b.rig.until)

    def test_settings_are_facts(self, a: Client, b: Client, keeper: Keeper) -> None:
        first = keeper.put("shop", {"a": "1"})
        for client in (a, b):
            client.sees(lambda facts: facts.settings == {"shop": first})
        second, other = keeper.put("shop", {}, "a"), keeper.put("a/b", {"b": "2"})
        b.sees(lambda facts: facts.settings == {"shop": second, "a/b": other})

    def test_settings_are_refused_without_a_connection(self, rig: Rig, a: Client, keeper: Keeper) -> None:
        rig.cut(a.store)
        rig.until(lambda: a.sessions[-1] is Session.SUSPENDED)
        with pytest.raises(Unavailable, match="ZooKeeper"):
            keeper.put("ns", {"a": "1"})
        rig.mend(a.store)
