"""What a request says: its path, its form, its sender."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

_MOST_FORM_BYTES = 1 << 20
_MOST_FIELDS = 5_000
_FORM_S = 30.0
"""A form has to arrive in this time."""


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
    try:
        parts = urlsplit(request.headers.get("referer", ""))
    except ValueError:
        return ""
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


async def form_of(request: Request, most_bytes: int = _MOST_FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form, which may be asked for again. Raises HTTPException for one that is too large, too
    slow or cut off."""
    known: dict[str, str] | None = getattr(request.state, "form", None)
    if known is not None:
        return known
    data = bytearray()
    try:
        async with asyncio.timeout(_FORM_S):
            async for part in request.stream():
                data += part
                if len(data) > most_bytes:
                    raise HTTPException(413, "the form is too large")
        given = parse_qsl(data.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except TimeoutError:
        raise HTTPException(408, "the form took too long") from None
    except ClientDisconnect:
        raise HTTPException(400, "the form is incomplete") from None
    except ValueError:
        raise HTTPException(413, "the form has too many fields") from None
    fields: dict[str, list[str]] = {}
    for name, value in given:
        fields.setdefault(name, []).append(value)
    form = request.state.form = {name: "\n".join(values) for name, values in fields.items()}
    return form


async def page_of_form(request: Request, most_bytes: int = _MOST_FORM_BYTES) -> str:
    """Return the page that a form was on: also for the answer to a question, whose page has no address of its own."""
    with suppress(HTTPException):
        form = await form_of(request, most_bytes)
        if "back" in form:
            return back_of(form)
    return path_within(page_before(request))
