"""The commands that errors and hints name as the way out."""

from __future__ import annotations

from shlex import quote

_DEFAULT_NAMESPACE = "default"


def topic_command(action: str, ns: str, topic: str, field: str = "") -> str:
    """Return the `foqs topic` command for a topic, quoted for a shell.

    >>> topic_command("resume", "default", "mail")
    'foqs topic resume mail'
    >>> topic_command("policy", "my shop", "mail", "max_stored=N")
    "foqs topic policy mail max_stored=N --ns 'my shop'"
    """
    words = ["foqs", "topic", action, quote(topic), *([field] if field else [])]
    if ns != _DEFAULT_NAMESPACE:
        words += ["--ns", quote(ns)]
    return " ".join(words)
