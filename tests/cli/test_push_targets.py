"""Which targets a push process serves, by the answers of hosts about the settings."""

from __future__ import annotations

import json

import pytest

from foqs.cli.push_targets import BEHIND_S, Followed, target_of
from foqs.client import Settings
from foqs.errors import Invalid
from foqs.push.target import Target

pytestmark = pytest.mark.memory

URL = "https://hooks.example.com/orders"


def answer(version: int, **targets: object) -> Settings:
    return Settings(version, {f"push.{name}": json.dumps(one) for name, one in targets.items()})


def orders(**given: object) -> dict[str, object]:
    return {"topic": "orders", "url": URL, **given}


def test_a_target_has_the_fields_and_the_defaults_of_its_setting() -> None:
    assert target_of("shop", "o", json.dumps(orders())) == Target(
        "o", "shop", "orders", URL, "POST", {}, 10, 30_000, (), "none"
    )
    given = {"method": "PUT", "headers": {"X": "y"}, "concurrency": 2, "timeout_ms": 500, "envelope": "cloudevents"}
    assert target_of("shop", "o", json.dumps(orders(**given, secrets=["a", "b"]))) == Target(
        "o", "shop", "orders", URL, "PUT", {"X": "y"}, 2, 500, ("a", "b"), "cloudevents"
    )
    with pytest.raises(Invalid, match="topic: it is missing"):
        target_of("shop", "o", "{}")


def test_targets_come_change_and_go() -> None:
    followed = Followed("shop")
    assert not followed.hear(answer(0), 0)
    assert followed.hear(answer(1, a=orders(), b=orders()), 1)
    assert followed.targets.keys() == {"a", "b"}
    assert not followed.hear(answer(1, a=orders(), b=orders()), 2), "nothing has changed"
    assert not followed.hear(answer(2, a=orders(), b=orders()), 3), "another entry has changed"
    assert followed.hear(answer(3, a=orders(concurrency=1)), 4)
    assert {name: one.concurrency for name, one in followed.targets.items()} == {"a": 1}
    assert followed.hear(answer(4), 5)
    assert followed.targets == {}


def test_a_host_that_is_behind_is_not_followed() -> None:
    followed = Followed("shop")
    followed.hear(answer(5, a=orders()), 100)
    assert not followed.hear(answer(4), 101)
    assert not followed.hear(answer(4), 100 + BEHIND_S - 1)
    assert followed.targets.keys() == {"a"}
    followed.hear(answer(5, a=orders()), 125)
    assert not followed.hear(answer(4), 100 + BEHIND_S), "a host had version 5 in between"


def test_settings_that_were_put_back_are_followed_after_a_while() -> None:
    followed = Followed("shop")
    followed.hear(answer(5, a=orders()), 100)
    assert followed.hear(answer(2), 100 + BEHIND_S)
    assert (followed.version, followed.targets) == (2, {})


def test_an_entry_of_a_newer_foqs_ends_its_target_alone() -> None:
    followed = Followed("shop")
    followed.hear(answer(1, a=orders(), b=orders()), 0)
    assert followed.hear(answer(2, a=orders(batch=5), b=orders()), 1)
    assert followed.targets.keys() == {"b"}
    assert followed.odd == {"a": 'there is no field "batch"'}
