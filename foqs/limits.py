"""Bounds on the input of callers, in one place. `[limits]` in foqs.toml sets each of them."""

from __future__ import annotations

from dataclasses import dataclass, fields

_DAY_MS = 86_400_000
THROTTLE_KEYS = 8
THROTTLE_KEYS_BYTES = 512
"""Of an item's throttle keys together, with one byte between two: the width of the column."""
MOST_WEIGHT = 1_000
"""Of a tenant; the least is 1."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Units are in the names; `request_items`, and counts without a unit, are numbers of things."""

    payload_bytes: int = 1 << 20
    metadata_bytes: int = 4096
    headers_bytes: int = 4096
    name_bytes: int = 255
    request_items: int = 10_000
    request_topics: int = 1_000
    frame_bytes: int = 16_384_000
    lease_min_ms: int = 100
    lease_max_ms: int = 12 * 3_600_000
    lease_default_ms: int = 30_000
    delay_max_ms: int = 366 * _DAY_MS
    ttl_max_ms: int = 366 * _DAY_MS
    wait_max_ms: int = 600_000
    timeout_default_ms: int = 30_000
    timeout_max_ms: int = 600_000
    dedup_window_ms: int = _DAY_MS  # how long a key is remembered
    reason_bytes: int = 1024
    token_bytes: int = 4096
    context_bytes: int = 128
    worker_bytes: int = 128
    throttle_keys: int = THROTTLE_KEYS
    throttle_keys_bytes: int = THROTTLE_KEYS_BYTES
    list_items: int = 1_000
    active_topics: int = 10_000

    def as_map(self) -> dict[str, int]:
        """The limits by name, as GetServerInfo gives them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
