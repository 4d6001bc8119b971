"""The sections of foqs.toml. Units are in the names. Defaults suit a host with a few shards and 400 MB of memory.

The host reads a `Live` key each time it uses it, so the key can change while requests are in flight. Other keys cannot:
values on which all hosts must agree (`confirm_ms`, frames), settings of open sockets, sessions and databases, and the
sizes of memory that is allocated at the start.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from foqs import bounds
from foqs.bounds import LIMITS, Limits, Quota
from foqs.checks import LONGEST_MS, is_text, shard_url_fault
from foqs.config.fields import Live, Secret, SecretPair, SecretUrl, Section, refuse
from foqs.ids import MAX_SHARD

MiB = 1 << 20
MOST = 1_000_000_000
"""The bound of numbers without a bound of their own."""
ADMIN_DISTANCE = 2000
"""Distance of the admin port from the server's, unless it is set."""
_HOST_PORT = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", re.ASCII)
_ROOT = re.compile(r"(/[\w.~-]+)+", re.ASCII)


def _is_host_port(text: str) -> bool:
    return _HOST_PORT.fullmatch(text) is not None and int(text.rpartition(":")[2]) in range(1, bounds.MOST_PORT + 1)


class ServerSection(Section):
    """The address and the name of this host."""

    id: str = Field(default="host-1", min_length=1, max_length=200)
    """The host's name. It must stay the same after a restart. In a cluster the default is the machine's name and the
    port."""
    host: str = "127.0.0.1"
    """The host listens on this address."""
    port: int = Field(default=bounds.DEFAULT_PORT, ge=0, le=bounds.MOST_PORT)
    """The host listens on this port. 0 picks a free one."""
    advertise: str | None = None
    """Clients and other hosts connect to this host:port. Not set: the listening address, or the machine's name if that
    is 0.0.0.0."""
    max_connections: Live[int] = Field(default=10_000, ge=1, le=MOST)
    """At most this many connections are open; the host closes further ones at once. Lowering it live closes none."""
    max_connections_per_address: Live[int] = Field(default=2_000, ge=1, le=MOST)
    """At most this many connections are open from one client address; the host closes and logs further ones. Raise it,
    up to max_connections, if many clients share an address (load balancer, proxy, NAT)."""
    requests_per_second_per_address: int | None = Field(default=None, ge=0, le=1_000_000)
    """One client address may send this many requests a second; further ones get OVERLOADED. An idle address may send
    one second's requests at once. 0, or not set: no limit."""
    idle_connection_ms: Live[int] = Field(default=3_600_000, ge=1_000, le=LONGEST_MS)
    """The host closes a connection without a request for this long."""
    frame_read_ms: Live[int] = Field(default=30_000, ge=100, le=LONGEST_MS)
    """The host closes a connection if a frame takes longer than this to arrive, or a reply to be read."""
    grace_ms: Live[int] = Field(default=10_000, ge=0, le=LONGEST_MS)
    """After SIGTERM the host has this long to finish requests; 0: it ends at once. In a cluster it first has the same
    time again to hand over its shards."""

    @field_validator("advertise")
    @classmethod
    def _host_port(cls, advertise: str | None) -> str | None:
        if advertise is not None and not _is_host_port(advertise):
            raise ValueError("not host:port, with a port from 1 to 65535 (an IPv6 address in brackets)")
        return advertise

    @property
    def open_files(self) -> int:
        """Open files that a host needs: its connections, and a reserve for shards and other hosts."""
        return self.max_connections + 1_000


class LogSection(Section):
    """The log on stderr (docs/reference/logs.md). Commands other than `dev`, `serve` and `push run` read it from the
    environment only."""

    level: Live[Literal["debug", "info", "warning", "error"]] = "info"
    """The host writes events of this level and above."""
    format: Literal["console", "json"] = "console"
    """console is for people; json writes one object a line."""
    slow_request_ms: Live[int] = Field(default=5_000, ge=0, le=LONGEST_MS)
    """The host logs a request that takes this much longer than the wait it asked for. 0: never."""

    @field_validator("level", mode="before")
    @classmethod
    def _lower(cls, level: object) -> object:
        return level.lower() if isinstance(level, str) else level


