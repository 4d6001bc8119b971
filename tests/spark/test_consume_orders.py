"""The driver's part of a consuming stream when a step fails or is slow."""

from __future__ import annotations

import os
from typing import Any

import pytest

from foqs.client.items import Item
from foqs.errors import Unavailable
from tests.spark.test_consume_driver import Begin, Service, begin, ids, service

__all__ = ["begin", "service"]


def test_a_batch_that_is_given_back_is_not_found_again(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was in its place when the disk failed: other consumers have the items by then."""
    filled = service.fill(2)
    consumer = begin()
    consumer.first()

    def broken(_file: int) -> None:
        if (consumer._folder.path / "1.batch").exists():
            raise OSError("the disk")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="the disk"):
            consumer.latest(0, 10)
    assert ids(service.ready) == filled
    service.ready.clear()
    assert begin().latest(0, 10) == 0


def test_a_batch_whose_file_stays_is_not_given_back(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = service.fill(2)
    consumer = begin()
    consumer.first()
    folder = consumer._folder
    write = folder.write

    def broken(*_: Any) -> None:
        raise OSError("the disk")

    def written(seq: int, items: list[Item]) -> None:
        write(seq, items)
        broken()

    with monkeypatch.context() as patched:
        patched.setattr(folder, "write", written)
        patched.setattr(folder, "erase", broken)
        with pytest.raises(OSError, match="the disk"):
            consumer.latest(0, 10)
    assert service.ready == []
    again = begin()
    assert again.latest(0, 10) == 1
    assert ids(again.batch(0, 1)) == filled


def test_leased_items_do_not_wait_for_more_beyond_their_lease(
    service: Service, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a host is silent or slow, no process extends the leases of earlier answers."""
    filled = service.fill(3)
    asked: list[int | None] = []
    dequeue = service.dequeue

    def one_and_slow(wants: dict[str, int], *, timeout_ms: int | None = None, **options: Any) -> list[Item]:
        asked.append(timeout_ms)
        if len(asked) == 3:
            raise Unavailable("timed out")
        return dequeue({"t": 1}, **options)

    monkeypatch.setattr(service, "dequeue", one_and_slow)
    consumer = begin(timeoutMs="60000", leaseMs="90000")
    assert consumer.latest(0, 10) == 1
    assert ids(consumer.batch(0, 1)) == filled[:2]
    first, *others = asked
    assert first is None
    assert all(timeout_ms is not None and timeout_ms <= 30_000 for timeout_ms in others)
