"""The field `hooks` of a topic's policy: its scripts, and what happens while they fail."""

from __future__ import annotations

import pytest

from foqs.errors import Invalid
from foqs.hooks.protocol import Hook, Script
from foqs.policies.topic_policy import Broken, HooksEntry, check_script

PLAIN = Script("shop", "route", "function on_enqueue() end")
THROTTLING = Script("shop", "limit", "function on_enqueue() return {throttle_keys = {'a'}} end")


def test_scripts_by_hook() -> None:
    entry = HooksEntry(on_enqueue="route", on_failure="retry")
    assert entry.scripts() == [(Hook.ON_ENQUEUE, "route"), (Hook.ON_FAILURE, "retry")]
    assert (entry.script(Hook.ON_ENQUEUE), entry.script(Hook.ON_FAILURE)) == ("route", "retry")
    assert HooksEntry().scripts() == []


@pytest.mark.parametrize(
    ("given", "plain", "throttling"), [(None, False, True), ("refuse", True, True), ("default", False, False)]
)
def test_items_are_refused_that_would_pass_the_throttles(given: Broken | None, plain: bool, throttling: bool) -> None:
    rule = HooksEntry(on_enqueue="route", when_broken=given)
    assert (rule.refuses(PLAIN), rule.refuses(THROTTLING)) == (plain, throttling)


def test_a_source_is_text() -> None:
    check_script("function on_enqueue() end")
    with pytest.raises(Invalid, match="a script is source text, not bytecode"):
        check_script("\x1bLua")
