"""Read ZooKeeper once, by a process that is neither a host nor an operator's command: the shards, or a check-up.

The check-up looks at the servers, and at a host's rights below the root. It changes nothing. Rights to write are tested
in transactions that cannot succeed: ZooKeeper checks the rights of each step before it finds the last step impossible,
and then rolls back.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError, NoNodeError, WriterNotClosedException
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, KeeperState

from foqs import settings_log
from foqs.config.schema import ZookeeperSection
from foqs.errors import Forbidden, Invalid, Unavailable
from foqs.ids import Mark, decode_mark
from foqs.policies.settings import Settings
from foqs.policies.settings import decode as decode_settings
from foqs.settings_log import NO_LOG
from foqs.shardmgr.backup import Backup
from foqs.shardmgr.facts import (
    Assignment,
    HostFact,
    Identity,
    ShardFact,
    Slots,
    decode_assignment,
    decode_host,
    decode_identity,
    decode_shard,
    decode_slots,
)
from foqs.zk.link import KazooLog, acl_of, check_config, mapped, security
from foqs.zk.protocol import ZkRefused
from foqs.zk.records import (
    ASSIGNMENT,
    DRAINED,
    FOLDERS,
    HOSTS,
    IDENTITY,
    MARKS,
    SETTINGS,
    SHARDS,
    SLOTS,
    Paths,
    shard_of,
    text_of,
)

_LENGTH = struct.Struct("!i")
_CLOSE = struct.Struct("!iii").pack(8, 0, -11)
_NEVER = (1 << 31) - 1
"""A version that no node has."""
_PROBE = "foqs-doctor"
_MOST_REPLY_BYTES = 1 << 16
T = TypeVar("T")


def read_shards(config: ZookeeperSection, *, timeout_s: float = 10.0) -> list[ShardFact]:
    """Return all shards of any use, in the order of their numbers.

    Raises Unavailable (no ZooKeeper within `timeout_s`, or an empty root), Forbidden, and Invalid if a record cannot be
    read: skipping it would silently omit a shard.
    """
    with connected(config, timeout_s) as client:
        try:
            paths = Paths(config.root)
            return read_records(client, paths, client.get_children(paths.folder(SHARDS)))
        except NoNodeError:
            raise Unavailable(f"ZooKeeper at {config.hosts} has no cluster at {config.root}") from None


@contextlib.contextmanager
def connected(config: ZookeeperSection, timeout_s: float) -> Iterator[KazooClient]:
    """Yield a session. Raises Invalid (a package is missing), Unavailable and Forbidden, also for kazoo's errors inside
    the block."""
    check_config(config)
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


def renew_acls(config: ZookeeperSection, *, timeout_s: float = 10.0) -> int:
    """Give each node of the cluster the ACL of a node that a host with this configuration creates. Return how many have
    got it. Raises Unavailable, and Forbidden if the credential may not change one."""
    acl, count = acl_of(config), 0
    with connected(config, timeout_s) as client:
        # The root comes last: while it has the previous ACL, a command that was cut off can be repeated.
        waiting, found = [Paths(config.root).root], []
        while waiting:
            path = waiting.pop()
            found.append(path)
            with contextlib.suppress(NoNodeError):
                waiting += [f"{path}/{name}" for name in client.get_children(path)]
        for path in reversed(found):
            with contextlib.suppress(NoNodeError):  # removed during the walk
                client.set_acls(path, acl)
                count += 1
    return count


def read_records(client: KazooClient, paths: Paths, names: Iterable[str]) -> list[ShardFact]:
    """Return the shards with these node names, in the order of their numbers. Raises Invalid, and kazoo's errors."""
    found = []
    for name in names:
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


