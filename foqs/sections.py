"""The sections of foqs.toml. Units are in the names. Defaults suit a host with a few shards and 400 MB of memory.

What is `Live` is read each time it is used, and harms nothing in hand when it changes. What hosts must agree on
(`confirm_ms`, frames), what sockets, sessions and databases were opened with, and what memory was set aside by is not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from foqs.ids import MAX_SHARD
from foqs.keys import Live, Secret, SecretPair, SecretUrl, Section, refuse
from foqs.quota import Quota
from foqs.shard_urls import refusal_of

MiB = 1 << 20
ADMIN_DISTANCE = 2000
"""How far the admin port is above the server's, where it is not set."""
_HOST_PORT = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", re.ASCII)
_ROOT = re.compile(r"(/[\w.~-]+)+", re.ASCII)


class ServerSection(Section):
    """Where this host listens, and how it is called."""

    id: str = Field(
        default="host-1",
        min_length=1,
        max_length=200,
        description="The host's name, the same after a restart. In a cluster the default is the machine's name and the "
        "port.",
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=7707, ge=0, le=65_535, description="Port to listen on; 0 picks one.")
    advertise: str | None = Field(
        default=None,
        description="host:port that clients and other hosts are told. Default: where it listens; on 0.0.0.0 the "
        "machine's name.",
    )
    max_connections: Live[int] = Field(
        default=10_000,
        ge=1,
        description="Connections at a time; more are closed at once. Lowered live, it closes none.",
    )
    max_connections_per_address: Live[int] = Field(
        default=2_000,
        ge=1,
        description="Connections of one client's address; more are closed at once and logged. Raise it, up to "
        "max_connections, where a load balancer, a proxy or NAT shows many clients as one address.",
    )
    requests_per_second_per_address: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Requests of one client's address, evenly or as many at once after a rest; more are OVERLOADED. "
        "Not set: any.",
    )
    idle_connection_ms: Live[int] = Field(
        default=3_600_000, ge=1_000, description="A connection without a request for this long is closed."
    )
    frame_read_ms: Live[int] = Field(
        default=30_000,
        ge=100,
        description="A frame may take this long to arrive, and a peer this long to take its answer.",
    )
    grace_ms: Live[int] = Field(
        default=10_000, ge=0, description="From SIGTERM to exit; in a cluster as long again for shards to move away."
    )

    @property
    def open_files(self) -> int:
        """What a host needs: its connections, and what its shards and other hosts take besides."""
        return self.max_connections + 1_000


class LogSection(Section):
    """What is written to stderr (docs/logs.md). Commands other than `dev` and `serve` heed the environment alone."""

    level: Live[Literal["debug", "info", "warning", "error"]] = Field(
        default="info", description="The least that is written."
    )
    format: Literal["console", "json"] = Field(default="console", description="For people, or an object a line.")
    slow_request_ms: Live[int] = Field(
        default=5_000, ge=0, description="A request that takes longer than it asked to wait is told. 0: none is."
    )

    @field_validator("level", mode="before")
    @classmethod
    def _lower(cls, level: object) -> object:
        return level.lower() if isinstance(level, str) else level


