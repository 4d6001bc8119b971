"""The way into the console: by a token, by a proxy in front, or, on this machine, by an open service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any
from urllib.parse import urlencode

import structlog
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from foqs.bounds import LogThrottle, RateLimit
from foqs.console.guard import HTTPS, SAFE, host_name, source_of
from foqs.console.options import Options
from foqs.console.requests import form_of, page_of_form, path_within, peer_of, refreshes, target_of
from foqs.console.sessions import ID_LETTERS, Session, Sessions
from foqs.errors import FoqsError, Forbidden, Invalid, Unauthenticated

log = structlog.get_logger("foqs.console")

COOKIE = "foqs-console"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""With HTTPS. Browsers take a cookie with this prefix from the console's own name only, and not from another name of
the same domain, which could sign a user in to its own session."""
_SIGN_INS_A_SECOND = 5
_ASK_AGAIN_S = 10.0
"""After this time the console asks again if the service answers without a token."""
_MOST_FORM_BYTES = 16 << 10
_WHY = {
    "idle": "Your session has ended.",
    "ended": "Your session has ended: the service refuses its token.",
    "form": "Sign in first.",
}
"""By the field `why` of the query: what the page for signing in says first."""
_FORM = " The form that you sent was not carried out: repeat it on its page."
_OPEN = "open"
"""In place of a session's id, which is longer, where no user signs in."""


class SignIn:
    """`draw` returns the text of a template with its values. `now_s` is monotonic."""

    def __init__(
        self,
        options: Options,
        sessions: Sessions,
        draw: Callable[[str, Mapping[str, Any]], str],
        now_s: Callable[[], float],
    ) -> None:
        self._options = options
        self._sessions = sessions
        self._draw = draw
        self._now_s = now_s
        self._sign_ins = RateLimit(_SIGN_INS_A_SECOND)
        self._refusals = LogThrottle()
        self._asked_s = -inf
        self._knows_no_tokens = False

    async def session_of(self, request: Request) -> Session | None:
        """Return the session of a request, None if its user has to sign in. Where the service asks for no token and
        only this machine reaches the console, there is one session for all."""
        used = not refreshes(request)
        if self._options.proxy is not None:
            user, token = self._options.proxy.user_of(
                peer_of(request), request.headers.getlist(self._options.proxy.header)
            )
            found = self._sessions.find(f"user {user}", self._now_s(), used=used)
            return found or (await self._sessions.begin(token, self._now_s(), f"user {user}"))[1]
        found = self.known(request, used=used)
        if found is not None or not self._options.may_be_open:
            return found
        # Where other machines reach the console, `_open` only looks, and ends the session: no request may find it.
        found = self._sessions.find(_OPEN, self._now_s(), used=used) if self._options.private else None
        if found is None and self._now_s() >= self._asked_s + _ASK_AGAIN_S:
            found = await self._open()
        if found is None and self._knows_no_tokens:
            raise Forbidden(
                "the service answers without a token, and this console is reached from other machines: turn on [auth] "
                "of the service, or let the console listen on 127.0.0.1"
            )
        return found

    async def _open(self) -> Session | None:
        """Return the session of all users, None if there may be none. Anyone can make the console ask the service for
        it, so the answer holds for a while."""
        try:
            _, session = await self._sessions.begin(None, self._now_s(), _OPEN)
        except Unauthenticated:
            is_open = False
        else:
            is_open = session.info.rights is None
            if is_open and self._options.private:
                return session
            await self._sessions.end(_OPEN)
        self._asked_s, self._knows_no_tokens = self._now_s(), is_open
        return None

    def known(self, request: Request, *, used: bool) -> Session | None:
        return self._sessions.find(self._session_id_of(request), self._now_s(), used=used)

    async def end(self, request: Request) -> None:
        """End the session of a request."""
        await self._sessions.end(self._session_id_of(request))

    async def login(self, request: Request) -> Response:
        if self._options.proxy is not None:
            return RedirectResponse("/", 303)
        form, waits = {}, False
        if request.method == "POST":
            waits = bool(self._sign_ins.wait_ms(source_of(peer_of(request)), self._now_s()))
            form = {} if waits else await form_of(request, _MOST_FORM_BYTES)
        after = path_within(form.get("next") or request.query_params.get("next", ""))
        said, status = _WHY.get(request.query_params.get("why", ""), ""), 200
        if said and request.query_params.get("form"):
            said += _FORM
        if request.method == "POST":
            said, status = "Too many tries: wait a second, then try again.", 429
            if not waits:
                try:
                    return await self._signed_in(form.get("token", "").strip(), after, request)
                except (Unauthenticated, Invalid):  # the service takes no token of this length
                    said, status = "The service does not know this token.", 401
                    left_out = self._refusals.take(self._now_s())
                    if left_out is not None:
                        log.warning("console.sign_in_refused", address=peer_of(request), left_out=left_out)
                except FoqsError as error:
                    said, status = f"The service does not answer: {error.message}", 503
        values = {"said": said, "next": after, "session": None, "ns": "", "view": None, "page": None}
        return HTMLResponse(self._draw("login.html", values), status)

    async def _signed_in(self, token: str, after: str, request: Request) -> Response:
        """Begin a session in place of that of the request. Raises Unauthenticated, and what the call raises."""
        if not token or token.startswith("@"):  # the client would read the file of that name
            raise Unauthenticated("no token")
        session_id, session = await self._sessions.begin(token, self._now_s())
        if session.info.rights is None and not self._options.private:
            await self._sessions.end(session_id)
            raise Unauthenticated("the service knows no tokens")
        await self.end(request)
        log.info("console.signed_in", who=session.principal)
        response = RedirectResponse(after, 303)
        self._set_cookie(request, response, session_id)
        return response

    async def logout(self, request: Request) -> Response:
        await self.end(request)
        response = RedirectResponse("/login", 303)
        self._set_cookie(request, response, "", 0)
        return response

    async def to_login(self, request: Request, why: str = "") -> Response:
        """Lead a user without a session to the page for signing in, and from there back."""
        if refreshes(request):
            return Response(status_code=401)
        is_form = request.method not in SAFE
        after = await page_of_form(request) if is_form else target_of(request)
        why = why or ("idle" if self._session_id_of(request) else "form" if is_form else "")
        fields = {"next": "" if after == "/" else after, "why": why, "form": "1" if is_form else ""}
        given = {name: value for name, value in fields.items() if value}
        return RedirectResponse(f"/login?{urlencode(given)}" if given else "/login", 303)

    def _is_secure(self, request: Request) -> bool:
        """Return True if the browser called the console by a name with HTTPS."""
        return self._options.names[host_name(request.headers["host"])] == HTTPS

    def _set_cookie(self, request: Request, response: Response, session_id: str, max_age_s: int | None = None) -> None:
        secure = self._is_secure(request)
        name = SECURE_COOKIE if secure else COOKIE
        response.set_cookie(
            name, session_id, max_age=max_age_s, path="/", httponly=True, samesite="strict", secure=secure
        )

    def _session_id_of(self, request: Request) -> str:
        """Return the id in the cookie, "" without one. Sessions that no cookie names have shorter or longer ids."""
        session_id = request.cookies.get(SECURE_COOKIE if self._is_secure(request) else COOKIE, "")
        return session_id if len(session_id) == ID_LETTERS and " " not in session_id else ""