def read_backup(config: ZookeeperSection, *, timeout_s: float = 10.0) -> Backup:
    """Return all records that are not ephemeral; an empty backup without a root. Raises Unavailable, Forbidden, and
    Invalid if a record cannot be read."""
    paths = Paths(config.root)
    with connected(config, timeout_s) as client:
        client.sync("/")

        def names(folder: str) -> list[str]:
            try:
                return sorted(client.get_children(folder))
            except NoNodeError:
                return []

        def record(path: str, decode: Callable[[bytes, int], T], missing: T) -> T:
            try:
                data, stat = client.get(path)
            except NoNodeError:
                return missing
            try:
                return decode(data, stat.version)
            except Invalid as error:
                raise Invalid(f"ZooKeeper's record {path}: {error.message}") from None

        def settings_of(ns: str) -> Settings:
            document = record(paths.settings(ns), lambda data, _: decode_settings(ns, data), Settings(ns))
            return document.with_log(record(paths.settings_log(ns), lambda data, _: settings_log.decode(data), NO_LOG))

        settings = [settings_of(text_of(name)) for name in names(paths.folder(SETTINGS))]
        marks = {
            shard: {
                _identity_of(name): record(f"{paths.marks(shard)}/{name}", _mark, Mark(0, 0, 0))
                for name in names(paths.marks(shard))
            }
            for shard in map(shard_of, names(paths.folder(MARKS)))
        }
        return Backup(
            record(paths.identity, decode_identity, Identity()),
            {fact.id: fact for fact in read_records(client, paths, names(paths.folder(SHARDS)))},
            record(paths.slots, decode_slots, Slots()),
            record(paths.assignment, decode_assignment, Assignment()),
            frozenset(map(text_of, names(paths.folder(DRAINED)))),
            {shard: found for shard, found in marks.items() if found},
            {one.ns: one for one in settings if one.version},
        )


def _mark(data: bytes, _version: int) -> Mark:
    return decode_mark(data)


def _identity_of(name: str) -> str:
    return "" if name == "-" else text_of(name)


# ------------------------------------------------------------------------------------------------ check-up


@dataclass(frozen=True, slots=True)
class ServerCheckup:
    """One server of the ensemble. `version` is empty if the server does not report it. `session_ms` is the time-out
    that it grants to a session that asks for the configured one."""

    version: str
    session_ms: int


@dataclass(slots=True)
class RootCheckup:
    """`there`: the root exists; if not, `siblings` has the names next to the first missing node. `denied`: operations
    that the credential may not do, such as `create in /foqs/shards`."""

    there: bool = True
    siblings: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    hosts: list[HostFact] = field(default_factory=list)
    shards: list[ShardFact] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    identity: Identity = field(default_factory=Identity)


def check_server(config: ZookeeperSection, host: str, port: int, timeout_s: float) -> ServerCheckup:
    """Begin and end a session with this server alone; it grants one only as part of its ensemble. Raises OSError (with
    a message if the server answers and grants none), and Invalid for TLS files that cannot be read."""
    check_config(config)
    deadline = time.monotonic() + timeout_s
    with _connect(config, host, port, deadline) as asked:
        asked.sendall(b"srvr")
        answer = _all(asked, deadline)
    with _connect(config, host, port, deadline) as client:
        order = Connect(0, 0, config.session_timeout_ms, 0, bytes(16), False).serialize()
        client.sendall(_LENGTH.pack(len(order)) + order)
        size = _LENGTH.unpack(_exactly(client, _LENGTH.size, deadline))[0]
        if not 0 < size < _MOST_REPLY_BYTES:
            raise OSError("the server is not a ZooKeeper")
        reply, _ = Connect.deserialize(_exactly(client, size, deadline), 0)
        client.sendall(_CLOSE)
    return ServerCheckup(_version(answer), reply.time_out)


def _connect(config: ZookeeperSection, host: str, port: int, deadline: float) -> socket.socket:
    """Connect as kazoo does: with the system's authorities in addition to the given ones."""
    plain = socket.create_connection((host, port), max(0.1, deadline - time.monotonic()))
    if not config.tls:
        return plain
    try:
        context = ssl.create_default_context()
        if config.tls_ca_file is not None:
            context.load_verify_locations(config.tls_ca_file)
        if config.tls_cert_file is not None:
            context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def check_root(config: ZookeeperSection, timeout_s: float) -> RootCheckup:
    """Check the root. Raises Unavailable, Forbidden (the credential is refused), Invalid (a package is missing)."""
    paths, made = Paths(config.root), RootCheckup()
    with connected(config, timeout_s) as client:
        try:
            missing = next((path for path in paths.ancestors if not _is_there(client, path)), None)
            found = None if missing is not None else _children(made, client, paths.root)
        except NoNodeError:
            missing, found = paths.root, None
        if missing is not None:
            _look_beside(made, client, missing)
        if found is None:
            return made
        _try(made, client, paths.root, f"create in {paths.root}", create=True)
        names: dict[str, list[str]] = {}
        for name in FOLDERS:
            if name in found:
                folder = paths.folder(name)
                names[name] = _children(made, client, folder) or []
                _try(made, client, folder, f"create and delete in {folder}", create=True)
        for record in (ASSIGNMENT, SLOTS, IDENTITY):
            if record in found:
                _try(made, client, paths.folder(record), f"write {paths.folder(record)}", create=False)
        _read_identity(made, client, paths)
        _read_shards(made, client, paths, names.get(SHARDS, []))
        _read_hosts(made, client, paths, names.get(HOSTS, []))
    return made


