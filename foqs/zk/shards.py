"""The shards of a cluster, read once by a process that is neither a host nor an operator's command."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, NoNodeError, WriterNotClosedException
from kazoo.protocol.states import KazooState, KeeperState

from foqs.config.schema import ZookeeperSection
from foqs.errors import Forbidden, Invalid, Unavailable
from foqs.shardmgr.facts import ShardFact, decode_shard
from foqs.zk.errors import mapped
from foqs.zk.handler import KazooLog
from foqs.zk.link import check, security
from foqs.zk.paths import SHARDS, Paths, shard_of
from foqs.zk.protocol import ZkRefused


def read_shards(config: ZookeeperSection, *, timeout_s: float = 10.0) -> list[ShardFact]:
    """Return all shards of any use, in the order of their numbers.

    Raises Unavailable (no ZooKeeper within `timeout_s`, or an empty root), Forbidden, and Invalid if a record cannot be
    read: skipping it would silently omit a shard.
    """
    with connected(config, timeout_s) as client:
        try:
            return read_records(client, Paths(config.root))
        except NoNodeError:
            raise Unavailable(f"ZooKeeper at {config.hosts} has no cluster at {config.root}") from None


@contextlib.contextmanager
def connected(config: ZookeeperSection, timeout_s: float) -> Iterator[KazooClient]:
    """Yield a session. Raises Invalid (a package is missing), Unavailable and Forbidden, also for kazoo's errors inside
    the block."""
    check(config)
    client = KazooClient(config.hosts, timeout=config.session_timeout_ms / 1000, logger=KazooLog(), **security(config))
    settled = threading.Event()
    refused = False

    def listen(state: str) -> None:
        """Runs in kazoo's thread. kazoo does not report a refused credential to the thread that waits for the
        connection."""
        nonlocal refused
        refused = refused or client.client_state == KeeperState.AUTH_FAILED
        if refused or state == KazooState.CONNECTED:
            settled.set()

    client.add_listener(listen)
    try:
        client.start_async()
        settled.wait(timeout_s)
        if refused:
            raise AuthFailedError
        if not client.connected:
            raise Unavailable(f"no connection to ZooKeeper at {config.hosts} (waited {timeout_s:g} s)")
        yield client
    except AuthFailedError:
        raise Forbidden("ZooKeeper refuses the credential of [zookeeper]") from None
    except KazooException as error:
        made = mapped(error)
        raise (Forbidden if isinstance(made, ZkRefused) else Unavailable)(str(made)) from None
    finally:
        client.stop()
        with contextlib.suppress(WriterNotClosedException):
            client.close()


def read_records(client: KazooClient, paths: Paths) -> list[ShardFact]:
    """Return the shards in the order of their numbers. Raises Invalid, and kazoo's errors."""
    found = []
    for name in client.get_children(paths.folder(SHARDS)):
        try:
            number = shard_of(name)
        except Invalid as error:
            raise Invalid(f"ZooKeeper's record {SHARDS}/{name}: {error.message}") from None
        try:
            data, _ = client.get(paths.shard(number))
        except NoNodeError:  # removed during the read
            continue
        try:
            found.append(decode_shard(number, data))
        except Invalid as error:
            raise Invalid(f"ZooKeeper's record of shard {number}: {error.message}") from None
    return sorted(found, key=lambda fact: fact.id)
