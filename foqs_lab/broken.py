"""A cluster with ten faults at a time, to practise being on call: docs/run/on-call.md has the questions.

Three hosts, six shards on two MariaDB servers, authentication and TLS. Workers of the namespace `shop` run in this
process. The output does not name the faults.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe

from foqs.client import Client, Worker
from foqs.client.items import Item, ItemSpec
from foqs.errors import FoqsError
from foqs.shardmgr.operate import MarkHost
from foqs_lab.cluster import LocalCluster, make_shards
from foqs_lab.relay import Relay
from foqs_lab.servers import DatabaseServer, ServerSettings, SqlEndpoint, ZookeeperServer

NAMESPACE = "shop"
SLOW_SHARD = 6
STORED_MOST = 700
"""The quota of the namespace; about 95 % of it are used."""
_SESSION_MS = 3_000
_LEASE_MS = 3_600_000
_DELAY_S = 0.12
"""Of each piece of data to and from the slow database: calls take long, and mostly less than `breaker.hang_ms`."""
_RIGHTS = {
    "on-call": '{ "*" = ["admin"] }',
    "shop-app": f'{{ "{NAMESPACE}" = ["produce", "consume"] }}',
    "release-bot": f'{{ "{NAMESPACE}" = ["admin"] }}',
}
_DAYS = {"host-1": 365, "host-2": 5, "host-3": 365}
"""Until the end of a host's certificate."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A prepared cluster. `environment`: variables for a shell of the operator, whose principal is `on-call`. `item`:
    of the tenant acme, which waits for a token. `last_host` is the only host that takes shards, `drained_host` may be
    stopped, `dead_host` was killed. `lax_server`: the port of the database server that may lose commits."""

    cluster: LocalCluster
    environment: Mapping[str, str]
    item: int
    lax_server: int
    last_host: str = "host-1"
    drained_host: str = "host-2"
    dead_host: str = "host-3"


@contextmanager
def broken_cluster(folder: Path) -> Iterator[Broken]:
    """Start it in `folder`, and end everything at the end. Raises ServerUnavailable, and OSError without `openssl`."""
    with ExitStack() as stack:
        tokens = {name: token_urlsafe(24) for name in _RIGHTS}
        settings = {**_settings(folder, tokens)}
        small = ServerSettings(buffer_pool_bytes=64 << 20)
        servers = [stack.enter_context(DatabaseServer("mariadb", small)) for _ in range(2)]
        servers[1].query("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        zookeeper = stack.enter_context(ZookeeperServer())
        shards = make_shards(servers, 3, "foqs")
        relay = Relay(servers[1].port)
        stack.callback(relay.close)
        shards[SLOW_SHARD - 1] = replace(shards[SLOW_SHARD - 1], server=SqlEndpoint("mariadb", relay.port))
        cluster = LocalCluster(zookeeper, shards, folder, settings)
        stack.callback(cluster.stop)
        for name, days in _DAYS.items():
            own: dict[str, dict[str, object]] = {"tls": _certificate(folder, name, days)}
            if name == "host-2":
                own[f"quotas.namespaces.{NAMESPACE}"] = {"stored_items": 10 * STORED_MOST}
            cluster.add(name, settings=own)
        cluster.start(*_DAYS)
        cluster.settled()
        cluster.registry.carry_out(MarkHost("host-2", drained=True))
        cluster.hosts["host-3"].kill()
        cluster.settled("host-1", "host-2")
        addresses = ",".join(f"127.0.0.1:{host.port}" for host in cluster.hosts.values())
        environment = {
            "FOQS_ADDRESS": addresses,
            "FOQS_NAMESPACE": NAMESPACE,
            "FOQS_TOKEN": tokens["on-call"],
            "FOQS_CLIENT_TLS": f"ca_file={folder / 'ca.pem'}",
            "FOQS_CONFIG": str(cluster.config),
        }
        clients = {
            name: stack.enter_context(
                Client(addresses, NAMESPACE, token=token, tls=environment["FOQS_CLIENT_TLS"], pool_size=32)
            )
            for name, token in tokens.items()
        }
        item = _prepare(clients["on-call"], clients["release-bot"], clients["shop-app"])
        stack.enter_context(_crew(clients["shop-app"]))
        relay.delay_s = _DELAY_S
        yield Broken(cluster, environment, item, servers[1].port)


def _settings(folder: Path, tokens: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Return the settings of all hosts, and write the files that they name."""
    principals = folder / "principals.toml"
    principals.write_text(
        "".join(
            f'[principals.{name}]\ntoken_sha256 = "{sha256(token.encode()).hexdigest()}"\nrights = {_RIGHTS[name]}\n'
            for name, token in tokens.items()
        )
    )
    principals.chmod(0o600)
    secret = folder / "cluster.secret"
    secret.write_text(token_urlsafe(32))
    secret.chmod(0o600)
    _openssl(folder, "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=foqs-CA "
             "-addext keyUsage=critical,keyCertSign,cRLSign -keyout ca.key -out ca.pem")  # fmt: skip
    return {
        "zookeeper": {"session_timeout_ms": _SESSION_MS, "settle_ms": 1_000, "balance_every_ms": 3_600_000},
        "tls": _certificate(folder, "operator", 365),
        "auth": {"principals_file": str(principals), "cluster_secret_file": str(secret)},
        f"quotas.namespaces.{NAMESPACE}": {"stored_items": STORED_MOST},
    }


