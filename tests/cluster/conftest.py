import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from foqs_lab.cluster import LocalCluster, Settings, local_cluster, make_shards
from foqs_lab.servers import Kind, ServerUnavailable
from foqs_lab.servers.programs import find_zookeeper
from tests.conftest import Server, required

NewCluster = Callable[..., LocalCluster]
UNHURRIED: Settings = {
    "server": {"grace_ms": 30_000},
    "host": {"confirm_ms": 10_000},
    "breaker": {"hang_ms": 30_000, "mean_latency_ms": 30_000},
    "store": {"io_timeout_ms": 30_000},
    "zookeeper": {
        "session_timeout_ms": 30_000,
        "handover_ms": 30_000,
        "settle_ms": 300,
        "balance_every_ms": 3_600_000,
    },
}
"""Settings of all hosts: a process or database without processor time for seconds loses nothing, and no request is
refused. Shards stay where they were placed."""
MISSED: Settings = {"host": {"confirm_ms": 1_000}, "zookeeper": {"session_timeout_ms": 5_000}}
"""For tests in which hosts die: they are missed soon, and not at the first stall."""
KINDS = [pytest.param("mariadb", marks=pytest.mark.mariadb), pytest.param("mysql", marks=pytest.mark.mysql)]
ON_EACH_KIND = pytest.mark.parametrize("kind", KINDS)
_numbers = count(1)


@pytest.fixture(params=KINDS[:1])
def kind(request: pytest.FixtureRequest) -> Kind:
    """One is enough for most tests: those of tests/store run on both. `ON_EACH_KIND` is for owners that die, or freeze,
    in the middle of transactions."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def new_cluster(kind: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewCluster]:
    """`new_cluster("a", "b", shards=4, settings={})` starts hosts, deals so many shards out to them in turn, and waits
    until all are served. With `processes` each is this number of hosts behind one port. The database server is the
    session's, or `server`, whose databases go when it does."""
    try:
        find_zookeeper()
    except ServerUnavailable as error:
        (pytest.fail if required() else pytest.skip)(error.reason)
    with ExitStack() as stack:

        def start(
            *hosts: str,
            shards: int = 4,
            settings: Settings | None = None,
            processes: int | None = None,
            server: Server | None = None,
        ) -> LocalCluster:
            place: Server = server or request.getfixturevalue(kind)
            made = make_shards([place], shards, f"cluster_{os.getpid()}_{next(_numbers)}")
            for shard in made if server is None else ():
                stack.callback(place.drop_database, shard.database)
            given = {section: dict(keys) for section, keys in (settings or {}).items()}
            for section, keys in UNHURRIED.items():
                given[section] = {**keys, **given.get(section, {})}
            cluster = stack.enter_context(local_cluster(made, tmp_path, given))
            for name in hosts:
                cluster.add(name, processes=processes)
            cluster.start(*hosts)
            ids = [one for host in cluster.hosts.values() for one in host.ids]
            cluster.place({shard.number: ids[n % len(ids)] for n, shard in enumerate(made)})
            return cluster

        yield start
