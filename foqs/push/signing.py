"""Signatures of requests by the specification Standard Webhooks 1.0 (symmetric, `v1`), and the secrets that make them.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from foqs.errors import Invalid
from foqs.push.target import Target

LEAST_BYTES, MOST_BYTES = 24, 64
"""Bytes of a key, as the specification says."""
_PREFIX = "whsec_"
_NAMED = re.compile(r"\{secret:([^{}]*)\}")
_ONE_LINE = re.compile(r"[\t -~]+", re.ASCII)


def key_of(text: str) -> bytes:
    """Return the key that the text of a secret is: base64, with or without `whsec_` before it. Raises Invalid, with no
    part of the text."""
    try:
        key = b64decode(text.strip().removeprefix(_PREFIX), validate=True)
    except ValueError:
        raise Invalid(f"it is not base64, with or without {_PREFIX} before it") from None
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        raise Invalid(f"it has {len(key)} bytes: a key that signs has {LEAST_BYTES} to {MOST_BYTES}")
    return key


def signature(keys: Iterable[bytes], message_id: str, at_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: one signature for each key."""
    signed = b"%s.%d." % (message_id.encode(), at_s) + body
    return " ".join(f"v1,{b64encode(hmac.digest(key, signed, 'sha256')).decode()}" for key in keys)


@dataclass(frozen=True)
class Secrets:
    """Secrets by their names: the texts of their files. A `repr` shows the names alone."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Secrets({sorted(self.texts)})"

    def of(self, target: Target) -> Secrets:
        """Return the secrets that `target` names, as far as there are any."""
        return Secrets({name: self.texts[name] for name in names_of(target) if name in self.texts})

    def keys(self, target: Target) -> list[bytes]:
        """Return the keys that sign the requests of `target`. Raises Invalid."""
        return [self._key(name) for name in target.secrets]

    def filled(self, value: str) -> str:
        """Return the value of a header with its secrets. Raises Invalid."""
        return _NAMED.sub(lambda found: self._text(found[1]), value)

    def check(self, target: Target) -> None:
        """Raises Invalid if a secret of `target` is missing or cannot be used."""
        self.keys(target)
        for value in target.headers.values():
            self.filled(value)

    def _key(self, name: str) -> bytes:
        text = self._text(name)
        try:
            return key_of(text)
        except Invalid as error:
            raise Invalid(f"the secret {name}: {error.message}") from None

    def _text(self, name: str) -> str:
        text = self.texts.get(name)
        if text is None:
            raise Invalid(f"this process has no secret {name}: [push.secrets] lists the files")
        if not _ONE_LINE.fullmatch(text := text.strip()):
            raise Invalid(f"the secret {name} is not one line of printable ASCII characters")
        return text


def names_of(target: Target) -> list[str]:
    """Return the names of all secrets of `target`: first the secrets that sign, then secrets in headers."""
    in_headers = [name for value in target.headers.values() for name in _NAMED.findall(value)]
    return list(dict.fromkeys([*target.secrets, *in_headers]))
