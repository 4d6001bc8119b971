"""Snapshots made by hand, in the reader's format."""

from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
LIGHT = (
    "id long, shard int, namespace string, topic string, state string, priority int, deliver_after timestamp, "
    "enqueued_at timestamp, expires_at timestamp, lease_expires_at timestamp, attempt int, delivery string, "
    "lease_ms long, bytes int, payload_bytes int, fairness_key string, throttle_keys array<string>, "
    "rules string"
)
FULL = LIGHT + ", payload binary, metadata binary, headers map<string,string>"


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


def item(number: int, **values: Any) -> dict[str, Any]:
    """Return a ready item of shop/mail with ten bytes, enqueued a minute ago; `values` replace its fields."""
    made = {
        "id": 1 << 48 | number,
        "shard": 1,
        "namespace": "shop",
        "topic": "mail",
        "state": "ready",
        "priority": 0,
        "enqueued_at": ago(minutes=1),
        "expires_at": None,
        "lease_expires_at": None,
        "attempt": 0,
        "delivery": "AT_LEAST_ONCE",
        "lease_ms": None,
        "bytes": 10,
        "payload_bytes": 10,
        "fairness_key": "",
        "throttle_keys": [],
        "rules": None,
        "payload": b"0123456789",
        "metadata": None,
        "headers": None,
        **values,
    }
    return {"deliver_after": made["enqueued_at"], **made}


def frame(spark: Any, items: list[dict[str, Any]], schema: str = FULL) -> Any:
    names = [column.split()[0] for column in schema.replace("map<string,string>", "map").split(", ")]
    return spark.createDataFrame([tuple(one[name] for name in names) for one in items], schema)
