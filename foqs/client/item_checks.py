"""Checks of the items of an enqueue, above all of values that the codec would change: it cuts a fraction."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.bounds import MOST_WEIGHT
from foqs.checks import I32_MAX, I64_MAX, LONGEST_MS, check_bytes, check_int, check_text, check_time_ms
from foqs.client.items import Delivery, ItemSpec
from foqs.errors import Invalid
from foqs.travel import bare

_USUAL = Delivery.AT_LEAST_ONCE  # a look-up in an enum costs four comparisons


def check_item(spec: ItemSpec) -> None:
    """Raises Invalid. Types that the codec refuses, and bounds that hosts configure, are left to them."""
    topic: object = spec.topic
    if not isinstance(topic, str):
        check_text("topic", topic)
    check_bytes("payload", spec.payload)
    check_bytes("metadata", spec.metadata, none=True)
    check_int("priority", spec.priority, -I32_MAX - 1, I32_MAX, none=True)
    check_time_ms("deliver_after_ms", spec.deliver_after_ms, none=True)
    check_int("delay_ms", spec.delay_ms, 0, I64_MAX, zero="at once", none=True)
    if spec.delay_ms is not None and spec.deliver_after_ms is not None:
        raise Invalid("both deliver_after_ms and delay_ms are given: give one of the two")
    check_int("lease_ms", spec.lease_ms, 1, LONGEST_MS, none=True)
    check_int("ttl_ms", spec.ttl_ms, 1, I64_MAX, none=True)
    check_time_ms("expires_at_ms", spec.expires_at_ms, none=True)
    if spec.ttl_ms is not None and spec.expires_at_ms is not None:
        raise Invalid("both expires_at_ms and ttl_ms are given: give one of the two")
    check_int("weight", spec.weight, 1, MOST_WEIGHT, none=True)
    check_int("delivery", spec.delivery, Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE, none=True)


def faults_of(specs: Sequence[ItemSpec]) -> dict[int, Invalid]:
    """Return the error of each item that must not be sent, by its place. A plain item costs a few comparisons."""
    faults: dict[int, Invalid] = {}
    for at, spec in enumerate(specs):
        try:
            if (
                type(spec.payload) is bytes
                and type(spec.topic) is str
                and type(spec.priority) is int
                and spec.delivery is _USUAL
                and spec.metadata is None
                and spec.deliver_after_ms is None
                and spec.delay_ms is None
                and spec.lease_ms is None
                and spec.ttl_ms is None
                and spec.expires_at_ms is None
                and spec.weight is None
            ):
                continue
            check_item(spec)
        except AttributeError:
            faults[at] = Invalid(f"item {at} is of type {type(spec).__name__}: it must be an ItemSpec")
        except Invalid as error:
            faults[at] = bare(error)
    return faults
