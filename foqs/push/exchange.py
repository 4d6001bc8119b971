"""One request and its reply, by aiohttp. Whatever an endpoint does, it takes no more time and memory than is set."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from ipaddress import ip_address
from ssl import SSLContext

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from foqs.push.addresses import Allow, Endpoint, Refused, endpoint_of
from foqs.push.envelope import Request
from foqs.push.replies import MOST_BODY_BYTES, Reply
from foqs.push.target import Target
from foqs.travel import bare

KEEP_ALIVE_S = 4.0
"""An idle connection is closed after this time. Usual servers wait longer (5 s and more), and a request on a connection
that the server closes at this moment fails."""
_READ_BYTES = 16_384
_LINE_BYTES = 8_190
_MOST_HEADERS = 100

Lookup = Callable[[str], Sequence[str]]
"""From the name of a host to its addresses. It may block, and raises OSError."""


def look_up(host: str) -> list[str]:
    """Ask the system for the addresses of a host."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Exchange:
    """Sends requests to the endpoint of one target, over connections of its own: at most `concurrency`. It belongs to
    the event loop in which it is made. Raises Refused for a URL that may not be reached.

    lookup  resolves names, in a thread of its own: a look-up that hangs delays no other target
    tls     default: the authorities that the system trusts
    """

    def __init__(
        self, target: Target, allow: Allow, *, lookup: Lookup = look_up, tls: SSLContext | None = None
    ) -> None:
        self.endpoint = endpoint_of(target.url)
        allow.check(self.endpoint)
        self._timeout_ms = target.timeout_ms
        connector = aiohttp.TCPConnector(
            limit=target.concurrency,
            resolver=_Checked(self.endpoint, allow, lookup),
            keepalive_timeout=KEEP_ALIVE_S,
            ssl=tls or True,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            auto_decompress=False,
            trust_env=False,  # no proxy of the environment, and no ~/.netrc
            read_bufsize=_READ_BYTES,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            max_headers=_MOST_HEADERS,
            middlewares=(_once,),
        )

    async def send(self, request: Request) -> Reply:
        """Send a request, and return the reply, or why there is none. Never more than `timeout_ms`."""
        scope = asyncio.timeout(self._timeout_ms / 1000)
        try:
            async with scope:
                return await self._send(request)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            if scope.expired():
                return Reply(error=f"{self.endpoint}: no whole reply within {self._timeout_ms} ms")
            return Reply(error=_why(self.endpoint, error))

    async def close(self) -> None:
        """Close the connections: requests that wait for a reply fail."""
        await self._session.close()

    async def _send(self, request: Request) -> Reply:
        async with self._session.request(
            request.method,
            URL(request.url),
            headers=request.headers,
            data=BytesIO(request.body),  # of bytes, aiohttp copies large ones at once, and warns
            allow_redirects=False,
        ) as response:
            return Reply(response.status, await _body(response), response.headers.get("retry-after"))


async def _once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a PUT again after a connection was lost: an attempt of an item is one request."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # nothing was sent, and it is not repeated
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Lost from error


class _Lost(aiohttp.ClientError):
    """The connection was lost, as the cause says."""


async def _body(response: aiohttp.ClientResponse) -> bytes | None:
    """Return the body; None if it is too long to be kept. Then aiohttp closes the connection, as its rest comes."""
    parts, left = [], MOST_BODY_BYTES
    while part := await response.content.read(left + 1):
        if len(part) > left:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class _Checked(AbstractResolver):
    """Resolves a name, and hands on the addresses that may be reached. The connection uses these."""

    def __init__(self, endpoint: Endpoint, allow: Allow, lookup: Lookup) -> None:
        self._endpoint = endpoint
        self._allow = allow
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = [ip_address(one) for one in await _in_thread(self._lookup, host)]
        good, why = [], ""
        for address in found:
            try:
                self._allow.check_address(self._endpoint, address)
            except Refused as error:
                why = why or error.message
            else:
                good.append(address)
        if not good:
            raise _NoAddress(why or f"{host} has no address")
        return [
            ResolveResult(
                hostname=host, host=str(address), port=port, proto=0, flags=socket.AI_NUMERICHOST,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
            )
            for address in good
        ]  # fmt: skip

    async def close(self) -> None:
        """There is nothing to close."""


class _NoAddress(OSError):
    """A name without an address that may be reached."""


async def _in_thread(lookup: Lookup, host: str) -> Sequence[str]:
    """Call `lookup` in a thread that the end of the process does not wait for. One is at work at a time: aiohttp has
    requests for one name wait for one look-up."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()

    def end(addresses: Sequence[str], error: Exception | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def work() -> None:
        addresses: Sequence[str] = ()
        failed: Exception | None = None
        try:
            addresses = lookup(host)
        except UnicodeError:  # of a label that is too long
            failed = _NoAddress(f"{host} is not the name of a host")
        except Exception as error:  # noqa: BLE001 - it is raised where the request waits
            failed = bare(error)
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(end, addresses, failed)

    threading.Thread(target=work, name="foqs-push-lookup", daemon=True).start()
    return await found


_WHY: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ClientConnectorDNSError, "{host} does not resolve: {said}"),
    (aiohttp.ClientConnectorCertificateError, "{endpoint}: its certificate is refused: {said}"),
    (aiohttp.ClientConnectorError, "cannot connect to {endpoint}: {said}"),
    (aiohttp.ServerDisconnectedError, "{endpoint} closed the connection before its reply"),
    (aiohttp.ClientPayloadError, "the reply of {endpoint} broke off"),
    (aiohttp.ClientResponseError, "the reply of {endpoint} is not HTTP, or its header is too long"),
    (OSError, "the connection to {endpoint} failed: {said}"),
    (Exception, "the request to {endpoint} failed: {said}"),
)
"""The first that fits counts. No text has bytes of the peer, or the path of the URL."""


def _why(endpoint: Endpoint, error: Exception) -> str:
    if isinstance(error.__cause__, _NoAddress):
        return str(error.__cause__)
    if isinstance(error, _Lost) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    below = getattr(error, "certificate_error", getattr(error, "os_error", error))
    said = getattr(below, "verify_message", None) or getattr(below, "strerror", None) or type(below).__name__
    text = next(text for kind, text in _WHY if isinstance(error, kind))
    return text.format(endpoint=endpoint, host=endpoint.host, said=said)