class LimitsSection(Section):
    """Bounds on requests. Lowering one does not change stored items."""

    payload_bytes: Live[int] = Field(default=LIMITS.payload_bytes, ge=1, le=8 * MiB)
    """Largest payload of an item."""
    metadata_bytes: Live[int] = Field(default=LIMITS.metadata_bytes, ge=0, le=65_535)
    """Largest metadata of an item; 0: none."""
    headers_bytes: Live[int] = Field(default=LIMITS.headers_bytes, ge=0, le=65_535)
    """Largest headers of an item, names and values together; 0: none."""
    name_bytes: Live[int] = Field(default=LIMITS.name_bytes, ge=1, le=bounds.NAME_BYTES)
    """Longest name of a namespace or topic, and longest dedup_key."""
    request_items: int = Field(default=LIMITS.request_items, ge=1, le=100_000)
    """Most items in a request or its reply."""
    frame_bytes: int = Field(default=LIMITS.frame_bytes, ge=bounds.LEAST_FRAME_BYTES, le=bounds.MOST_FRAME_BYTES)
    """Largest request or reply. The largest item must fit in."""
    lease_min_ms: Live[int] = Field(default=LIMITS.lease_min_ms, ge=1, le=LONGEST_MS)
    """Shortest lease that a request may ask for."""
    lease_max_ms: Live[int] = Field(default=LIMITS.lease_max_ms, ge=1, le=LONGEST_MS)
    """Longest lease that a request may ask for."""
    lease_default_ms: Live[int] = Field(default=LIMITS.lease_default_ms, ge=1, le=LONGEST_MS)
    """Length of a lease if neither the consumer nor the item gives one."""
    delay_max_ms: Live[int] = Field(default=LIMITS.delay_max_ms, ge=0, le=100 * bounds.YEAR_MS)
    """Longest delay of an enqueue or a nack; 0: all are delivered at once."""
    ttl_max_ms: Live[int] = Field(default=LIMITS.ttl_max_ms, ge=1, le=100 * bounds.YEAR_MS)
    """Longest time to live."""
    wait_max_ms: Live[int] = Field(default=LIMITS.wait_max_ms, ge=0, le=LONGEST_MS)
    """Longest wait of a dequeue for items; 0: all are answered at once."""
    timeout_default_ms: Live[int] = Field(default=LIMITS.timeout_default_ms, ge=1, le=LONGEST_MS)
    """Time-out of a request that gives none."""
    timeout_max_ms: Live[int] = Field(default=LIMITS.timeout_max_ms, ge=1, le=LONGEST_MS)
    """Longest time-out that a request may give."""
    dedup_window_ms: Live[int] = Field(default=LIMITS.dedup_window_ms, ge=1_000, le=bounds.YEAR_MS)
    """Time after its enqueue for which the host remembers a dedup_key."""

    result_bytes: Live[int] = Field(default=LIMITS.result_bytes, ge=0, le=LIMITS.result_bytes)
    """Largest result of an item; 0: none."""
    checkpoint_bytes: Live[int] = Field(default=LIMITS.checkpoint_bytes, ge=0, le=LIMITS.checkpoint_bytes)
    """Largest checkpoint of an item; 0: an empty one."""
    result_wait_max_ms: Live[int] = Field(default=LIMITS.result_wait_max_ms, ge=0, le=LIMITS.result_wait_max_ms)
    """Longest wait for the end of an item; 0: all are answered at once."""
    result_waiters: Live[int] = Field(default=LIMITS.result_waiters, ge=0, le=1_000_000)
    """Callers that may wait for results on the host at a time; 0: none may wait."""
    batch_keep_ms: Live[int] = Field(default=LIMITS.batch_keep_ms, ge=0, le=30 * bounds.DAY_MS)
    """Time for which GetBatch knows a batch that has ended. 0: not at all."""

    @model_validator(mode="after")
    def _ordered(self) -> LimitsSection:
        item_bytes = self.payload_bytes + self.metadata_bytes + self.headers_bytes + 65_536
        refuse(
            {
                "lease_default_ms must be between lease_min_ms and lease_max_ms": not (
                    self.lease_min_ms <= self.lease_default_ms <= self.lease_max_ms
                ),
                "timeout_default_ms is above timeout_max_ms": self.timeout_default_ms > self.timeout_max_ms,
                "the largest item does not fit a frame: raise frame_bytes or lower payload_bytes": (
                    item_bytes > self.frame_bytes
                ),
            }
        )
        return self

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


