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
    options = [] if ns == _DEFAULT_NAMESPACE else ["--ns", quote(ns)]
    names = [quote(topic), *([field] if field else [])]
    # Without "--", a topic that begins with "-" would be an option.
    words = [*options, "--", *names] if topic.startswith("-") else [*names, *options]
    return " ".join(["foqs", "topic", action, *words])
