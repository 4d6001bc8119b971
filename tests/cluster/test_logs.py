"""The logs of two hosts: one request under one id in both, every line an object, no secret in any."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foqs.idl import idl
from foqs.store.maintenance import create_schema
from foqs_lab.cluster import LocalCluster
from foqs_lab.servers import ZookeeperServer
from tests.api.hosts import until
from tests.api.wire import Code, Wire, spec
from tests.cluster.conftest import UNHURRIED

pytestmark = [pytest.mark.server, pytest.mark.zookeeper, pytest.mark.process]

SECRET = "hunter2-the-secret"


@dataclass(frozen=True)
class Place:
    """A shard by its URL alone."""

    number: int
    url: str


def lines_of(cluster: LocalCluster, name: str) -> list[dict[str, Any]]:
    """The log and stdout of a host. The last line may be half written."""
    *said, _ = cluster.hosts[name].log.read_text().split("\n")
    return [json.loads(line) for line in said]


def slow_ids(cluster: LocalCluster, name: str) -> list[str]:
    """Of enqueues, as they were answered."""
    lines = [line for line in lines_of(cluster, name) if line["event"] == "request.slow"]
    return [line["request_id"] for line in lines if line["method"] == "Enqueue"]


def test_one_request_is_found_on_both_hosts_and_no_secret_on_any(
    own_zookeeper: ZookeeperServer, tmp_path: Path
) -> None:
    """One shard can be served. The other shards' URLs have passwords, and one of them cannot be parsed."""
    shard = tmp_path / "shard.db"
    create_schema(f"sqlite:///{shard}", 1)
    places = [
        Place(1, f"sqlite:///{shard}"),
        Place(2, f"mysql+pymysql://me:{SECRET}@127.0.0.1:1/foqs"),
        Place(3, f"mysql+nodriver://me:{SECRET}@127.0.0.1:1/foqs"),
    ]
    settings = {
        **UNHURRIED,
        "log": {"format": "json", "level": "debug", "slow_request_ms": 200},
        "zookeeper": {**UNHURRIED["zookeeper"], "auth_scheme": "digest", "auth_credential": f"me:{SECRET}"},
    }
    cluster = LocalCluster(own_zookeeper, places, tmp_path, settings)  # type: ignore[arg-type]
    try:
        cluster.start("a", "b")
        owner = cluster.registry.wait_for(lambda facts: 1 in facts.owners and len(facts.hosts) == 2).owners[1].host
        other = "b" if owner == "a" else "a"

        def refused() -> set[int]:
            logs = [*lines_of(cluster, "a"), *lines_of(cluster, "b")]
            return {shard for line in logs if line["event"] == "shard.not_opened" for shard in line["shards"]}

        until(lambda: refused() >= {2, 3}, "the shards that cannot be opened")
        with Wire(("127.0.0.1", cluster.hosts[other].port)) as wire:
            until(
                lambda: wire.outcomes(spec("t", SECRET.encode()))[0].error is None,
                "the other host to learn the shard's owner",
            )
            with closing(sqlite3.connect(shard, timeout=30, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                for request_id in ("find-me-42", None):
                    context = idl.RequestContext(token=SECRET, request_id=request_id, timeout_ms=5_000)
                    (outcome,) = wire.outcomes(spec("t", SECRET.encode()), context=context)
                    assert outcome.error.code in (Code.OUTCOME_UNKNOWN, Code.UNAVAILABLE)
                connection.execute("ROLLBACK")
    finally:
        cluster.stop()
    # Earlier requests may have been slow as well.
    *_, given, made = slow_ids(cluster, other)
    assert given == "find-me-42"
    assert {given, made} <= set(slow_ids(cluster, owner))
    for name in ("a", "b"):
        assert lines_of(cluster, name)
        said = cluster.hosts[name].log.read_text()
        assert SECRET not in said and SECRET.encode().hex() not in said
        assert cluster.hosts[name].faults() == []