class HostSection(Section):
    """Memory, batches and delays inside a host."""

    budget_bytes: int = Field(default=128 * MiB, ge=1 * MiB, le=1 << 40)
    """Memory for requests, items and replies together. At least two frames must fit in."""
    input_share: Live[float] = Field(default=0.5, gt=0, lt=1)
    """Share of the budget for enqueues that wait to be stored; further enqueues get OVERLOADED."""
    lease_write_delay_ms: Live[int] = Field(default=200, ge=0, le=10_000)
    """The host delays the write of a lease by this much. An ack within that time saves the write. 0: at once."""
    confirm_ms: int = Field(default=1_000, ge=50, le=LONGEST_MS)
    """An owner whose database has not confirmed it for this long delivers no items. Give all hosts the same value."""
    merge_wait_ms: Live[int] = Field(default=50, ge=0, le=LONGEST_MS)
    """Longest wait of a dequeue for the next page of one shard; then it delivers from the other shards.
    0: at once."""
    window_rows: Live[int] = Field(default=4_096, ge=16, le=MOST)
    """Most ready items in memory for a topic in a shard."""
    page_rows: Live[int] = Field(default=1_000, ge=1, le=4_096)
    """Most ready items read in one query."""
    batch_rows: Live[int] = Field(default=2_000, ge=1, le=100_000)
    """Most inserts in a transaction; twice that number of other changes."""
    scan_rows: Live[int] = Field(default=1_000, ge=1, le=10_000)
    """Most due or expired items read in one query."""
    pending_rows: Live[int] = Field(default=100_000, ge=1, le=MOST)
    """Most inserts and changes that wait for a shard; further ones get OVERLOADED."""
    leases: Live[int] = Field(default=50_000, ge=1, le=MOST)
    """Most written leases in memory for a shard; the host reads older ones from the database again."""
    tail_items: Live[int] = Field(default=10_000, ge=0, le=100_000)
    """Most items of a shard that are stored without their row in the index of ready items. Such an item stays in
    memory, and an early ack saves the row. 0: every item gets its row at once."""
    lanes: Live[int] = Field(default=100_000, ge=1, le=MOST)
    """Most lanes in a shard: topics, and in a topic its fairness keys and sets of throttle keys."""
    order_keys: Live[int] = Field(default=100_000, ge=1, le=MOST)
    """Most order keys whose items are in a shard at a time."""
    batches: Live[int] = Field(default=100_000, ge=0, le=MOST)
    """Most batches of a shard that have not ended; further ones get OVERLOADED. 0: none can be created."""
    lane_idle_ms: Live[int] = Field(default=600_000, ge=0, le=LONGEST_MS)
    """The host removes the row of a lane empty for this long, or at once if a shard nears `lanes`. 0: at once."""
    clock_jump_ms: int = Field(default=500, ge=10, le=LONGEST_MS)
    """The host sets its clock to the databases' clocks if it differs by more than this."""
    clock_bound_ms: Live[int] = Field(default=60_000, ge=10, le=LONGEST_MS)
    """Clocks that differ by at most this agree. A host whose time would jump by more waits, and logs the reason,
    unless this machine's clock or two databases agree about the new time."""
    clock_wait_ms: Live[int] = Field(default=0, ge=0, le=LONGEST_MS)
    """Longest wait of a host that does not know what time it is; then it follows the databases. 0: no limit."""


