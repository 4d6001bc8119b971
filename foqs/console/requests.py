"""What a request says: its path, its form, its sender."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

_MOST_FORM_BYTES = 1 << 20


def peer_of(request: Request) -> str:
    return request.client.host if request.client else ""


def refreshes(request: Request) -> bool:
    """Return True if the page refreshes itself: no user asked."""
    return "hx-request" in request.headers


def target_of(request: Request) -> str:
    """Return the path and the query of a request as the browser sent them: with the quotes of names."""
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def page_before(request: Request) -> str:
    """Return the page that a form was on, as the browser says it: "" if it does not."""
    parts = urlsplit(request.headers.get("referer", ""))
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def back_of(form: Mapping[str, str]) -> str:
    """Return the page that a form came from, or goes to when it was sent."""
    return path_within(form.get("back", ""))


def path_within(wanted: str) -> str:
    """Return a path of this console: what a browser would take for another site becomes the first page.

    >>> path_within("/topics?ns=shop"), path_within("//evil.example"), path_within("https://evil.example")
    ('/topics?ns=shop', '/', '/')
    """
    plain = wanted.isprintable() and wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if plain and "\\" not in wanted else "/"


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises HTTPException for one that is too large."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > _MOST_FORM_BYTES:
            raise HTTPException(413, "the form is too large")
    fields: dict[str, str] = {}
    for name, value in parse_qsl(data.decode(errors="replace"), keep_blank_values=True):
        fields[name] = f"{fields[name]}\n{value}" if name in fields else value
    return fields
