"""Waits until a shard's database has said which host owns the shard."""

from __future__ import annotations

from collections.abc import Callable

from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.shardmgr.lifecycle import ShardState

_MOST_CONFIRMING = 1_000


def confirm(engine: Engine, shard: Shard, now_ms: int, then: Callable[[], None]) -> None:
    """Call `then` at once if ownership was confirmed within `confirm_ms`, or else after the shard's next batch, whether
    or not that confirmed it."""
    if shard.confirmed(now_ms) or len(shard.confirming) >= _MOST_CONFIRMING:
        then()
    else:
        _after_batch(engine, shard, then)


def check_owner(engine: Engine, shard: Shard, now_ms: Callable[[], int], then: Callable[[bool], None]) -> None:
    """Call `then` with whether the shard's database says that this host owns it. The database is asked after this call:
    after an earlier answer another owner may have stored more."""
    if len(shard.confirming) >= _MOST_CONFIRMING:
        then(False)
        return
    asked_ms, before = now_ms(), shard.in_flight

    def confirmed() -> None:
        nonlocal before
        if before is not None and shard.state is not ShardState.CLOSED:
            before = None
            _after_batch(engine, shard, confirmed)
        else:
            then(shard.confirmed_ms >= asked_ms)

    _after_batch(engine, shard, confirmed)


def _after_batch(engine: Engine, shard: Shard, then: Callable[[], None]) -> None:
    """Call `then` after the shard's next batch, which asks for the owner, or when the shard is closed."""
    shard.confirm_wanted = True
    shard.confirming.append(then)
    engine.touch(shard)
