"""The metrics of `foqs push run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foqs.admin.exposition import Rows
from foqs.admin.families import Family
from foqs.cli.push_targets import Followed
from foqs.push.pusher import Pusher

STUCK_S = 10.0
"""A process whose event loop has not run for this time is not healthy."""
_TARGET = ("namespace", "target")
_ALL = (
    Family(
        "foqs_push_requests_total",
        "counter",
        "Requests, by the end of the item's attempt: `ack`, `release` (by `Retry-After`, not counted), "
        "`fail`, `reject`, `cut_off` (given up by a stop, not counted).",
        (*_TARGET, "outcome"),
    ),
    Family(
        "foqs_push_request_seconds",
        "histogram",
        "Duration of a request, from the look-up of the name to the end of the reply.",
        _TARGET,
    ),
    Family("foqs_push_in_flight", "gauge", "Running requests.", _TARGET),
    Family("foqs_push_concurrency", "gauge", "Requests that the target allows at a time, of one process.", _TARGET),
    Family(
        "foqs_push_waiting",
        "gauge",
        "1 for a target that takes no items, else 0. The log has the reason: `push.refused`, `push.stopped`, "
        "`pusher.not_understood`.",
        _TARGET,
    ),
    Family(
        "foqs_push_settings_age_seconds",
        "gauge",
        "Time since a host last answered with the settings that the process acts on; about 2 s. No series "
        "before the first answer.",
        ("namespace",),
    ),
)
FAMILIES = {family.name: family for family in _ALL}


def rows(served: Mapping[str, tuple[Pusher, Followed]], now_s: float) -> Rows:
    """Return the present values; `served` by namespace. Called in a thread: `list` copies what the event loop may
    change between two steps."""
    found: dict[str, list[Any]] = {name: [] for name in FAMILIES}
    for ns, (pusher, followed) in list(served.items()):
        meter, waiting = pusher.meter, pusher.waiting()
        for (name, outcome), count in list(meter.requests.items()):
            found["foqs_push_requests_total"].append(((ns, name, outcome.replace(" ", "_")), count))
        for name, seconds in list(meter.seconds.items()):
            found["foqs_push_request_seconds"].append(((ns, name), seconds.copy()))
        for name, target in followed.targets.items():
            found["foqs_push_in_flight"].append(((ns, name), meter.in_flight[name]))
            found["foqs_push_concurrency"].append(((ns, name), target.concurrency))
        for name in _waiting(followed, waiting):
            found["foqs_push_waiting"].append(((ns, name), int(name in waiting or name in followed.odd)))
        if followed.version is not None:
            found["foqs_push_settings_age_seconds"].append(((ns,), max(0.0, now_s - followed.heard_s)))
    return found


def _waiting(followed: Followed, waiting: Mapping[str, str]) -> Iterator[str]:
    yield from dict.fromkeys([*followed.targets, *followed.odd, *waiting])