class LimitsSection(Section):
    """Bounds on what a caller may send. Items that are stored already are not touched by a bound that is lowered."""

    payload_bytes: Live[int] = Field(default=1 * MiB, ge=1, le=8 * MiB, description="Of one item.")
    metadata_bytes: Live[int] = Field(default=4096, ge=0, le=65_535, description="Of one item.")
    headers_bytes: Live[int] = Field(
        default=4096, ge=0, le=65_535, description="Of one item, names and values together."
    )
    name_bytes: Live[int] = Field(default=255, ge=1, le=255, description="Of a namespace, a topic, a dedup_key.")
    request_items: int = Field(default=10_000, ge=1, le=100_000, description="Items in one request, or its answer.")
    frame_bytes: int = Field(
        default=16_384_000, ge=4096, le=64 * MiB, description="One request or answer. The largest item has to fit."
    )
    lease_min_ms: Live[int] = Field(default=100, ge=1, description="Shortest lease that may be asked for.")
    lease_max_ms: Live[int] = Field(
        default=12 * 3_600_000, ge=1, le=(1 << 31) - 1, description="Longest lease that may be asked for."
    )
    lease_default_ms: Live[int] = Field(
        default=30_000, ge=1, description="The lease where neither the consumer nor the item says how long."
    )
    delay_max_ms: Live[int] = Field(
        default=366 * 86_400_000, ge=0, description="Longest delay of an enqueue or a nack."
    )
    ttl_max_ms: Live[int] = Field(default=366 * 86_400_000, ge=1, description="Longest time to live.")
    wait_max_ms: Live[int] = Field(default=600_000, ge=0, description="Longest that a dequeue may wait for items.")
    timeout_default_ms: Live[int] = Field(
        default=30_000, ge=1, description="For a request that does not say how long it may take."
    )
    timeout_max_ms: Live[int] = Field(default=600_000, ge=1, description="Longest that a request may be given.")
    dedup_window_ms: Live[int] = Field(
        default=86_400_000,
        ge=1_000,
        le=366 * 86_400_000,
        description="How long a dedup_key is remembered from its enqueue on.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> LimitsSection:
        item_bytes = self.payload_bytes + self.metadata_bytes + self.headers_bytes + 65_536
        refuse(
            {
                "lease_min_ms <= lease_default_ms <= lease_max_ms does not hold": not (
                    self.lease_min_ms <= self.lease_default_ms <= self.lease_max_ms
                ),
                "the largest item does not fit a frame: raise frame_bytes or lower payload_bytes": (
                    item_bytes > self.frame_bytes
                ),
            }
        )
        return self


class HostSection(Section):
    """Bounds and delays of the host's own machinery."""

    budget_bytes: int = Field(
        default=128 * MiB, ge=1 * MiB, description="All that is held for callers, together. Two frames have to fit."
    )
    input_share: Live[float] = Field(
        default=0.5, gt=0, lt=1, description="Of the budget; beyond it enqueues are answered OVERLOADED."
    )
    lease_write_delay_ms: Live[int] = Field(
        default=200,
        ge=0,
        le=10_000,
        description="A lease may stay unwritten for this long: an ack that comes first saves it.",
    )
    confirm_ms: int = Field(
        default=1_000,
        ge=50,
        description="An owner not confirmed by its database for this long hands out nothing. The same on all hosts.",
    )
    merge_wait_ms: Live[int] = Field(default=50, ge=0, description="How long one shard's page may hold up the others.")
    window_rows: Live[int] = Field(default=4_096, ge=16, description="Ready items kept in memory, per topic and shard.")
    page_rows: Live[int] = Field(default=1_000, ge=1, le=4_096, description="Ready items read at a time.")
    batch_rows: Live[int] = Field(
        default=2_000, ge=1, le=100_000, description="Inserts in one transaction; changes twice as many."
    )
    scan_rows: Live[int] = Field(default=1_000, ge=1, le=10_000, description="Due or expired items read at a time.")
    pending_rows: Live[int] = Field(default=100_000, ge=1, description="Inserts, and changes, waiting per shard.")
    leases: Live[int] = Field(
        default=50_000, ge=1, description="Written leases remembered per shard; older ones are read back."
    )
    lanes: Live[int] = Field(default=100_000, ge=1, description="Topics per shard.")
    lane_idle_ms: Live[int] = Field(
        default=600_000,
        ge=0,
        description="An empty topic's row is removed after this; at once when a shard nears `lanes`.",
    )
    clock_jump_ms: int = Field(
        default=500, ge=10, description="The host's clock is set to the databases' when it differs by more than this."
    )


class AdminSection(Section):
    """Where metrics and the state of health are told, by HTTP."""

    enabled: bool = Field(default=True, description="Whether they are told.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description=f"Port to listen on; 0 picks one. Not set: {ADMIN_DISTANCE} above the server's.",
    )
    namespaces: int = Field(
        default=50, ge=0, le=1_000, description="Namespaces with series of their own; the others are told as one."
    )
    topics: int = Field(
        default=200, ge=0, le=10_000, description="Topics with series of their own: those with the most items."
    )


class BreakerSection(Section):
    """When a shard whose database fails, hangs or is slow is left alone for a while."""

    trips: Live[int] = Field(default=50, ge=1, description="Trips to the database that are judged, the last ones.")
    min_trips: Live[int] = Field(default=5, ge=1, description="Nothing is judged on fewer.")
    error_rate: Live[float] = Field(default=0.5, gt=0, le=1, description="Share of failed trips at which it opens.")
    mean_latency_ms: Live[float] = Field(default=2_000.0, gt=0, description="Mean latency at which it opens.")
    hang_ms: Live[int] = Field(default=1_000, ge=10, description="One trip that takes longer opens it.")
    pause_ms: Live[int] = Field(
        default=200, ge=1, description="Until it is tried again; doubles from failure to failure."
    )
    max_pause_ms: Live[int] = Field(default=2_000, ge=1, description="The longest pause.")


class StoreSection(Section):
    """Connections to the shards' databases."""

    connect_timeout_ms: int = Field(default=3_000, ge=100, description="To connect.")
    io_timeout_ms: int = Field(default=10_000, ge=100, description="To answer a statement.")
    state_dir: Path | None = Field(
        default=None,
        description="Where a host without a cluster remembers how far the ids of its shards went. Not set: foqs-state, "
        "beside foqs.toml.",
    )


class ZookeeperSection(Section):
    """The cluster that this host belongs to."""

    hosts: str = Field(description="host:port of the servers, with commas between.")
    root: str = Field(default="/foqs", description="The node below which the cluster is kept.")
    session_timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        description="How long a host may be silent before it is lost, and its shards go to others.",
    )
    auth_scheme: Literal["digest", "sasl"] | None = Field(
        default=None, description="How the credential is given; sasl is DIGEST-MD5. Both or neither."
    )
    auth_credential: SecretPair | None = Field(default=None, description="user:password.")
    acl: Literal["open", "creator"] = Field(
        default="open", description="creator: all that this host makes is its credential's alone."
    )
    balance_every_ms: Live[int] = Field(default=60_000, ge=1_000, description="Between two rounds of balancing.")
    max_moves: Live[int] = Field(default=10, ge=1, description="Of shards, in one round of balancing.")
    settle_ms: int = Field(
        default=1_000, ge=0, description="How long a fresh cluster waits for hosts that start together."
    )
    handover_ms: int = Field(
        default=5_000, ge=0, description="A request for a shard being moved is held for this long."
    )
    tls: bool = Field(
        default=False, description="`hosts` are secure client ports; their certificates have to name the host."
    )
    tls_ca_file: Path | None = Field(default=None, description="Authorities (PEM) beside those of the system.")
    tls_cert_file: Path | None = Field(default=None, description="Certificate (PEM) that this host shows.")
    tls_key_file: Path | None = Field(default=None, description="The key (PEM) of tls_cert_file.")

    @field_validator("hosts")
    @classmethod
    def _host_ports(cls, hosts: str) -> str:
        parts = [part.strip() for part in hosts.split(",")]
        if not all(_HOST_PORT.fullmatch(part) and int(part.rpartition(":")[2]) in range(1, 65_536) for part in parts):
            raise ValueError("not host:port, or several of them with commas between")
        return ",".join(parts)

    @field_validator("root")
    @classmethod
    def _absolute(cls, root: str) -> str:
        if not _ROOT.fullmatch(root) or {".", "..", "zookeeper"} & set(root.split("/")):
            raise ValueError("not an absolute path such as /foqs")
        return root

    @field_validator("auth_credential")
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
    """A shard of a host that is alone; in a cluster the shards are in ZooKeeper (`foqs shards add`)."""

    id: int = Field(ge=1, le=MAX_SHARD, description="Numbers the shard for ever: it is part of every item's id.")
    url: SecretUrl = Field(
        min_length=1, description="SQLAlchemy URL of the shard's database: mysql+pymysql, mysql+mysqldb or sqlite."
    )

    @field_validator("url")
    @classmethod
    def _accepted(cls, url: str) -> str:
        if (why := refusal_of(url)) is not None:
            raise ValueError(why)
        return url