def _certificate(folder: Path, name: str, days: int) -> dict[str, object]:
    """Make a certificate that ends after `days`, and return the section [tls] with it."""
    _openssl(folder, f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} "
             f"-keyout {name}.key -out {name}.csr")  # fmt: skip
    (folder / f"{name}.ext").write_text(
        "authorityKeyIdentifier=keyid\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
    )
    _openssl(folder, f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} "
             f"-extfile {name}.ext -out {name}.pem")  # fmt: skip
    (folder / f"{name}.key").chmod(0o600)
    files = {"cert_file": f"{name}.pem", "key_file": f"{name}.key", "ca_file": "ca.pem"}
    return {key: str(folder / file) for key, file in files.items()}


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


# ------------------------------------------------------------------------------------- items and settings


def _prepare(operator: Client, releaser: Client, shop: Client) -> int:
    """Store items and settings. Return the id of the item about which a customer asks."""
    operator.put_settings(
        {
            "throttle.smtp-acme": '{"per_second": 0.02, "burst": 1}',
            "throttle.api": '{"per_second": 1, "burst": 1, "shadow": true}',
            "weight.zenith": "8",
            "topic.invoices": '{"max_attempts": 100000, "retry": {"kind": "constant", "first_ms": 1000}}',
            "topic.thumbs": '{"max_attempts": 3}',
        }
    )
    _store(shop, [ItemSpec("exports", b"2026")] * 4)  # waits until the quota has a count
    _store(shop, [ItemSpec("mails", b"news", fairness_key="zenith") for _ in range(150)])
    keyed = _store(shop, [ItemSpec("mails", b"receipt", fairness_key="acme", throttle_keys=["smtp-acme"])] * 60)
    _store(shop, [ItemSpec("mails", b"news", fairness_key="acme") for _ in range(60)])
    _store(shop, [ItemSpec("mails", b"news", fairness_key="globex") for _ in range(30)])
    _store(shop, [ItemSpec("reports", b"weekly")] * 40)
    _store(shop, [ItemSpec("invoices", b"smtp" if n % 3 else b"article") for n in range(12)])
    _store(shop, [ItemSpec("archive", b"tape", delay_ms=86_400_000)] * 270)
    _store(shop, [ItemSpec("sync", b"stock", throttle_keys=["api"])] * 20)
    _store(shop, [ItemSpec("thumbs", b"cat.png")] * 4)
    releaser.set_policy("reports", {"paused": True})
    releaser.set_policy("mails", {"paused_tenants": ["globex"]})
    # The worker of another language, which was suspended after it got its items.
    assert shop.dequeue("exports", 2, lease_ms=_LEASE_MS, worker="exporter-3", wait_ms=5_000)
    return keyed[-1]


def _store(client: Client, items: Sequence[ItemSpec]) -> list[int]:
    outcomes = client.enqueue_many(items)
    for outcome in outcomes:
        if isinstance(outcome, FoqsError):
            raise outcome
    return [int(outcome) for outcome in outcomes if not isinstance(outcome, FoqsError)]


# ------------------------------------------------------------------------------------- workers


@contextmanager
def _crew(client: Client) -> Iterator[None]:
    """Run the workers. What they finish is enqueued again, so that the number of items stays."""
    stopped = threading.Event()

    def send(item: Item) -> None:
        stopped.wait(0.05)
        _again(client, item)

    def fail(item: Item) -> None:
        if item.payload == b"article":
            raise LookupError(f"article {item.id} has no price")
        raise TimeoutError(f"SMTP 451 from relay {item.attempt}")

    def draw(_item: Item) -> None:
        stopped.wait()  # a library that never returns

    workers = [
        Worker(client, ["mails"], send, name="mailer-1", grace_ms=0),
        Worker(client, ["invoices"], fail, name="biller-1", concurrency=4, grace_ms=0, report_errors=True),
        Worker(client, ["sync"], send, name="syncer-1", grace_ms=0),
        Worker(client, ["exports"], send, name="exporter-1", grace_ms=0),
        Worker(client, ["thumbs"], draw, name="painter-2", time_limit_ms=1_000, grace_ms=0),
    ]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        stopped.set()
        for worker in workers:
            worker.stop()
        for worker in workers:
            with suppress(FoqsError):
                worker.join(10_000)


def _again(client: Client, item: Item) -> None:
    with suppress(FoqsError):
        client.enqueue(item.topic, item.payload, fairness_key=item.fairness_key, throttle_keys=item.throttle_keys)
