"""Methods of `Client` for the settings of a namespace: entries, their log, policies of topics, and throttles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from foqs.client import methods
from foqs.client._async.requests import Requests
from foqs.client._async.waits import Event
from foqs.client.arguments import checked
from foqs.client.settings_types import (
    THROTTLE,
    TOPIC,
    Changes,
    PolicyFields,
    Settings,
    SettingsChange,
    SettingsLog,
    ThrottleFields,
    stamp_of,
    with_fields,
)
from foqs.errors import Conflict, Invalid, NotFound
from foqs.idl import idl
from foqs.second_answer import ONCE
from foqs.settings_log import MOST_VERSIONS

_TRIES = 5
_AGAIN_S = 0.2
"""The host that answers may not have learned of the latest version yet."""


class SettingsCalls:
    """A part of `Client`."""

    namespace: str
    _requests: Requests

    @checked()
    async def settings(self, prefix: str = "", *, timeout_ms: int | None = None) -> Settings:
        """The settings whose keys begin with `prefix`, as the host that answers acts on them."""
        request = idl.GetSettingsRequest(ns=self.namespace, prefix=prefix or None)
        response = await self._requests.call(methods.GET_SETTINGS, request, timeout_ms)
        stamps = {key: stamp_of(one) for key, one in (response.stamps or {}).items()}
        return Settings(response.version, response.entries or {}, stamps)

    @checked()
    async def settings_log(
        self, prefix: str = "", *, limit: int | None = None, timeout_ms: int | None = None
    ) -> SettingsLog:
        """What the last versions changed, the newest first: at most `limit` (default, and 0: all that the log has).
        With `prefix` only versions that changed such keys, and only these changes. Raises Invalid from a host of an
        older version of foqs, which keeps no log.

        >>> (await client.settings_log("topic.mail")).versions[0]                                 # doctest: +SKIP
        SettingsVersion(version=42, stamp=SettingsStamp(changed_at_ms=1767225600000, by='ann'),
        changes={'topic.mail': (None, '{"paused": true}')}, left_out=0)
        """
        request = idl.GetSettingsLogRequest(self.namespace, prefix or None, min(limit or MOST_VERSIONS, MOST_VERSIONS))
        return SettingsLog.of(await self._requests.call(methods.GET_SETTINGS_LOG, request, timeout_ms))

    @checked()
    async def put_settings(
        self,
        entries: Mapping[str, str] | None = None,
        remove: Iterable[str] = (),
        *,
        expected_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> SettingsChange:
        """Add or replace `entries`, and remove the keys in `remove`, in one step.

        Raises Invalid with every error, one a line; Conflict when the settings have another version than the expected
        one; OutcomeUnknown when the reply was lost: `settings` shows the current version.

        >>> await client.put_settings({"topic.mail": '{"paused": true}'}, expected_version=41)    # doctest: +SKIP
        SettingsChange(version=42, applied=('h1:7707', 'h2:7707'), missing=(), warnings=())
        """
        request = idl.PutSettingsRequest(self.namespace, dict(entries or {}), list(remove), expected_version)
        response = await self._requests.call(methods.PUT_SETTINGS, request, timeout_ms, policy=ONCE)
        hosts = (response.applied, response.missing, response.warnings)
        return SettingsChange(response.version, *(tuple(one or ()) for one in hosts))

    @checked()
    async def change_settings(
        self, decide: Callable[[Mapping[str, str]], Changes], *, timeout_ms: int | None = None
    ) -> SettingsChange | None:
        """Make the change that `decide` returns for the present entries: (entries to put, keys to remove). None if it
        returns neither. If the settings change in between, they are read and `decide` is called again, five times at
        most.

        Raises as `put_settings` does, and what `decide` raises."""
        for tries in range(1, _TRIES + 1):
            before = await self.settings(timeout_ms=timeout_ms)
            put, remove = decide(before.entries)
            if not put and not remove:
                return None
            try:
                return await self.put_settings(put, remove, expected_version=before.version, timeout_ms=timeout_ms)
            except Conflict:
                if tries == _TRIES:
                    raise
            await Event().wait(_AGAIN_S)
        raise AssertionError("the last try returns or raises")

    # ------------------------------------------------------------------------------------- policies, throttles

    @checked()
    async def policy(self, topic: str, *, timeout_ms: int | None = None) -> PolicyFields:
        """The fields of the topic's own policy, or of that of a `prefix*`; none without a policy. `topic_stats` has the
        policy in effect."""
        return cast(PolicyFields, await self._entry(TOPIC + topic, timeout_ms))

    @checked()
    async def set_policy(
        self, topic: str, fields: PolicyFields, *, without: Iterable[str] = (), timeout_ms: int | None = None
    ) -> SettingsChange | None:
        """Change fields of the topic's own policy, or of that of a `prefix*`, and keep its other fields. `without`:
        fields that are taken out of it, for which other policies and the built-in one count then. None: there was
        nothing to take out.

        Raises Invalid with every error of a field, one a line; Conflict if the settings keep changing.

        >>> await client.set_policy("mail", {"max_attempts": 5, "paused": True})                  # doctest: +SKIP
        SettingsChange(version=42, applied=('h1:7707',), missing=(), warnings=())
        """
        return await self._set(TOPIC + topic, dict(fields), without, timeout_ms)

    @checked()
    async def remove_policy(self, topic: str, *, timeout_ms: int | None = None) -> SettingsChange:
        """Remove the topic's own policy, or that of a `prefix*`. Raises NotFound if there is none."""
        return await self._remove(TOPIC + topic, timeout_ms)

    @checked()
    async def throttle(self, key: str, *, timeout_ms: int | None = None) -> ThrottleFields:
        """The fields of the throttle of a key, or of a `prefix*`; none without a throttle. `throttles` has keys in
        use."""
        return cast(ThrottleFields, await self._entry(THROTTLE + key, timeout_ms))

    @checked()
    async def set_throttle(
        self, key: str, fields: ThrottleFields, *, without: Iterable[str] = (), timeout_ms: int | None = None
    ) -> SettingsChange | None:
        """Make the throttle of a key, or of each key with a prefix (`prefix*`), or change fields of it, as
        `set_policy` does. A throttle needs `per_second` or `concurrency`.

        >>> await client.set_throttle("api", {"per_second": 10, "burst": 20})                     # doctest: +SKIP
        SettingsChange(version=43, applied=('h1:7707',), missing=(), warnings=())
        """
        return await self._set(THROTTLE + key, dict(fields), without, timeout_ms)

    @checked()
    async def remove_throttle(self, key: str, *, timeout_ms: int | None = None) -> SettingsChange:
        """Remove the throttle of a key, or of a `prefix*`. Raises NotFound if there is none."""
        return await self._remove(THROTTLE + key, timeout_ms)

    async def _entry(self, key: str, timeout_ms: int | None) -> dict[str, Any]:
        value = (await self.settings(key, timeout_ms=timeout_ms)).entries.get(key, "{}")
        return cast(dict[str, Any], json.loads(value))

    async def _set(
        self, key: str, fields: Mapping[str, Any], without: Iterable[str], timeout_ms: int | None
    ) -> SettingsChange | None:
        out = tuple(without)
        if not fields and not out:
            raise Invalid("fields and without are empty")
        return await self.change_settings(lambda entries: with_fields(entries, key, fields, out), timeout_ms=timeout_ms)

    async def _remove(self, key: str, timeout_ms: int | None) -> SettingsChange:
        def decide(entries: Mapping[str, str]) -> Changes:
            if key not in entries:
                raise NotFound(f"the settings of {self.namespace} have no {key}")
            return {}, [key]

        change = await self.change_settings(decide, timeout_ms=timeout_ms)
        assert change is not None, "decide returns a change"
        return change
