"""Trying the script of a hook: it runs on a sample, and nothing is stored."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, NamedTuple

from foqs.client import methods
from foqs.client.item_checks import check_item
from foqs.client.items import ItemSpec
from foqs.client.options import checked, instance_of
from foqs.client.requests import Requests
from foqs.errors import Invalid
from foqs.idl import idl
from foqs.rows import FailureCause


class Tried(NamedTuple):
    """`error`: the call failed, and all but the times is None. Of `on_enqueue`, `item` is the sample with the fields
    that the script set, or `refuse` says why the script refuses it. Of `on_failure`, `action` and `delay_ms` are None
    where the policy decides. `elapsed_us` of processor time; `memory_bytes` of the script's data after the call."""

    item: ItemSpec | None
    refuse: str | None
    action: str | None
    delay_ms: int | None
    elapsed_us: int
    memory_bytes: int
    error: str | None


def _check_sample(name: str, value: object) -> None:
    instance_of(ItemSpec)(name, value)
    assert isinstance(value, ItemSpec), "the check says so"
    check_item(value)


class HookMethods:
    """A part of `Client`."""

    namespace: str
    _requests: Requests

    @checked(sample=_check_sample)
    def try_hook(
        self,
        sample: ItemSpec,
        *,
        hook: Literal["on_enqueue", "on_failure"] = "on_enqueue",
        script: str | None = None,
        source: str | None = None,
        attempt: int | None = None,
        cause: FailureCause | None = None,
        reason: str | None = None,
        timeout_ms: int | None = None,
    ) -> Tried:
        """Runs a script on a sample of an item.

        hook       `on_enqueue` or `on_failure`
        script     name of a script in the settings, or
        source     a script as text: exactly one of the two
        attempt    of `on_failure`: the attempt that failed, default 1
        cause      of `on_failure`: FAILED (default), EXPIRED or REJECTED
        reason     of `on_failure`: as the consumer gave it

        Raises NotFound: the settings have no such script; Unavailable: the host cannot run scripts.

        >>> client.try_hook(ItemSpec("mail", b"x"), source="function on_enqueue() end").error    # doctest: +SKIP
        """
        if (script is None) == (source is None):
            raise Invalid("script and source: give exactly one of the two")
        request = idl.TryHookRequest(self.namespace, hook, script, source, sample, attempt, cause, reason)
        found = self._requests.read(methods.TRY_HOOK, request, timeout_ms)
        return Tried(
            None if found.item is None else _spec(found.item),
            found.refuse,
            found.action,
            found.delay_ms,
            found.elapsed_us or 0,
            found.memory_bytes or 0,
            found.error,
        )


def _spec(found: Any) -> ItemSpec:
    return ItemSpec(**{one.name: getattr(found, one.name) for one in fields(ItemSpec)})