class TlsSection(Section):
    """TLS on the Thrift port, and on the calls between hosts, where the certificate is the client's as well."""

    cert_file: Path = Field(description="Certificate (PEM), followed by those between it and its authority.")
    key_file: Path = Field(description="The key (PEM) of cert_file.")
    ca_file: Path | None = Field(
        default=None,
        description="Authorities (PEM) of clients and of other hosts. Not set: the system's, of hosts.",
    )
    client_certificates: Literal["none", "optional", "required"] = Field(
        default="none", description="Whether clients show a certificate of an authority in ca_file."
    )

    @model_validator(mode="after")
    def _verifiable(self) -> TlsSection:
        refuse({"client_certificates needs ca_file": self.client_certificates != "none" and self.ca_file is None})
        return self


class AuthSection(Section):
    """Who may call. Without principals_file everybody may do everything."""

    principals_file: Path | None = Field(
        default=None, description="Who there is, and who may do what (docs/security.md)."
    )
    cluster_secret: Secret | None = Field(
        default=None, min_length=32, description="By which hosts prove to each other what they are; the same on all."
    )


class QuotaKeys(Section):
    """A quota of one namespace, over all hosts together."""

    enqueues_per_second: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Items that may be enqueued in a second. Not set: any number."
    )
    burst: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Items at once. Not set: what comes in a second."
    )
    stored_items: int | None = Field(
        default=None, ge=1, description="Items that may be stored, in any state. Not set: any number."
    )

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> QuotaKeys:
        refuse({"burst needs enqueues_per_second": self.burst is not None and self.enqueues_per_second is None})
        return self

    def quota(self) -> Quota | None:
        if self.enqueues_per_second is None and self.stored_items is None:
            return None
        return Quota(self.enqueues_per_second, self.burst or self.enqueues_per_second or 0, self.stored_items)


class QuotasSection(QuotaKeys):
    """Quotas of namespaces, the same on every host of a cluster."""

    namespaces: dict[str, QuotaKeys] = Field(
        default={},
        description="Quotas by namespace: each has what stands there, and nothing of the above.",
    )
