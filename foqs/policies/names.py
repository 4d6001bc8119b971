"""What names of topics, fairness keys and throttle keys may be, the same in settings, in items, and between hosts.

A name is a text. The codec hands over a text that is not UTF-8 as bytes, and JSON and the system's environment may have
texts that no UTF-8 says. Each check refuses both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from foqs.bounds import THROTTLE_KEYS, THROTTLE_KEYS_BYTES
from foqs.checks import is_text

NAME_BYTES = 255
NOT_UTF_8 = "the name is not UTF-8"


def name_error(name: object) -> str | None:
    """Return the error of a name that no topic or key may have."""
    if not is_text(name):
        return NOT_UTF_8
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES:
        return f"a name has 1 to {NAME_BYTES} bytes, not {size}"
    if not name.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        return "a name has no control characters"
    return None


def pattern_error(pattern: str) -> str | None:
    """Return the error of a text that is neither a name nor a `prefix*`."""
    return None if pattern == "*" else name_error(pattern.removesuffix("*"))


def throttle_key_error(key: object) -> str | None:
    """Return the error of a value that is no throttle key. A * at the end is for patterns of the settings."""
    return "a throttle key does not end in *" if isinstance(key, str) and key.endswith("*") else name_error(key)


def script_name_error(name: str) -> str | None:
    """Return the error of a text that names no script."""
    return "the name of a script does not end in *" if name.endswith("*") else name_error(name)


def throttles_error(
    keys: Collection[str], most: int = THROTTLE_KEYS, most_bytes: int = THROTTLE_KEYS_BYTES
) -> str | None:
    """Return the error of keys, each valid, that are no throttle set. `most_bytes`: with one byte between two keys."""
    if len(keys) > most:
        return f"there are {len(keys)} keys, more than {most}"
    if len(set(keys)) < len(keys):
        twice, _ = Counter(keys).most_common(1)[0]
        return f"the key {twice!r} stands in it more than once"
    size = len("\0".join(keys).encode())
    if size > most_bytes:
        return f"the keys have {size} bytes with one between two keys, more than {most_bytes}"
    return None
