"""The credential of a client."""

from __future__ import annotations

from pathlib import Path

from foqs.errors import Invalid


def read_token(given: str | None) -> str | None:
    """`given`, or what the file holds where it is `@path`. Raises Invalid, which does not name the token."""
    if given is None or not given.startswith("@"):
        return given
    try:
        token = Path(given[1:]).read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"token: cannot read {given[1:]}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not token:
        raise Invalid(f"token: {given[1:]} is empty")
    return token
