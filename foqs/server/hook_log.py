"""Writes a log line for calls of scripts that failed."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from foqs.bounds import LogThrottle
from foqs.hooks.protocol import Failed
from foqs.hooks.topic_hooks import TopicHook

log = structlog.get_logger("foqs.host")


class HookLog:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failed = LogThrottle()

    def failed(self, hook: TopicHook, failed: Failed) -> None:
        left_out = self._failed.take(self._now_s())
        if left_out is None:
            return
        log.warning(
            "hook.failed",
            ns=hook.key.ns,
            topic=hook.key.topic,
            hook=hook.key.hook.value,
            script=hook.script.name,
            kind=failed.kind.value,
            reason=failed.text,
            refused=hook.refuses,
            left_out=left_out,
        )