class AdminSection(Section):
    """The HTTP port for metrics and health checks."""

    enabled: bool = True
    """The host opens the port."""
    host: str = "127.0.0.1"
    """The port is open on this address."""
    port: int | None = Field(default=None, ge=0, le=bounds.MOST_PORT)
    """The number of the port; 0 picks a free one. Not set: 2000 above server.port."""
    namespaces: int = Field(default=50, ge=0, le=1_000)
    """This many namespaces have series of their own, 0: none; the rest share one."""
    topics: int = Field(default=200, ge=0, le=10_000)
    """This many topics, with the most ready items, have series of their own. 0: none."""
    tenants: int = Field(default=200, ge=0, le=10_000)
    """This many tenants of topics, with the most ready items, have series of their own, at most 50 of a topic.
    0: none."""
    throttles: int = Field(default=100, ge=0, le=10_000)
    """This many throttle keys, with the most parked items, have series of their own. 0: none."""


class BreakerSection(Section):
    """The circuit breaker of a shard: it pauses calls to a database that fails, hangs or is slow."""

    trips: Live[int] = Field(default=50, ge=1, le=MOST)
    """The breaker judges this many of the last calls to the database."""
    min_trips: Live[int] = Field(default=5, ge=1, le=MOST)
    """The breaker does not judge fewer calls than this."""
    error_rate: Live[float] = Field(default=0.5, gt=0, le=1)
    """The breaker opens at this share of failed calls."""
    mean_latency_ms: Live[float] = Field(default=2_000.0, gt=0, le=LONGEST_MS)
    """The breaker opens at this mean latency."""
    hang_ms: Live[int] = Field(default=1_000, ge=10, le=LONGEST_MS)
    """The breaker opens if a single call takes longer than this, and `foqs cluster status` shows the shard as
    unreachable. The host then refuses requests that were not sent, and asks over another connection for the outcome
    of sent ones. After the same time again it is unknown."""
    pause_ms: Live[int] = Field(default=200, ge=1, le=LONGEST_MS)
    """Pause before the next try; it doubles with each failure."""
    max_pause_ms: Live[int] = Field(default=2_000, ge=1, le=LONGEST_MS)
    """Longest pause."""

    @model_validator(mode="after")
    def _ordered(self) -> BreakerSection:
        refuse(
            {
                "min_trips is above trips": self.min_trips > self.trips,
                "pause_ms is above max_pause_ms": self.pause_ms > self.max_pause_ms,
            }
        )
        return self


class StoreSection(Section):
    """Connections to the shards' databases."""

    connect_timeout_ms: int = Field(default=3_000, ge=100, le=LONGEST_MS)
    """Time-out of a connect, and of the server's greeting."""
    io_timeout_ms: int = Field(default=10_000, ge=100, le=LONGEST_MS)
    """Time-out of a statement."""
    secrets_dir: Path | None = None
    """The password of a shard's URL with ?password_file=NAME is in the file NAME of this folder. Each new connection
    reads it (docs/run/rotation-databases.md)."""
    state_dir: Path | None = None
    """A host without a cluster stores the highest ids of its shards in this folder. Not set: foqs-state, in
    the folder of foqs.toml."""


