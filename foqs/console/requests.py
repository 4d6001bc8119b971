"""What a request says: its path, its form, its sender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakValueDictionary

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

_MOST_FORM_BYTES = 1 << 20
SMALL_FORM_BYTES = 64 << 10
_MOST_LARGE_FORMS = 8
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


class Forms:
    """Receives forms. Of larger ones, all users together have `most_large` in progress, and each principal one: further
    ones wait, and the memory of all has a bound."""

    def __init__(self, most_large: int = _MOST_LARGE_FORMS) -> None:
        self._places = asyncio.Semaphore(most_large)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def form_of(self, request: Request, principal: str, held: AsyncExitStack) -> dict[str, str]:
        """Return the fields of a form. A larger one keeps its place until `held` ends. Raises as `form_of` does."""
        return await form_of(request, _MOST_FORM_BYTES, lambda: held.enter_async_context(self._place(principal)))

    @asynccontextmanager
    async def _place(self, principal: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(principal, asyncio.Lock())
        async with turn, self._places:
            yield


async def form_of(
    request: Request, most_bytes: int, place: Callable[[], Awaitable[None]] | None = None
) -> dict[str, str]:
    """Return the fields of a form. One of more than `SMALL_FORM_BYTES` waits for `place`. Raises HTTPException for a
    form that is too large, too slow or cut off."""
    data = bytearray()
    is_small = True
    try:
        async with asyncio.timeout(_FORM_S):
            async for part in request.stream():
                data += part
                if len(data) > most_bytes:
                    raise HTTPException(413, "the form is too large")
                if is_small and len(data) > SMALL_FORM_BYTES and place is not None:
                    is_small = False
                    await place()
        form = _fields(data) if is_small else await asyncio.to_thread(_fields, data)
    except TimeoutError:
        raise HTTPException(408, "the form took too long") from None
    except ClientDisconnect:
        raise HTTPException(400, "the form is incomplete") from None
    except ValueError:
        raise HTTPException(413, "the form has too many fields") from None
    request.state.form = form
    return form


def _fields(data: bytearray) -> dict[str, str]:
    """Raises ValueError for too many fields."""
    fields: dict[str, list[str]] = {}
    for name, value in parse_qsl(data.decode(errors="replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS):
        fields.setdefault(name, []).append(value)
    return {name: "\n".join(values) for name, values in fields.items()}


async def page_of_form(request: Request) -> str:
    """Return the page that a form was on: also for the answer to a question, whose page has no address of its own. A
    form that was not received yet is, if it is small."""
    form: Mapping[str, str] | None = getattr(request.state, "form", None)
    if form is None:
        form = {}
        with suppress(HTTPException):
            form = await form_of(request, SMALL_FORM_BYTES)
    return back_of(form) if "back" in form else path_within(page_before(request))
