"""Groups reasons of failures that differ only in what changes from one item to the next."""

from __future__ import annotations

import re
from hashlib import blake2b

_VARIABLE = re.compile(
    r"""(?P<uuid>[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})
      | (?P<quoted>"[^"]*" | (?<!\w)'[^']*' | `[^`]*`)
      | (?P<number>0x[0-9a-f]+ | \b(?=[a-f]*[0-9])[0-9a-f]{6,}\b | [0-9]+)""",
    re.IGNORECASE | re.VERBOSE,
)


def fingerprint(reason: str) -> int:
    """Return 64 bits, signed; 0 for an empty reason."""
    if not reason:
        return 0
    common = _VARIABLE.sub(lambda found: f"<{found.lastgroup}>", reason)
    return int.from_bytes(blake2b(common.encode("utf-8", "surrogatepass"), digest_size=8).digest(), signed=True)
