"""A page, and the view of it for one request: with a session, a namespace and a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from foqs.client import AsyncClient
from foqs.console.jobs import Jobs
from foqs.console.requests import target_of
from foqs.console.sessions import DEFAULT_NAMESPACE, Session
from foqs.errors import Forbidden

if TYPE_CHECKING:
    from foqs.console.cluster import ClusterLink

T = TypeVar("T")


class View:
    """One request for a page. `now_ms` is the time of the service's clock; `here` the path and the query of the page,
    which a form that was sent has from the page before it."""

    def __init__(
        self,
        request: Request,
        session: Session,
        now_ms: int,
        *,
        read_only: bool,
        cluster: ClusterLink | None = None,
        client: AsyncClient | None = None,
    ) -> None:
        self._read_only = read_only
        self.cluster = cluster
        self.request = request
        self.session = session
        self.ns = namespace_of(request)
        self.now_ms = now_ms
        self.here = target_of(request)
        self._client = client

    @property
    def client(self) -> AsyncClient:
        assert self._client is not None, "a page about an error asks the service for nothing"
        return self._client

    @property
    def refreshes(self) -> bool:
        """Return True if the page refreshes itself: no user asked."""
        return "hx-request" in self.request.headers

    @property
    def jobs(self) -> Jobs:
        return cast(Jobs, self.request.app.state.jobs)

    def asked(self, name: str) -> str:
        """Return a field of the query without spaces around it, "" without one."""
        return (self.request.query_params.get(name) or "").strip()

    def named(self, name: str) -> str:
        """Return the name in the path, which may have any characters (see `path_of`)."""
        return str(self.request.path_params[name]) or self.request.query_params.get(name, "")

    @property
    def may_operate(self) -> bool:
        """Return True if the page offers changes of the cluster: to a user with the right `admin` in all namespaces,
        where the console was started with the cluster's configuration."""
        return self.cluster is not None and not self._read_only and self.session.info.may("admin")

    @property
    def may_change(self) -> bool:
        """Return True if the page offers changes: to a user with the right `admin`, unless the console only reads."""
        return not self._read_only and self.session.info.may("admin", self.ns)

    async def allowed(self, call: Awaitable[T]) -> T | None:
        """Return the answer of a call, None if the user has no right to it."""
        try:
            return await call
        except Forbidden:
            return None

    def url(self, path: str, **query: object) -> str:
        """Return a link to a path of the console with the namespace and the fields of `query` that are not empty."""
        fields = {"ns": self.ns} if self.ns != DEFAULT_NAMESPACE else {}
        fields |= {name: str(value) for name, value in query.items() if value not in (None, "")}
        if not fields:
            return path
        return f"{path}{'&' if '?' in path else '?'}{urlencode(fields)}"

    def topic_url(self, topic: str) -> str:
        return self.url(path_of("/topics", "topic", topic))


def namespace_of(request: Request) -> str:
    return request.query_params.get("ns") or DEFAULT_NAMESPACE


def path_of(folder: str, field: str, name: str) -> str:
    """Return the path of the page about a name with any characters. Browsers resolve `.` and `..` also where they are
    quoted, so these are in the query.

    >>> path_of("/topics", "topic", "a/b c"), path_of("/topics", "topic", "..")
    ('/topics/a%2Fb%20c', '/topics/?topic=..')
    """
    if name in (".", ".."):
        return f"{folder}/?{urlencode({field: name})}"
    return f"{folder}/{quote(name, safe='')}"


class Page(NamedTuple):
    """`load` returns the values of the template, or a response in place of the page. With a `key`, the page is in the
    navigation, and `g` and the key open it. `home` is the path that another namespace is opened with, by default the
    page's own. `shown` returns whether the navigation has it now."""

    path: str
    title: str
    template: str
    load: Callable[[View], Awaitable[Mapping[str, Any] | Response]]
    key: str = ""
    home: str = ""
    shown: Callable[[View], bool] | None = None
