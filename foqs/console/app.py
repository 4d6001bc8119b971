"""The console as an ASGI application: its pages and changes, and the words for errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import sha256
from time import time
from typing import TYPE_CHECKING, Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foqs.bounds import LogThrottle
from foqs.client import AsyncClient
from foqs.console import guard
from foqs.console.action import Action, Done, Form, is_answered
from foqs.console.clients import Connect
from foqs.console.drawing import block, static, templates
from foqs.console.jobs import Jobs
from foqs.console.options import Options
from foqs.console.pages import (
    batch,
    bulk_changes,
    changes,
    consumers,
    dead,
    hooks,
    hosts,
    item,
    item_changes,
    items,
    jobs,
    order_key,
    overview,
    push,
    schedules,
    settings,
    throttles,
    topics,
)
from foqs.console.requests import Forms, back_of, page_before, page_of_form, path_within, refreshes, target_of
from foqs.console.sessions import Session, Sessions
from foqs.console.sign_in import SignIn
from foqs.console.view import Page, View, namespace_of
from foqs.errors import (
    Conflict,
    FoqsError,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    Unauthenticated,
)

if TYPE_CHECKING:
    from foqs.console.cluster import ClusterLink

log = structlog.get_logger("foqs.console")

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    topics.PAGE,
    topics.ONE,
    items.PAGE,
    item.PAGE,
    batch.PAGE,
    order_key.PAGE,
    dead.PAGE,
    schedules.PAGE,
    schedules.ONE,
    push.PAGE,
    push.ONE,
    throttles.PAGE,
    consumers.PAGE,
    hooks.PAGE,
    hooks.ONE,
    *settings.PAGES,
    *hosts.PAGES,
    *changes.PAGES,
    jobs.PAGE,
)
"""In the order of the navigation."""
ACTIONS: tuple[Action, ...] = (
    *topics.ACTIONS,
    *item_changes.ACTIONS,
    *batch.ACTIONS,
    *bulk_changes.ACTIONS,
    *dead.ACTIONS,
    *schedules.ACTIONS,
    *throttles.ACTIONS,
    *consumers.ACTIONS,
    *hooks.ACTIONS,
    *settings.ACTIONS,
    *hosts.ACTIONS,
    *changes.ACTIONS,
    *jobs.ACTIONS,
)
MOST_NOTICES = 20
"""Outcomes of a session that no page has shown yet."""
STEPS = {**dead.STEPS, **bulk_changes.STEPS}
"""By kind of a job."""
_STATUS: list[tuple[type[FoqsError], int, str]] = [
    (Unauthenticated, 401, "Sign in again"),
    (Forbidden, 403, "Not allowed"),
    (NotFound, 404, "Not found"),
    (Conflict, 409, "Changed by another request"),
    (Invalid, 400, "Not understood"),
    (Overloaded, 503, "The service is busy"),
    (FoqsError, 503, "The service does not answer"),
]
"""The status and the title of a page about an error, by the first type that fits."""


def _now_ms() -> int:
    return int(time() * 1000)


class Console:
    """The state of a console, and its application `app`. `now_s` is monotonic, `now_ms` is Unix epoch time. `cluster`:
    the facts of ZooKeeper, for the page of the hosts."""

    def __init__(
        self,
        options: Options,
        connect: Connect,
        now_s: Callable[[], float],
        now_ms: Callable[[], int] = _now_ms,
        cluster: ClusterLink | None = None,
    ) -> None:
        self._options = options
        self._now_s = now_s
        self._cluster = cluster
        self.sessions = Sessions(connect, options.idle_s)
        self.jobs = Jobs(STEPS, lambda one: self.sessions.lasts(one, now_s()), now_ms, now_s, options.state_dir)
        self._refusals = LogThrottle()
        self._forms = Forms()
        self._templates = templates()
        self._templates.globals |= {"pages": [page for page in PAGES if page.key], "options": options}
        self._sign_in = SignIn(options, self.sessions, self._draw, now_s)
        routes = [
            Route("/static/{name}", static),
            Route("/login", self._sign_in.login, methods=["GET", "POST"]),
            Route("/logout", self._sign_in.logout, methods=["POST"]),
            *(Route(action.path, partial(self._act, action), methods=["POST"]) for action in ACTIONS),
            *(Route(page.path, partial(self._serve, page)) for page in PAGES),
        ]
        self._starlette = Starlette(
            routes=routes, exception_handlers={HTTPException: self._no_page}, lifespan=self._life
        )
        self._starlette.router.redirect_slashes = False  # it would send browsers to an absolute URL
        self._starlette.state.jobs = self.jobs
        self.app: ASGIApp = self._guarded

    @asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.close()

    async def close(self) -> None:
        await self.jobs.close()
        await self.sessions.close()
        if self._cluster is not None:
            await self._cluster.close()

    # ------------------------------------------------------------------------------------- each request

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._starlette(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                added = {**guard.HEADERS, "Cache-Control": "no-store"}
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in added.items()
                      if name.lower().encode() not in known),
                ]  # fmt: skip
            await send(message)

        request = Request(scope, receive)
        try:
            guard.check(request.method, request.headers, self._options.names, read_only=self._reads_only(request))
        except Forbidden as error:
            left_out = self._refusals.take(self._now_s())
            if left_out is not None:
                log.warning("console.refused", why=error.message, path=scope["path"][:200], left_out=left_out)
            response = self._error(request, error, None)
            response.headers["Connection"] = "close"  # the rest of the connection is no request
            await response(scope, receive, sent)
            return
        await self._starlette(scope, receive, sent)

    def _reads_only(self, request: Request) -> bool:
        return self._options.read_only and request.scope["path"] not in ("/login", "/logout")

    async def _serve(self, page: Page, request: Request) -> Response:
        async def load(view: View, _: Form) -> Response:
            if "ns" not in request.query_params and view.session.home != view.ns:
                return RedirectResponse(view.url(view.here, ns=view.session.home), 303)
            found = await page.load(view)
            return found if isinstance(found, Response) else self._page(page, view, found)

        return await self._for_user(request, load, page)

    async def _act(self, action: Action, request: Request) -> Response:
        async def act(view: View, form: Form) -> Response:
            question = None if action.ask is None else await action.ask(view, form)
            if question is not None and not is_answered(question, form):
                fields = {name: value for name, value in form.items() if name not in ("typed", "confirmed")}
                values = {
                    "question": question,
                    "fields": fields,
                    "action": view.url(action.path),
                    "back": back_of(form),
                }
                return HTMLResponse(self._draw("confirm.html", {**_values(view, None), **values}))
            done = await action.run(view, form)
            if not isinstance(done, Done):
                assert action.page is not None, "an action that returns values names their page"
                view.here = back_of(form) if "back" in form else view.here
                return self._page(action.page, view, done, done.get("status", 400))
            view.session.notices = [
                *view.session.notices[1 - MOST_NOTICES :],
                ("ok" if done.well else "warn", done.text, done.links),
            ]
            said = " ".join([done.text, *(words for words, _ in done.links)])
            log.info("console.changed", who=view.session.principal, ns=view.ns, action=action.path, said=said)
            return RedirectResponse(done.to or back_of(form), 303)

        return await self._for_user(request, act)

    async def _for_user(
        self, request: Request, do: Callable[[View, Form], Awaitable[Response]], page: Page | None = None
    ) -> Response:
        """Return what `do` returns, or the page about its error; without a session, the way to sign in."""
        session = None
        try:
            session = await self._sign_in.session_of(request)
            if session is None:
                return await self._sign_in.to_login(request)
            async with AsyncExitStack() as held:
                form = {}
                if request.method not in guard.SAFE:
                    form = await self._forms.form_of(request, session.principal, held)
                client = await held.enter_async_context(session.use(namespace_of(request)))
                info = session.info = await client.server_info()
                return await do(self._view(request, session, info.now_ms, client), form)
        except Unauthenticated as error:
            if self._options.proxy is not None:
                return self._error(request, error, None)
            response = await self._sign_in.to_login(request, "ended")
            await self._sign_in.end(request)
            return response
        except FoqsError as error:
            again = "" if request.method in guard.SAFE else await page_of_form(request)
            return self._error(request, error, session, page, again)

    def _view(self, request: Request, session: Session, now_ms: int, client: AsyncClient | None = None) -> View:
        return View(request, session, now_ms, read_only=self._options.read_only, cluster=self._cluster, client=client)

    def _draw(self, template: str, values: Mapping[str, Any]) -> str:
        return str(self._templates.get_template(template).render(values))

    def _page(self, page: Page, view: View, found: Mapping[str, Any], status: int = 200) -> Response:
        template = self._templates.get_template(page.template)
        values = {**_values(view, page), **found}
        live = block(template, "live", values)
        etag = f'"{sha256(live.encode()).hexdigest()[:24]}"'
        if refreshes(view.request):
            if view.request.headers.get("if-none-match") == etag:
                return Response(status_code=304, headers={"ETag": etag})
            text = self._draw("live.html", {**values, "live": live, "etag": etag})
        else:
            values["notices"], view.session.notices = view.session.notices, []
            text = self._draw(page.template, {**values, "live": live, "etag": etag})
        return HTMLResponse(text, status, headers={"ETag": etag})

    def _error(
        self, request: Request, error: FoqsError, session: Session | None, page: Page | None = None, again: str = ""
    ) -> Response:
        """`again`: the page to which a link leads, if it is known."""
        status, title = next((status, title) for kind, status, title in _STATUS if isinstance(error, kind))
        is_form = request.method not in guard.SAFE
        again = again or path_within(page_before(request) if is_form else target_of(request))
        # What the user entered is not lost with the service, if that has changed nothing.
        form = getattr(request.state, "form", None) if status == 503 and error.outcome_known else None
        values = {"title": title, "error": error, "session": session, "page": page, "view": None, "ns": "",
                  "is_form": is_form, "again": again, "form": form, "here": target_of(request)}  # fmt: skip
        if session is not None:
            view = self._view(request, session, session.info.now_ms)
            values |= {"view": view, "ns": view.ns}
        return HTMLResponse(self._draw("error.html", values), status)

    async def _no_page(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code not in (404, 405):
            return Response(error.detail, error.status_code, headers=error.headers)
        session = self._sign_in.known(request, used=False)
        return self._error(request, NotFound("the console has no such page"), session)


def _values(view: View, page: Page | None) -> dict[str, Any]:
    """Return the values of all templates."""
    return {"page": page, "view": view, "ns": view.ns, "now_ms": view.now_ms, "session": view.session}
