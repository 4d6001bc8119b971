"""Live values of a configuration that was read again reach every part that uses them."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from foqs.bounds import Limits
from foqs.config.load import load
from foqs.server.node import Node
from tests.engine.laboratory import Laboratory

pytestmark = pytest.mark.memory


def test_every_part_gets_the_new_values() -> None:
    lab = Laboratory(1, 2)
    shard = lab.engine.state.shards[1]
    parts = {name: Mock() for name in ("service", "server", "requests", "guard", "peers", "hook_pool", "certificates")}
    lab.settle()
    config = load(
        shards=[{"id": 1, "url": "sqlite:///1.db"}, {"id": 2, "url": "sqlite:///2.db"}],
        limits={"payload_bytes": 7, "dedup_window_ms": 60_000},
        server={
            "max_connections": 5, "max_connections_per_address": 4, "frame_read_ms": 2_000, "idle_connection_ms": 9_000,
        },
        log={"slow_request_ms": 33},
        host={"lease_write_delay_ms": 100},
        breaker={"hang_ms": 777},
    )  # fmt: skip
    Node.reconfigure(SimpleNamespace(engine=lab.engine, _config=config, **parts), config)  # type: ignore[arg-type]
    limits = Limits(payload_bytes=7, dedup_window_ms=60_000)
    assert parts["service"].host.limits == limits
    parts["server"].limit.assert_called_once_with(limits)
    parts["server"].bound.assert_called_once_with(5, 4, 2.0, 9.0)
    parts["peers"].limit.assert_called_once_with(limits)
    parts["requests"].bound.assert_called_once_with(33)
    parts["guard"].read_again.assert_called_once_with()
    parts["hook_pool"].reconfigure.assert_called_once_with(config.hooks, limits)
    assert lab.engine.state.config is config
    assert (shard.config, shard.queue.dedup_window_ms) == (config.host, 60_000)
    assert (shard.owner.hang_ms, shard.owner.breaker.settings.hang_ms) == (777, 777)


def test_shards_that_are_served_look_for_due_work_again() -> None:
    """A delay may be shorter now."""
    lab = Laboratory(1, 2)
    lab.engine.lose(lab.engine.state.shards[2], lab.now_ms)
    lab.settle()
    config = load(shards=[{"id": 1, "url": "sqlite:///1.db"}, {"id": 2, "url": "sqlite:///2.db"}])
    parts = {name: Mock() for name in ("service", "server", "requests", "guard", "peers", "hook_pool", "certificates")}
    Node.reconfigure(SimpleNamespace(engine=lab.engine, _config=config, **parts), config)  # type: ignore[arg-type]
    assert list(lab.engine.state.dirty) == [lab.engine.state.shards[1]]
