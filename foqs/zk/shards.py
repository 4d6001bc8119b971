"""The shards of a cluster, read once, by somebody who is no host and no operator."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, NoNodeError, WriterNotClosedException
from kazoo.protocol.states import KazooState, KeeperState

from foqs.errors import Forbidden, Invalid, Unavailable
from foqs.sections import ZookeeperSection
from foqs.shardmgr.facts import ShardFact, decode_shard
from foqs.zk.errors import mapped
from foqs.zk.handler import KazooLog
from foqs.zk.link import check, security
from foqs.zk.paths import SHARDS, Paths, shard_of
from foqs.zk.protocol import ZkRefused


def read_shards(config: ZookeeperSection, *, timeout_s: float = 10.0) -> list[ShardFact]:
    """All of them, in the order of their numbers, whatever their use is.

    Raises Unavailable (no ZooKeeper within `timeout_s`, or nothing there), Forbidden, and Invalid: a record cannot be
    read, which would else be a shard that is silently missing.
    """
    with connected(config, timeout_s) as client:
        try:
            return read_records(client, Paths(config.root))
        except NoNodeError:
            raise Unavailable(f"ZooKeeper at {config.hosts} shows nothing of {config.root}") from None


@contextlib.contextmanager
def connected(config: ZookeeperSection, timeout_s: float) -> Iterator[KazooClient]:
    """A session. Raises Invalid (a package is missing), Unavailable and Forbidden; also for kazoo's errors inside."""
    check(config)
    client = KazooClient(config.hosts, timeout=config.session_timeout_ms / 1000, logger=KazooLog(), **security(config))
    settled = threading.Event()
    refused = False

    def listen(state: str) -> None:
        """In kazoo's thread. Of a credential that is refused it tells nobody who waits for the connection."""
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
    """In the order of their numbers. Raises Invalid, and kazoo's errors."""
    found = []
    for name in client.get_children(paths.folder(SHARDS)):
        try:
            number = shard_of(name)
        except Invalid as error:
            raise Invalid(f"ZooKeeper's record {SHARDS}/{name}: {error.message}") from None
        try:
            data, _ = client.get(paths.shard(number))
        except NoNodeError:  # removed meanwhile
            continue
        try:
            found.append(decode_shard(number, data))
        except Invalid as error:
            raise Invalid(f"ZooKeeper's record of shard {number}: {error.message}") from None
    return sorted(found, key=lambda fact: fact.id)