def _is_there(client: KazooClient, path: str) -> bool:
    """Return whether a node exists, also one that this credential may not see."""
    try:
        return client.exists(path) is not None
    except NoAuthError:
        return True


def _look_beside(made: RootCheckup, client: KazooClient, missing: str) -> None:
    made.there = False
    above = missing.rpartition("/")[0] or "/"
    made.siblings = sorted(set(_children(made, client, above) or ()) - {"zookeeper"})
    _try(made, client, above, f"create in {above}", create=True)


def _children(made: RootCheckup, client: KazooClient, path: str) -> list[str] | None:
    try:
        return list(client.get_children(path))
    except NoAuthError:
        made.denied.append(f"read {path}")
        return None


def _try(made: RootCheckup, client: KazooClient, path: str, what: str, *, create: bool) -> None:
    transaction = client.transaction()
    if create:
        probe = f"{path.rstrip('/')}/{_PROBE}"
        transaction.create(probe)
        if path != "/":
            transaction.delete(probe)
    else:
        transaction.set_data(path, b"", _NEVER)
    transaction.check("/", _NEVER)
    if any(isinstance(result, NoAuthError) for result in transaction.commit()[:-1]):
        made.denied.append(what)


def _read_identity(made: RootCheckup, client: KazooClient, paths: Paths) -> None:
    try:
        made.identity = decode_identity(*_data(client.get(paths.identity)))
    except NoNodeError:
        return
    except NoAuthError:
        made.denied.append(f"read {paths.identity}")
    except Invalid as error:
        made.unreadable.append(f"ZooKeeper's record {paths.identity}: {error.message}")


def _data(answer: Any) -> tuple[bytes, int]:
    data, stat = answer
    return data, stat.version


def _read_shards(made: RootCheckup, client: KazooClient, paths: Paths, names: list[str]) -> None:
    try:
        made.shards = read_records(client, paths, names)
    except NoAuthError:
        made.denied.append("read the shards")
    except Invalid as error:
        made.unreadable.append(error.message)


def _read_hosts(made: RootCheckup, client: KazooClient, paths: Paths, names: list[str]) -> None:
    for name in names:
        try:
            host = text_of(name)
            made.hosts.append(decode_host(host, client.get(paths.host(host))[0]))
        except NoNodeError:  # it left during the check
            continue
        except NoAuthError:
            made.denied.append(f"read {paths.folder(HOSTS)}/{name}")
        except Invalid as error:
            made.unreadable.append(f"ZooKeeper's record {HOSTS}/{name}: {error.message}")


def _version(answer: bytes) -> str:
    """Parse the version; the server may have `srvr` switched off."""
    _, found, rest = answer.partition(b"Zookeeper version: ")
    return rest.partition(b"-")[0].partition(b",")[0].decode("ascii", "replace")[:20] if found else ""


def _all(asked: socket.socket, deadline: float) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionError):
        while len(answer) < _MOST_REPLY_BYTES and (more := _some(asked, _MOST_REPLY_BYTES, deadline)):
            answer += more
    return answer


def _exactly(client: socket.socket, size: int, deadline: float) -> bytes:
    got = b""
    while len(got) < size:
        more = _some(client, size - len(got), deadline)
        if not more:
            raise OSError("the server closes connections: it is not a ZooKeeper, or it has no quorum")
        got += more
    return got


def _some(client: socket.socket, size: int, deadline: float) -> bytes:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    client.settimeout(left)
    return client.recv(size)