class ZookeeperSection(Section):
    """The cluster that this host belongs to."""

    hosts: str
    """host:port of each ZooKeeper server, separated by commas."""
    root: str = "/foqs"
    """The data of the cluster is below this node."""
    session_timeout_ms: int = Field(default=10_000, ge=1_000, le=LONGEST_MS)
    """After this time without contact, ZooKeeper gives up a host, and its shards move to other hosts."""
    auth_scheme: Literal["digest", "sasl"] | None = None
    """Scheme of auth_credential; sasl is DIGEST-MD5. Set both keys or neither."""
    auth_credential: SecretPair | None = None
    """user:password for ZooKeeper."""
    auth_credential_previous: SecretPair | None = None
    """While a credential of scheme digest is replaced: the old one. The host has both (docs/run/rotation.md)."""
    acl: Literal["open", "creator"] = "open"
    """creator: only this credential can read and change the nodes that this host creates."""
    balance_every_ms: Live[int] = Field(default=60_000, ge=1_000, le=LONGEST_MS)
    """Time between two rounds of balancing."""
    max_moves: Live[int] = Field(default=10, ge=1, le=MOST)
    """Most shards that move in one round of balancing."""
    settle_ms: int = Field(default=1_000, ge=0, le=LONGEST_MS)
    """A new cluster waits this long for further hosts before it assigns shards. 0: at once."""
    handover_ms: int = Field(default=5_000, ge=0, le=LONGEST_MS)
    """A request for a shard that is moving waits up to this long for the new owner. 0: it is refused at once."""
    tls: bool = False
    """`hosts` are secure client ports. Each certificate must name its host."""
    tls_ca_file: Path | None = None
    """Certificate authorities (PEM), in addition to the system's."""
    tls_cert_file: Path | None = None
    """Certificate (PEM) of this host for ZooKeeper."""
    tls_key_file: Path | None = None
    """Private key (PEM) of tls_cert_file."""

    @field_validator("hosts")
    @classmethod
    def _host_ports(cls, hosts: str) -> str:
        parts = [part.strip() for part in hosts.split(",")]
        if not all(map(_is_host_port, parts)):
            raise ValueError("not host:port, or several of them separated by commas")
        return ",".join(parts)

    @field_validator("root")
    @classmethod
    def _absolute(cls, root: str) -> str:
        if not _ROOT.fullmatch(root) or {".", "..", "zookeeper"} & set(root.split("/")):
            raise ValueError("not an absolute path such as /foqs")
        return root

    @field_validator("auth_credential", "auth_credential_previous")
    @classmethod
    def _user_and_password(cls, credential: str | None) -> str | None:
        if credential is not None and not re.fullmatch(r"[^:]+:.+", credential, re.DOTALL):
            raise ValueError("not user:password")
        return credential

    @model_validator(mode="after")
    def _complete(self) -> ZookeeperSection:
        lone = (self.auth_scheme is None) != (self.auth_credential is None)
        refuse(
            {
                "auth_scheme and auth_credential go together": lone,
                "auth_credential_previous needs auth_scheme = digest: a session has one identity with sasl": (
                    self.auth_credential_previous is not None and self.auth_scheme != "digest"
                ),
                "acl = creator needs auth_scheme and auth_credential": (
                    self.acl == "creator" and self.auth_scheme is None
                ),
                "tls_*_file without tls = true": not self.tls
                and any((self.tls_ca_file, self.tls_cert_file, self.tls_key_file)),
                "tls_cert_file and tls_key_file go together": (self.tls_cert_file is None)
                != (self.tls_key_file is None),
            }
        )
        return self


class ShardSection(Section):
    """A shard of a host without a cluster. In a cluster the shards are in ZooKeeper (`foqs shards add`)."""

    id: int = Field(ge=1, le=MAX_SHARD)
    """The shard's number. It must never change: it is part of every item's id."""
    url: SecretUrl = Field(min_length=1)
    """SQLAlchemy URL of the shard's database: mysql+pymysql, mysql+mysqldb or sqlite."""

    @field_validator("url")
    @classmethod
    def _accepted(cls, url: str) -> str:
        if (why := shard_url_fault(url)) is not None:
            raise ValueError(why)
        return url


class TlsSection(Section):
    """TLS on the Thrift port and between hosts. A host shows its certificate as a client of other hosts, too."""

    cert_file: Live[Path]
    """Certificate (PEM), followed by its intermediate certificates. SIGHUP reads the three files again."""
    key_file: Live[Path]
    """Private key (PEM) of cert_file."""
    ca_file: Live[Path | None] = None
    """Certificate authorities (PEM) of clients and of other hosts. Not set: for hosts, the system's."""
    client_certificates: Literal["none", "optional", "required"] = "none"
    """Ask clients for a certificate from an authority in ca_file, or require one."""

    @model_validator(mode="after")
    def _verifiable(self) -> TlsSection:
        refuse({"client_certificates needs ca_file": self.client_certificates != "none" and self.ca_file is None})
        return self


