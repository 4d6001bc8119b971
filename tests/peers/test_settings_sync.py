"""A host acts on the stored settings, and an unchanged namespace costs nothing."""

from __future__ import annotations

import pytest

from foqs.peers.settings_sync import HostSettings
from foqs.policies.layers import Policies
from foqs.policies.settings import Settings
from tests.engine.laboratory import Laboratory

pytestmark = pytest.mark.memory


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    made: list[Settings] = []
    apply = Policies.apply
    monkeypatch.setattr(Policies, "apply", lambda self, settings: (made.append(settings), apply(self, settings)))
    return made


def test_changed_namespaces_are_applied_once(applied: list[Settings]) -> None:
    host = HostSettings(Laboratory(1).engine)
    first, other = Settings("n", 1, {"a": "1"}), Settings("m", 7)
    found = {"n": first, "m": other}
    host.follow(found)
    host.follow(found)
    assert applied == [first, other]
    second = Settings("n", 2)
    host.follow({"n": second, "m": other})
    assert applied == [first, other, second]
    assert (host.of("n"), host.of("m"), host.of("x")) == (second, other, Settings("x"))


def test_an_earlier_version_is_not_followed(applied: list[Settings]) -> None:
    """ZooKeeper was restored from a copy. Settings that were made apart from the known ones are followed."""
    host = HostSettings(Laboratory(1).engine)
    old = Settings("n").changed({"a": "1"}, (), nonce="1")
    new = old.changed({"a": "2"}, (), nonce="2")
    assert host.follow({"n": new}) == []
    assert host.follow({"n": old}) == [new]
    assert host.of("n") is new
    assert host.follow({"n": new}) == []
    apart = Settings("n").changed({"a": "3"}, (), nonce="3")
    assert host.follow({"n": apart}) == []
    assert applied == [new, apart]


def test_a_lower_version_without_a_history_is_followed(applied: list[Settings]) -> None:
    """An operator wrote it by hand."""
    engine = Laboratory(1).engine
    host = HostSettings(engine)
    host.follow({"n": Settings("n", 9, {"topic.t": '{"paused": true}'})})
    assert engine.state.policies.of(("n", "t")).paused
    host.follow({"n": Settings("n", 8)})
    assert not engine.state.policies.of(("n", "t")).paused
    assert engine.state.policies.versions == {"n": 8}
