"""The commands that errors name can be pasted into a shell."""

from __future__ import annotations

import shlex

import pytest

from foqs.policies.remedy import throttle_command, topic_command


@pytest.mark.parametrize("ns", ["default", "shop", "my shop", "a'b", "--help"])
@pytest.mark.parametrize("topic", ["mail", "two words", "ma*", "$(rm)"])
def test_names_are_one_word_for_a_shell(ns: str, topic: str) -> None:
    words = shlex.split(topic_command("open", ns, topic))
    assert words == ["foqs", "topic", "open", topic, *([] if ns == "default" else ["--ns", ns])]


def test_a_topic_that_looks_like_an_option_is_none() -> None:
    assert topic_command("open", "default", "-x") == "foqs topic open -- -x"
    assert topic_command("policy", "n", "-x", "max_stored=N") == "foqs topic policy --ns n -- -x max_stored=N"
    assert topic_command("open", "shop", "--help") == "foqs topic open --ns shop -- --help"


def test_a_field_stands_behind_the_topic() -> None:
    assert topic_command("policy", "shop", "mail", "max_stored=N") == "foqs topic policy mail max_stored=N --ns shop"


def test_options_of_a_throttle_stay_options() -> None:
    assert throttle_command("list", "default") == "foqs throttle list"
    assert throttle_command("set", "shop", "a*", "--burst N") == "foqs throttle set 'a*' --burst N --ns shop"
    assert throttle_command("set", "shop", "-x", "--burst N") == "foqs throttle set --burst N --ns shop -- -x"
    assert throttle_command("remove", "default", "-x") == "foqs throttle remove -- -x"