class AuthSection(Section):
    """Rights of callers. Without principals_file every caller may do everything."""

    principals_file: Path | None = None
    """This file names the principals and their rights (docs/run/security.md)."""
    cluster_secret: Live[Secret | None] = Field(default=None, min_length=32)
    """Hosts prove with this secret that they belong to the cluster. Give all hosts the same one."""
    cluster_secret_previous: Live[Secret | None] = Field(default=None, min_length=32)
    """While the secret is replaced: the old one. Hosts prove both and accept both (docs/run/rotation.md)."""

    @model_validator(mode="after")
    def _previous_of_one(self) -> AuthSection:
        refuse(
            {
                "cluster_secret_previous needs cluster_secret": (
                    self.cluster_secret is None and self.cluster_secret_previous is not None
                )
            }
        )
        return self


class ConsoleSection(Section):
    """Users of `foqs console --auth proxy`, which a proxy in front of the console signs in. Hosts do not use it."""

    proxy_header: str = Field(default="X-Forwarded-User", pattern=r"^[A-Za-z0-9-]+$")
    """The proxy sends the name of the user in this header, and removes it from requests of browsers."""
    proxy_addresses: list[str] = Field(default=["127.0.0.1", "::1"], min_length=1)
    """IP addresses or networks of the proxy. The console takes requests from these alone."""
    tokens_file: Path
    """This TOML file has a token of the service for each user, `ann = "..."`; `"*"` is for all further users."""


class PushSection(Section):
    """`foqs push`: items as requests to HTTP endpoints (docs/do/webhooks.md). Hosts do not use it."""

    allow: Live[list[str]] = Field(default=[])
    """Endpoints that a push process would refuse: networks such as 10.1.0.0/16, or host:port; with http:// in front of
    either, also without TLS."""
    secrets: Live[dict[str, Path]] = Field(default={})
    """Files of secrets, by the names that settings push.NAME give. Only their owner may read them (mode 0400). A file
    that changes is read again."""

    @field_validator("secrets", mode="before")
    @classmethod
    def _no_empty_path(cls, secrets: object) -> object:
        refuse({"the path of a file is empty": isinstance(secrets, dict) and "" in secrets.values()})
        return secrets


class QuotaKeys(Section):
    """A quota of a namespace, for all hosts together."""

    enqueues_per_second: int | None = Field(default=None, ge=0, le=bounds.MOST_RATE)
    """Most items enqueued in a second. 0, or not set: no limit."""
    burst: int | None = Field(default=None, ge=1, le=bounds.MOST_RATE)
    """Most items enqueued at once after a pause. Not set: enqueues_per_second."""
    stored_items: int | None = Field(default=None, ge=0, le=bounds.MOST_STORED)
    """Most items stored, in any state. 0, or not set: no limit."""

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> QuotaKeys:
        refuse({"burst needs enqueues_per_second": self.burst is not None and not self.enqueues_per_second})
        return self

    def quota(self) -> Quota | None:
        rate, stored = self.enqueues_per_second or None, self.stored_items or None
        return None if rate is None and stored is None else Quota(rate, self.burst or rate or 0, stored)


class QuotasSection(QuotaKeys):
    """Quotas of namespaces. Give all hosts of a cluster the same."""

    namespaces: dict[str, QuotaKeys] = Field(default={})
    """Quotas by name of the namespace. A namespace named here has none of the quotas above."""

    @field_validator("namespaces")
    @classmethod
    def _names_can_be_sent(cls, namespaces: dict[str, QuotaKeys]) -> dict[str, QuotaKeys]:
        refuse({"the name of a namespace is not UTF-8": not all(map(is_text, namespaces))})
        return namespaces


class HooksSection(Section):
    """Scripts of hooks (docs/do/hooks.md). They run in processes of their own; the first call starts these."""

    processes: int = Field(default=1, ge=1, le=16)
    """Processes for scripts. One more runs the scripts that are new, or slow."""
    timeout_ms: Live[int] = Field(default=10, ge=1, le=1_000)
    """A call of a script may take this much processor time."""
    memory_bytes: int = Field(default=1 * MiB, ge=65_536, le=64 * MiB)
    """A script may hold this much memory, beyond that of an empty script."""
    request_ms: Live[int] = Field(default=1_000, ge=10, le=60_000)
    """The hooks of a request may take this much time together."""
    queue_calls: Live[int] = Field(default=20_000, ge=256, le=MOST)
    """Most calls that wait for a process; further ones fail."""
