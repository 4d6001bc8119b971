"""The log of settings that say something in vain."""

from __future__ import annotations

from typing import Any

import structlog

from foqs.policies.settings import Settings
from foqs.server.settings import SettingsLog

SELF = {"topic.mail": '{"dead": {"topic": "mail"}}'}
LIVE = {"topic.mail": '{"dead": {"topic": "jobs"}}', "topic.jobs": '{"max_attempts": 3}'}


def lines(*settings: Settings) -> list[Any]:
    log = SettingsLog()
    with structlog.testing.capture_logs() as lines:
        for one in settings:
            log.applied(one)
    return lines


def test_each_fault_is_logged_once() -> None:
    first, second = lines(
        Settings("n", 1), Settings("n", 2, SELF), Settings("n", 3, {**SELF, "a": "1"}), Settings("n", 4, LIVE)
    )
    assert (first["event"], first["log_level"], first["ns"], first["version"], first["of"]) == (
        "settings.in_vain", "warning", "n", 2, len(first["warnings"])
    )  # fmt: skip
    assert first["warnings"][0].startswith("topic.mail: dead.topic is the topic itself")
    assert second["version"] == 4
    assert second["warnings"][0].startswith("topic.jobs: max_attempts 3 (topic.jobs): no effect")


def test_a_line_has_a_bound() -> None:
    many = {f"topic.{n}.dlq": '{"max_attempts": 3}' for n in range(50)}
    (line,) = lines(Settings("n", 1, many))
    assert (len(line["warnings"]), line["of"]) == (10, 50)
    assert len(lines(Settings("n", 1, many), Settings("m", 1, many), Settings("n", 2), Settings("n", 3, many))) == 3
