"""Sections about the host itself: its address, log, bounds, memory, admin port and circuit breakers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from foqs.config.fields import Live, Section, refuse

MiB = 1 << 20
ADMIN_DISTANCE = 2000
"""Distance of the admin port from the server's, unless it is set."""


class ServerSection(Section):
    """The address and the name of this host."""

    id: str = Field(
        default="host-1",
        min_length=1,
        max_length=200,
        description="The host's name. It must stay the same after a restart. In a cluster the default is the machine's "
        "name and the port.",
    )
    host: str = Field(default="127.0.0.1", description="The host listens on this address.")
    port: int = Field(default=7707, ge=0, le=65_535, description="The host listens on this port. 0 picks a free one.")
    advertise: str | None = Field(
        default=None,
        description="Clients and other hosts connect to this host:port. Not set: the listening address, or the "
        "machine's name if that is 0.0.0.0.",
    )
    max_connections: Live[int] = Field(
        default=10_000,
        ge=1,
        description="At most this many connections are open; the host closes further ones at once. Lowering it live "
        "closes none.",
    )
    max_connections_per_address: Live[int] = Field(
        default=2_000,
        ge=1,
        description="At most this many connections are open from one client address; the host closes and logs further "
        "ones. Raise it, up to max_connections, if many clients share an address (load balancer, proxy, NAT).",
    )
    requests_per_second_per_address: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="One client address may send this many requests a second; further ones get OVERLOADED. An idle "
        "address may send one second's requests at once. Not set: no limit.",
    )
    idle_connection_ms: Live[int] = Field(
        default=3_600_000, ge=1_000, description="The host closes a connection without a request for this long."
    )
    frame_read_ms: Live[int] = Field(
        default=30_000,
        ge=100,
        description="The host closes a connection if a frame takes longer than this to arrive, or a reply to be read.",
    )
    grace_ms: Live[int] = Field(
        default=10_000,
        ge=0,
        description="After SIGTERM the host has this long to finish requests. In a cluster it first has the same time "
        "again to hand over its shards.",
    )

    @property
    def open_files(self) -> int:
        """Open files that a host needs: its connections, and a reserve for shards and other hosts."""
        return self.max_connections + 1_000


class LogSection(Section):
    """The log on stderr (docs/logs.md). Commands other than `dev` and `serve` read it from the environment only."""

    level: Live[Literal["debug", "info", "warning", "error"]] = Field(
        default="info", description="The host writes events of this level and above."
    )
    format: Literal["console", "json"] = Field(
        default="console", description="console is for people; json writes one object a line."
    )
    slow_request_ms: Live[int] = Field(
        default=5_000,
        ge=0,
        description="The host logs a request that takes this much longer than the wait it asked for. 0: never.",
    )

    @field_validator("level", mode="before")
    @classmethod
    def _lower(cls, level: object) -> object:
        return level.lower() if isinstance(level, str) else level


