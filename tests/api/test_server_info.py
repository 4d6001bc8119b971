"""GetServerInfo: the version, the limits in force, and counts by shard that are at most a second old."""

from dataclasses import replace

import pytest

from foqs import __version__
from foqs.api.lookups import FIXED
from foqs.idl import idl
from tests.support.one_host import OneHost, put, take

pytestmark = pytest.mark.memory


def test_the_version_the_limits_and_rows_of_each_shard() -> None:
    host = OneHost(1, 2)
    before = host.ask("GetServerInfo")
    assert (before.version, before.limits) == (__version__, {**host.limits.as_map(), **FIXED})
    assert before.shard_items is None
    assert before.now_ms == host.now_ms
    put(host, b"x", b"y", b"z")
    changed = host.ask("GetServerInfo").shard_rows
    assert changed.keys() == {1, 2}
    assert sum(changed.values()) - sum(before.shard_rows.values()) == 3


def test_without_authentication_a_caller_is_unnamed() -> None:
    info = OneHost(1).ask("GetServerInfo", context=idl.RequestContext(principal="root"))
    assert (info.principal, info.rights) == (None, None)


def test_limits_that_were_reloaded_are_reported() -> None:
    host = OneHost(1)
    host.service.host.limits = replace(host.limits, payload_bytes=7)  # type: ignore[union-attr]
    assert host.ask("GetServerInfo").limits["payload_bytes"] == 7


def test_items_are_counted_in_any_state() -> None:
    host = OneHost(1)
    put(host, b"x", b"y")
    put(host, b"z", delay_ms=50)
    take(host, count=1)
    counted = host.ask("GetServerInfo", count_items=True)
    assert (counted.shard_items, counted.shard_order_keys) == ({1: 3}, {1: 0})


def test_a_count_is_kept_for_a_second() -> None:
    """It walks all lanes, and any client may ask for one."""
    host = OneHost(1)
    assert host.ask("GetServerInfo", count_items=True).shard_items == {1: 0}
    put(host, b"x")
    host.wait(999)
    assert host.ask("GetServerInfo", count_items=True).shard_items == {1: 0}
    host.wait(1)
    assert host.ask("GetServerInfo", count_items=True).shard_items == {1: 1}


def test_a_count_from_the_future_is_replaced() -> None:
    """The clock was set back."""
    host = OneHost(1)
    host.ask("GetServerInfo", count_items=True)
    put(host, b"x")
    host.now_ms -= 1
    assert host.ask("GetServerInfo", count_items=True).shard_items == {1: 1}
