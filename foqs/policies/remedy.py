"""The commands that errors and hints name as the way out."""

from __future__ import annotations

from shlex import quote

from foqs.errors import Unavailable

_DEFAULT_NAMESPACE = "default"
_CLOSED_RETRY_MS = 1_000


def topic_command(action: str, ns: str, topic: str, field: str = "") -> str:
    """Return the `foqs topic` command for a topic, quoted for a shell.

    >>> topic_command("resume", "default", "mail")
    'foqs topic resume mail'
    >>> topic_command("policy", "my shop", "mail", "max_stored=N")
    "foqs topic policy mail max_stored=N --ns 'my shop'"
    """
    return _command("topic", action, ns, topic, field)


def closed(ns: str, topic: str) -> Unavailable:
    """Return the error of a topic that takes no items."""
    way_out = topic_command("open", ns, topic)
    return Unavailable(f"the topic {topic} is closed to enqueues until `{way_out}`", _CLOSED_RETRY_MS)


def throttle_command(action: str, ns: str, key: str = "", field: str = "") -> str:
    """Return the `foqs throttle` command for a key, quoted for a shell.

    >>> throttle_command("list", "shop")
    'foqs throttle list --ns shop'
    >>> throttle_command("set", "default", "customer:*", "--per-second N")
    "foqs throttle set 'customer:*' --per-second N"
    """
    return _command("throttle", action, ns, key, field)


def _command(group: str, action: str, ns: str, name: str, field: str) -> str:
    options = [] if ns == _DEFAULT_NAMESPACE else ["--ns", quote(ns)]
    names = [quote(name)] if name else []
    fields = [field] if field else []
    if not name.startswith("-"):
        words = [*names, *fields, *options]
    elif field.startswith("-"):
        words = [*fields, *options, "--", *names]
    else:  # without "--", the name would be an option
        words = [*options, "--", *names, *fields]
    return " ".join(["foqs", group, action, *words])
