"""`Client.rates` on a real host, whose clock the test moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.client import AsyncClient, Client, ItemSpec, NamespaceRates, Rates
from foqs.errors import Invalid

pytestmark = pytest.mark.threads


def test_the_traffic_of_a_namespace(foqs_server: Any) -> None:
    foqs_server.advance(seconds=10)
    with Client(foqs_server.address, "shop") as client, Client(foqs_server.address, "other") as other:
        client.enqueue_many([ItemSpec("mail", b"x"), ItemSpec("mail", b"y"), ItemSpec("sms", b"z")])
        other.enqueue("t", b"x")
        ended, failed = client.dequeue("mail", count=2)
        client.ack(ended)
        client.nack(failed, failed=True)
        foqs_server.advance(seconds=10)
        client.enqueue("mail", b"x")
        foqs_server.advance(seconds=10)

        found = client.rates(steps=2)
        assert (found.step_ms, found.first_at_ms % 10_000, found.more, found.missing) == (10_000, 0, False, ())
        assert found.first_at_ms <= found.covers_from_ms < client.server_info().now_ms
        (shop,) = found.namespaces
        assert shop == NamespaceRates("shop", (3, 1), (2, 0), (1, 0), (1, 0))
        every = client.rates(all_namespaces=True)
        assert [one.ns for one in every.namespaces] == ["shop", "other"]
        assert {len(counts) for one in every.namespaces for counts in one[1:5]} == {360}
        most = client.rates(all_namespaces=True, limit=1)
        assert ([one.ns for one in most.namespaces], most.more) == (["shop"], True)
        with pytest.raises(Invalid, match="steps"):
            client.rates(steps=361)


def test_the_traffic_of_a_namespace_without_any(foqs_server: Any) -> None:
    async def rates() -> Rates:
        async with AsyncClient(foqs_server.address, "shop") as client:
            return await client.rates(steps=3)

    assert asyncio.run(rates()).namespaces == (NamespaceRates("shop", (0,) * 3, (0,) * 3, (0,) * 3, (0,) * 3),)
