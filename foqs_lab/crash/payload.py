"""Payloads with a key, a filler and a checksum, so that a change of one is detected."""

from __future__ import annotations

import zlib


def pack(key: str, filler_bytes: int) -> bytes:
    body = key.encode() + b"\0" + b"." * filler_bytes
    return zlib.crc32(body).to_bytes(4, "big") + body


def key_of(payload: bytes) -> str:
    """Raises ValueError for a payload that `pack` did not make."""
    checksum, body = payload[:4], payload[4:]
    if int.from_bytes(checksum, "big") != zlib.crc32(body):
        raise ValueError(f"a payload was altered: {payload[:60]!r}")
    return body.partition(b"\0")[0].decode()
