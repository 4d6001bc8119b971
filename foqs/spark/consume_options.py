"""The options of a consuming stream."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from foqs.bounds import Limits
from foqs.spark.options import ExtraColumns, Options

_LIMITS = Limits()


class ConsumeOptions(Options):
    """endpoints        `host:port`, several with commas
    namespace           namespace of the items
    topic               one topic, or several with commas; each gets its share of a batch
    state_dir           absolute path of a folder for this query only; keep it while the checkpoint exists. On a disk
                        of the driver's machine, or on a shared one if the driver may move; only the driver reads it.
                        It contains bodies of items, so protect it like them
    token               credential, if the service requires one, or `@path` of a file (on the driver's machine)
    tls                 as for the client: `on`, or `ca_file=...,cert_file=...,key_file=...,server_name=...`
    lease_ms            lease time of the items, 100 ms to 12 h; extended after a third of it
    max_items_per_batch 1 to 10,000
    max_bytes_per_batch bytes of payloads, metadata and headers; the last item of each connection may exceed its share.
                        The partitions contain the rows, so the driver holds a few copies of a batch while Spark plans
                        it, and one of the next batch
    partitions          tasks that share a batch, 1 to 1,000
    connections         requests to the service at a time, for leases and again for acks, 1 to 64
    wait_ms             longest wait of a trigger for a first item, 0 (at once) to 60,000; stopping the query waits for
                        it too
    timeout_ms          time-out of each call of the service, 1 to 600,000
    extra_columns       `headers`: each other column of the schema is a header of the item
    """

    endpoints: str
    namespace: str
    topic: str
    state_dir: str
    token: str | None = Field(default=None, repr=False)
    tls: str | None = None
    lease_ms: int = Field(default=60_000, ge=_LIMITS.lease_min_ms, le=_LIMITS.lease_max_ms)
    max_items_per_batch: int = Field(default=1_000, ge=1, le=_LIMITS.request_items)
    max_bytes_per_batch: int = Field(default=16 << 20, ge=1, le=1 << 30)
    partitions: int = Field(default=2, ge=1, le=1_000)
    connections: int = Field(default=4, ge=1, le=64)
    wait_ms: int = Field(default=500, ge=0, le=60_000)
    timeout_ms: int = Field(default=30_000, ge=1, le=_LIMITS.timeout_max_ms)
    extra_columns: ExtraColumns = "refuse"

    @field_validator("namespace")
    @classmethod
    def _named(cls, given: str) -> str:
        if not given:
            raise ValueError("is empty")
        return given

    @field_validator("topic")
    @classmethod
    def _topics(cls, given: str) -> str:
        names = _names(given)
        if not names or len(set(names)) != len(names):
            raise ValueError("names no topic, or one twice")
        return given

    @field_validator("state_dir")
    @classmethod
    def _folder(cls, given: str) -> str:
        if not Path(given).is_absolute():
            raise ValueError(
                "is not an absolute path of a folder (the driver writes to it without Spark, so a URL does not work)"
            )
        return given

    @property
    def topics(self) -> list[str]:
        return _names(self.topic)


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]
