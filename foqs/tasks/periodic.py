"""Tasks that the service enqueues at set times: declared on an App, and written as schedules of its namespace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from foqs.client import Conflict, Invalid, OutcomeUnknown, SettingsChange, Unavailable
from foqs.client.handlers import TASK_HEADER
from foqs.client.rules import rules_json
from foqs.tasks.options import spec_of
from foqs.tasks.task import Task
from foqs.ticks import check

if TYPE_CHECKING:
    from foqs.client import AsyncClient

KEY = "schedule."
_FITTING = ("topic", "priority", "tenant", "throttle", "max_attempts", "retry", "keep", "headers")
_KEPT = ("paused",)
"""Fields of an operator, which the declaration leaves alone."""
_ATTEMPTS = 8
_LONGEST_PAUSE_S = 2.0


def declared(
    task: Task[Any, Any, Any],
    cron: str,
    *,
    timezone: str,
    catch_up: Literal["none", "last", "all"],
    overlap: Literal["allow", "skip"],
    jitter: timedelta | None,
) -> dict[str, Any]:
    """Return the setting of a schedule that enqueues `task` without arguments. Raises Invalid for times
    that are wrong, and for a task that needs arguments, or has options which schedules do not have."""
    given: list[tuple[str, Any]] = [("cron", cron), ("timezone", timezone)]
    for name, value in given:
        if not isinstance(value, str) or not value:
            raise Invalid(f"task {task.name}: {name} is {value!r}: give a text")
    try:
        check(cron, timezone)
    except Invalid as error:
        raise Invalid(f"task {task.name}: {error.message}") from None
    if jitter is not None and not isinstance(jitter, timedelta):
        raise Invalid(f"task {task.name}: jitter is {jitter!r}: give a timedelta")
    try:
        task.signature.encode((), {})
    except Invalid as error:
        raise Invalid(f"{error.message}; a schedule gives no arguments: give the parameters defaults") from None
    unfit = [name for name, value in task.default.items() if value not in (None, False) and name not in _FITTING]
    if unfit:
        raise Invalid(f"task {task.name}: schedules do not have the option {unfit[0]}; they have {', '.join(_FITTING)}")
    spec = spec_of(task.name, task.default, b"")
    headers = {name: value for name, value in (spec.headers or {}).items() if name != "content-type"}
    fields = {
        "cron": cron, "timezone": timezone, "catch_up": catch_up, "overlap": overlap, "topic": spec.topic,
        "headers": {**headers, TASK_HEADER: task.name}, "priority": spec.priority or None,
        "fairness_key": spec.fairness_key, "throttle_keys": spec.throttle_keys and list(spec.throttle_keys),
        "rules": None if spec.rules is None else rules_json(spec.rules),
        "jitter_ms": None if jitter is None else jitter // timedelta(milliseconds=1),
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def changed(entries: Mapping[str, str], schedules: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the settings to put, so that `schedules` by their names are in effect, for the present `entries`. What an
    operator sets stays: a paused schedule stays paused."""
    put = {}
    for name, fields in schedules.items():
        before = json.loads(entries.get(KEY + name, "{}"))
        after = {**fields, **{kept: before[kept] for kept in _KEPT if kept in before}}
        if after != before:
            put[KEY + name] = json.dumps(after, ensure_ascii=False)
    return put


async def apply(client: AsyncClient, schedules: Mapping[str, Mapping[str, Any]]) -> SettingsChange | None:
    """Write the schedules that differ from the settings. None: there are none. Raises Invalid for a schedule that the
    service refuses, Forbidden if the token may not write settings, and other errors of a host."""
    from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    async def once() -> SettingsChange | None:
        found = await client.settings(KEY)
        put = changed(found.entries, schedules)
        return await client.put_settings(put, expected_version=found.version) if put else None

    # Workers of one deployment start together, and only the first one finds the version that it has read.
    retrying = AsyncRetrying(
        retry=retry_if_exception_type((Conflict, Unavailable, OutcomeUnknown)), stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.1, max=_LONGEST_PAUSE_S), reraise=True,
    )  # fmt: skip
    return await retrying(once)
