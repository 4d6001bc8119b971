"""The settings of a namespace: policies of its topics, and entries of its users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from foqs.client import methods
from foqs.client.options import checked
from foqs.client.requests import Requests
from foqs.idl import idl


class Settings(NamedTuple):
    """`version` 0: they were never written. Each change adds 1."""

    version: int
    entries: dict[str, str]


class SettingsChange(NamedTuple):
    """The version that a change made. `applied`: host:port of the hosts that act on it; `missing`: of the living hosts
    that did not say so within 2 s. `warnings`: what the changed entries say in vain."""

    version: int
    applied: tuple[str, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class SettingsMethods:
    """The part of a client that reads and changes settings."""

    namespace: str
    _requests: Requests

    @checked()
    def settings(self, prefix: str = "", *, timeout_ms: int | None = None) -> Settings:
        """The settings whose keys begin with `prefix`, as the host that answers acts on them."""
        request = idl.GetSettingsRequest(ns=self.namespace, prefix=prefix or None)
        response = self._requests.read(methods.GET_SETTINGS, request, timeout_ms)
        return Settings(response.version, response.entries or {})

    @checked()
    def put_settings(
        self,
        entries: Mapping[str, str] | None = None,
        remove: Iterable[str] = (),
        *,
        expected_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> SettingsChange:
        """Adds or replaces `entries`, and removes the keys in `remove`, in one step.

        Raises Invalid with every error, one a line; Conflict when the settings have another version than the expected
        one; OutcomeUnknown when the reply was lost: `settings` shows whether they were changed.

        >>> client.put_settings({"topic.mail": '{"paused": true}'}, expected_version=41)    # doctest: +SKIP
        SettingsChange(version=42, applied=('h1:7707', 'h2:7707'), missing=(), warnings=())
        """
        request = idl.PutSettingsRequest(self.namespace, dict(entries or {}), list(remove), expected_version)
        response = self._requests.change(methods.PUT_SETTINGS, request, timeout_ms)
        return SettingsChange(
            response.version,
            tuple(response.applied or ()),
            tuple(response.missing or ()),
            tuple(response.warnings or ()),
        )
