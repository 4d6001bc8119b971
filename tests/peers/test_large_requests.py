"""Large requests where callers must be authenticated: hosts and clients prove themselves in a small one first."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.client import Client, ItemSpec, Unauthenticated
from foqs.errors import Code
from foqs.peers.membership_agent import ShardLoads
from foqs.wire.protocol import SMALL_BYTES
from tests.peers.nodes import Cluster
from tests.peers.test_auth import SECRET, code, principals
from tests.support.certificates import Authority

LARGE = b"x" * (4 * SMALL_BYTES)


@pytest.fixture
def auth(tmp_path: Any) -> dict[str, Any]:
    path = tmp_path / "principals.toml"
    path.write_text(principals())
    return {"principals_file": path, "cluster_secret": SECRET}


def test_the_first_request_of_a_connection_is_small(cluster: Cluster, auth: dict[str, Any]) -> None:
    host = cluster.add("a", 1, auth=auth)
    cluster.tell()
    wire = cluster.wire(host, ns="shop", token="shop")
    assert code(lambda: wire.put("t", LARGE)) == Code.UNAUTHENTICATED
    assert code(lambda: cluster.wire(host, ns="shop", token="wrong").ask("GetServerInfo")) == Code.UNAUTHENTICATED
    assert code(lambda: wire.put("t", LARGE)) == Code.UNAUTHENTICATED
    assert wire.ask("GetServerInfo").version
    assert wire.put("t", LARGE)
    assert host.server.counters.refused["unauthenticated"] == 2


def test_a_known_certificate_needs_no_small_request(cluster: Cluster, auth: dict[str, Any], tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    tls = authority.section(authority.issue("127.0.0.1"), client_certificates="optional").model_dump()
    host = cluster.add("a", 1, auth=auth, tls=tls)
    cluster.tell()
    known = cluster.wire(host, tls=authority.client(authority.issue("shop.test")), ns="shop")
    assert known.put("t", LARGE)
    unknown = cluster.wire(host, tls=authority.client(authority.issue("unknown.test")), ns="shop", token="shop")
    assert code(lambda: unknown.put("t", LARGE)) == Code.UNAUTHENTICATED


def test_without_principals_the_first_request_may_be_large(cluster: Cluster) -> None:
    host = cluster.add("a", 1)
    cluster.tell()
    assert cluster.wire(host).put("t", LARGE)


def test_hosts_forward_a_large_request_first(cluster: Cluster, auth: dict[str, Any]) -> None:
    first, owner = cluster.add("a", auth=auth), cluster.add("b", 2, auth=auth)
    cluster.tell()
    wire = cluster.wire(first, ns="shop", token="shop")
    assert wire.ask("GetServerInfo").version
    with capture_logs() as logs:
        for _ in range(3):
            assert wire.put("t", LARGE)
    assert not [line for line in logs if line["event"] == "audit.refused"]
    assert first.counters.forwarded == 3
    assert owner.server.counters.refused["unauthenticated"] == 0


def test_the_clients_first_request_may_be_large(cluster: Cluster, auth: dict[str, Any]) -> None:
    host = cluster.add("a", 1, auth=auth)
    cluster.tell()
    with Client(host.address, "shop", token="shop") as client:
        ids = client.enqueue_many([ItemSpec("t", LARGE)] * 3)
        assert all(isinstance(one, int) for one in ids), ids
    with Client(host.address, "shop", token="wrong") as client, pytest.raises(Unauthenticated):
        client.enqueue("t", LARGE)
    assert host.server.counters.refused["unauthenticated"] == 1


def test_hosts_measure_load_where_callers_are_known(cluster: Cluster, auth: dict[str, Any]) -> None:
    asker, owner = cluster.add("a", auth=auth), cluster.add("b", 2, auth=auth)
    cluster.tell()
    now = [0]
    loads = ShardLoads(asker.forwarder.ask, lambda: now[0], lambda: 3_000)
    with capture_logs() as logs:
        for wanted_ms in (1_000, 2_000):
            now[0] = wanted_ms
            cluster.on_loop(lambda: loads.ask([owner.address]))
            cluster.until(
                lambda at=wanted_ms: any(count.at_ms == at for count in loads._counts.values()),  # type: ignore[misc]
                "the answer",
            )
            cluster.wire(owner, ns="shop", token="shop").put("t", *[b"x"] * 5)
    assert loads.measured.keys() == {2}
    assert not [line for line in logs if line["event"] == "audit.refused"]