class LimitsSection(Section):
    """Bounds on requests. Lowering one does not change stored items."""

    payload_bytes: Live[int] = Field(default=1 * MiB, ge=1, le=8 * MiB, description="Largest payload of an item.")
    metadata_bytes: Live[int] = Field(default=4096, ge=0, le=65_535, description="Largest metadata of an item.")
    headers_bytes: Live[int] = Field(
        default=4096, ge=0, le=65_535, description="Largest headers of an item, names and values together."
    )
    name_bytes: Live[int] = Field(
        default=255, ge=1, le=255, description="Longest name of a namespace or topic, and longest dedup_key."
    )
    request_items: int = Field(default=10_000, ge=1, le=100_000, description="Most items in a request or its reply.")
    frame_bytes: int = Field(
        default=16_384_000, ge=4096, le=64 * MiB, description="Largest request or reply. The largest item must fit in."
    )
    lease_min_ms: Live[int] = Field(default=100, ge=1, description="Shortest lease that a request may ask for.")
    lease_max_ms: Live[int] = Field(
        default=12 * 3_600_000, ge=1, le=(1 << 31) - 1, description="Longest lease that a request may ask for."
    )
    lease_default_ms: Live[int] = Field(
        default=30_000, ge=1, description="Length of a lease if neither the consumer nor the item gives one."
    )
    delay_max_ms: Live[int] = Field(
        default=366 * 86_400_000, ge=0, description="Longest delay of an enqueue or a nack."
    )
    ttl_max_ms: Live[int] = Field(default=366 * 86_400_000, ge=1, description="Longest time to live.")
    wait_max_ms: Live[int] = Field(default=600_000, ge=0, description="Longest wait of a dequeue for items.")
    timeout_default_ms: Live[int] = Field(default=30_000, ge=1, description="Time-out of a request that gives none.")
    timeout_max_ms: Live[int] = Field(default=600_000, ge=1, description="Longest time-out that a request may give.")
    dedup_window_ms: Live[int] = Field(
        default=86_400_000,
        ge=1_000,
        le=366 * 86_400_000,
        description="Time after its enqueue for which the host remembers a dedup_key.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> LimitsSection:
        item_bytes = self.payload_bytes + self.metadata_bytes + self.headers_bytes + 65_536
        refuse(
            {
                "lease_default_ms must be between lease_min_ms and lease_max_ms": not (
                    self.lease_min_ms <= self.lease_default_ms <= self.lease_max_ms
                ),
                "the largest item does not fit a frame: raise frame_bytes or lower payload_bytes": (
                    item_bytes > self.frame_bytes
                ),
            }
        )
        return self


class HostSection(Section):
    """Memory, batches and delays inside a host."""

    budget_bytes: int = Field(
        default=128 * MiB,
        ge=1 * MiB,
        description="Memory for requests, items and replies together. At least two frames must fit in.",
    )
    input_share: Live[float] = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="Share of the budget for enqueues that wait to be stored; further enqueues get OVERLOADED.",
    )
    lease_write_delay_ms: Live[int] = Field(
        default=200,
        ge=0,
        le=10_000,
        description="The host delays the write of a lease by this much. An ack within that time saves the write.",
    )
    confirm_ms: int = Field(
        default=1_000,
        ge=50,
        description="An owner whose database has not confirmed it for this long delivers no items. Give all hosts the "
        "same value.",
    )
    merge_wait_ms: Live[int] = Field(
        default=50,
        ge=0,
        description="Longest wait of a dequeue for the next page of one shard; then it delivers from the other shards.",
    )
    window_rows: Live[int] = Field(
        default=4_096, ge=16, description="Most ready items in memory for a topic in a shard."
    )
    page_rows: Live[int] = Field(default=1_000, ge=1, le=4_096, description="Most ready items read in one query.")
    batch_rows: Live[int] = Field(
        default=2_000,
        ge=1,
        le=100_000,
        description="Most inserts in a transaction; twice that number of other changes.",
    )
    scan_rows: Live[int] = Field(
        default=1_000, ge=1, le=10_000, description="Most due or expired items read in one query."
    )
    pending_rows: Live[int] = Field(
        default=100_000,
        ge=1,
        description="Most inserts and changes that wait for a shard; further ones get OVERLOADED.",
    )
    leases: Live[int] = Field(
        default=50_000,
        ge=1,
        description="Most written leases in memory for a shard; the host reads older ones from the database again.",
    )
    lanes: Live[int] = Field(default=100_000, ge=1, description="Most topics in a shard.")
    lane_idle_ms: Live[int] = Field(
        default=600_000,
        ge=0,
        description="The host removes the row of a topic empty for this long, or at once if a shard nears `lanes`.",
    )
    clock_jump_ms: int = Field(
        default=500,
        ge=10,
        description="The host sets its clock to the databases' clocks if it differs by more than this.",
    )


class AdminSection(Section):
    """The HTTP port for metrics and health checks."""

    enabled: bool = Field(default=True, description="The host opens the port.")
    host: str = Field(default="127.0.0.1", description="The port is open on this address.")
    port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description=f"The number of the port; 0 picks a free one. Not set: {ADMIN_DISTANCE} above server.port.",
    )
    namespaces: int = Field(
        default=50, ge=0, le=1_000, description="This many namespaces have series of their own; the rest share one."
    )
    topics: int = Field(
        default=200,
        ge=0,
        le=10_000,
        description="This many topics have series of their own: those with the most ready items.",
    )


class BreakerSection(Section):
    """The circuit breaker of a shard: it pauses calls to a database that fails, hangs or is slow."""

    trips: Live[int] = Field(
        default=50, ge=1, description="The breaker judges this many of the last calls to the database."
    )
    min_trips: Live[int] = Field(default=5, ge=1, description="The breaker does not judge fewer calls than this.")
    error_rate: Live[float] = Field(
        default=0.5, gt=0, le=1, description="The breaker opens at this share of failed calls."
    )
    mean_latency_ms: Live[float] = Field(default=2_000.0, gt=0, description="The breaker opens at this mean latency.")
    hang_ms: Live[int] = Field(
        default=1_000, ge=10, description="The breaker opens if a single call takes longer than this."
    )
    pause_ms: Live[int] = Field(
        default=200, ge=1, description="Pause before the next try; it doubles with each failure."
    )
    max_pause_ms: Live[int] = Field(default=2_000, ge=1, description="Longest pause.")
