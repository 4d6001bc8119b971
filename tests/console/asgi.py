"""A browser without a window: it calls the application of a console directly, and keeps its cookies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from html import unescape
from http.cookies import SimpleCookie
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlencode

from foqs.cli.console_process import connector
from foqs.console.app import Console
from foqs.console.clients import Connect
from foqs.console.cluster import ClusterLink
from foqs.console.guard import names_of
from foqs.console.options import Options

T = TypeVar("T")

SAME_SITE = {"sec-fetch-site": "same-origin"}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def said(self) -> str:
        """The texts of the page, without elements, with one space between words."""
        return words(self.text)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the rows of all tables, without the heads."""
        found = re.findall(r"<tr[^>]*>(.*?)</tr>", self.text, re.DOTALL)
        rows = [[words(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)] for row in found]
        return [row for row in rows if row]


def words(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


class Site:
    """A console of the service at `address`, and one user of it. `now_s` is the console's clock."""

    def __init__(
        self, address: str, connect: Connect | None = None, cluster: ClusterLink | None = None, **options: Any
    ) -> None:
        given = {"names": names_of("127.0.0.1", ()), "private": True} | options
        self.now_s = 1_000.0
        self.cookies: dict[str, str] = {}
        self._runner = asyncio.Runner()
        connect = connect or connector(address, None)
        self.console = Console(Options(address, **given), connect, lambda: self.now_s, cluster=cluster)

    def get(self, path: str, headers: Mapping[str, str] = {}) -> Answer:
        return self.ask("GET", path, headers)

    def post(self, path: str, fields: Mapping[str, Any], headers: Mapping[str, str] = SAME_SITE) -> Answer:
        return self.ask("POST", path, headers, urlencode(fields, doseq=True).encode())

    def sign_in(self, token: str) -> Answer:
        return self.post("/login", {"token": token})

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        return self.run(self._ask(method, path, headers, body))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run requests on the loop of the console."""
        return self._runner.run(work)

    def wait(self, holds: Callable[[], bool]) -> None:
        """Let jobs of the console work until the condition holds."""

        async def until() -> None:
            async with asyncio.timeout(60):
                while not holds():  # noqa: ASYNC110 - a job has no event of its steps
                    await asyncio.sleep(0.005)

        self.run(until())

    def close(self) -> None:
        self.run(self.console.close())
        self._runner.close()

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        target, _, query = path.partition("#")[0].partition("?")
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = {"host": "localhost:7780", **({"cookie": cookie} if cookie else {}), **headers}
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(target), "raw_path": target.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", 7780),
        }  # fmt: skip
        messages: list[Any] = []
        parts = [body]

        async def receive() -> Any:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            messages.append(message)

        await self.console.app(scope, receive, send)
        start = messages[0]
        answered = {name.decode(): value.decode() for name, value in start["headers"]}
        for name, value in start["headers"]:
            if name == b"set-cookie":
                self._keep(value.decode())
        text = b"".join(message.get("body", b"") for message in messages[1:]).decode()
        return Answer(start["status"], answered, text)

    def _keep(self, cookie: str) -> None:
        for name, morsel in SimpleCookie(cookie).items():
            self.cookies.pop(name, None)
            if morsel["max-age"] != "0":
                self.cookies[name] = morsel.value
