"""Counts of the scripts that this host runs."""

from __future__ import annotations

from collections.abc import Callable

from foqs.hooks.protocol import Kind
from foqs.server.hook_pool import HookPool


def add_hooks(add: Callable[..., None], pool: HookPool) -> None:
    """Call `add` with (name of the metric without foqs_, value, labels ...)."""
    add("hook_calls_total", pool.calls)
    for kind in Kind:
        add("hook_failures_total", pool.failures[kind], kind.value)
    add("hook_kills_total", pool.kills)
    add("hook_queued_calls", pool.queued)
    add("hook_processes", pool.children)
