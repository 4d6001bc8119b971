"""The value of a settings key `push.<name>`: which topic goes to which HTTP endpoint. Hosts keep and check it; the
processes of `foqs push run` act on it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from foqs.bounds import MOST_PORT
from foqs.policies.entries import MOST_PARSED, Entry, checked, name_error, read

URL_BYTES = 2_048
LONGEST_MS = 15 * 60_000
MOST_CONCURRENCY = 1_000
MOST_SECRETS = 2
"""During a rotation a target has two."""
NOT_YOURS = frozenset(
    {
        "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate",
        "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers that belong to a connection, to the framing of a request, or to its addressee."""
SIGNATURE = "webhook-"
_URL = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_VALUE = re.compile(r"[\t -~]*", re.ASCII)
_SECRET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
NAMED_SECRET = re.compile(r"\{secret:([^{}]*)(\}?)")


def push_name_error(name: str) -> str | None:
    """Return the error of a text that names no target."""
    return "the name of a push target does not end in *" if name.endswith("*") else name_error(name)


def secret_name_error(name: str) -> str | None:
    """Return the error of a text that names no secret."""
    if _SECRET.fullmatch(name):
        return None
    return "the name of a secret has 1 to 64 letters, digits, _, . and -, and begins with a letter or a digit"


def url_error(url: str) -> str | None:
    """Return the error of a text that is no URL of an endpoint."""
    if not 1 <= len(url) <= URL_BYTES:
        return f"a URL has 1 to {URL_BYTES} characters, not {len(url)}"
    if not _URL.fullmatch(url):
        return "a URL has ASCII characters alone: write any other character as %XX, and the name of a host as xn--..."
    if "#" in url:
        return "it has a fragment (#...), which no request sends"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "it is no URL: the host or the port is wrong"
    if parts.scheme not in ("http", "https") or not host:
        return "it is no absolute URL that begins with https:// or http://"
    if "@" in parts.netloc:
        return "it has a user or a password: give them in a header, as Basic {secret:NAME}"
    if port is not None and not 1 <= port <= MOST_PORT:
        return f"the port is not from 1 to {MOST_PORT}"
    return None


def _header_error(name: str) -> str | None:
    if not _HEADER.fullmatch(name):
        return "this is no name of a header"
    if name.lower() in NOT_YOURS:
        return "foqs sets this header itself, or leaves it out"
    return "headers of signatures are foqs's own" if name.lower().startswith(SIGNATURE) else None


def _value_error(value: str) -> str | None:
    if not _VALUE.fullmatch(value):
        return "the value of a header has printable ASCII characters alone"
    for found in NAMED_SECRET.finditer(value):
        if not found[2]:
            return "write a secret as {secret:NAME}"
        if (error := secret_name_error(found[1])) is not None:
            return f"{{secret:{found[1]}}}: {error}"
    return None


def _headers_error(headers: dict[str, str]) -> str | None:
    known: dict[str, str] = {}
    for name in headers:
        if (other := known.setdefault(name.lower(), name)) != name:
            return f"{other} and {name} are one header"
    return None


def _secrets_error(names: tuple[str, ...]) -> str | None:
    if len(names) > MOST_SECRETS:
        return f"there are {len(names)} secrets, more than {MOST_SECRETS}"
    return "a secret is listed twice" if len(set(names)) < len(names) else None


class PushEntry(Entry):
    """The value of a settings key `push.<name>`."""

    topic: Annotated[str, checked(name_error)]
    """Items of this topic are sent, one a request."""
    url: Annotated[str, checked(url_error)]
    """The endpoint: an absolute https or http URL."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """The method of the requests."""
    headers: Annotated[
        dict[Annotated[str, checked(_header_error)], Annotated[str, checked(_value_error)]], checked(_headers_error)
    ] = Field(default_factory=dict)
    """Further headers of the requests; a value may have {secret:NAME}."""
    concurrency: Annotated[int, Field(ge=1, le=MOST_CONCURRENCY)] = 10
    """Requests at a time, of each push process."""
    timeout_ms: Annotated[int, Field(ge=100, le=LONGEST_MS)] = 30_000
    """Longest time of a request, from the look-up of the name to the last byte of the reply."""
    secrets: Annotated[
        tuple[Annotated[str, checked(secret_name_error)], ...], Field(strict=False), checked(_secrets_error)
    ] = ()
    """Names of the secrets that sign: none, one, or two during a rotation."""
    envelope: Literal["none", "cloudevents"] = "none"
    """`none`: the body is the payload. `cloudevents`: a CloudEvents 1.0 envelope in JSON."""

    @model_validator(mode="after")
    def _fits(self) -> PushEntry:
        if self.envelope != "none" and "content-type" in map(str.lower, self.headers):
            raise ValueError(f"headers: the envelope {self.envelope} has a content-type of its own")
        return self


@lru_cache(maxsize=MOST_PARSED)
def parse_push(text: str) -> PushEntry:
    """Raises Invalid with every error of the entry, one a line."""
    return read(PushEntry, text, "a push target")
