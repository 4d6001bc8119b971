"""Requests to real servers on loopback: good ones, and all kinds of bad ones."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from aiohttp import web

from foqs.push.addresses import Allow, Refused
from foqs.push.envelope import Request
from foqs.push.replies import MOST_BODY_BYTES, Reply
from tests.push.conftest import LATER_MS, LOOPBACK, SOON_MS
from tests.support.certificates import Authority
from tests.support.ports import held_port
from tests.support.waiting import wait_until_on_loop

pytestmark = [pytest.mark.anyio, pytest.mark.threads]

HEADERS = {"content-type": "text/plain", "accept-encoding": "identity", "webhook-id": "7"}
PAGE = Path("/proc/self/statm")


def request(url: str, body: bytes = b"payload", method: str = "POST") -> Request:
    return Request(method, url, HEADERS, body)


def resident_mb() -> float:
    return int(PAGE.read_text().split()[1]) * 4096 / 1e6


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(LATER_MS / 1000):
        await event.wait()


async def plain(_: web.Request) -> web.Response:
    return web.Response(text="done")


# --------------------------------------------------------------------------------------------- usual replies


async def test_a_request_and_its_reply(serve: Any, exchange: Any) -> None:
    seen: list[tuple[str, str, bytes, dict[str, str]]] = []

    async def answer(asked: web.Request) -> web.Response:
        seen.append((asked.method, asked.path_qs, await asked.read(), dict(asked.headers)))
        return web.Response(status=201, body=b"result")

    port = await serve(answer)
    url = f"http://127.0.0.1:{port}/in%2Fput?a=1&b=%20"
    assert await exchange(url).send(request(url, method="PUT")) == Reply(201, b"result")
    ((method, path, body, headers),) = seen
    assert (method, path, body) == ("PUT", "/in%2Fput?a=1&b=%20", b"payload")
    assert headers["webhook-id"] == "7"
    assert headers["Accept-Encoding"] == "identity"
    assert "Cookie" not in headers


async def test_an_empty_payload_is_sent(serve: Any, exchange: Any) -> None:
    async def answer(asked: web.Request) -> web.Response:
        return web.Response(text=f"{asked.headers.get('content-length')} {len(await asked.read())}")

    url = f"http://127.0.0.1:{await serve(answer)}/"
    assert await exchange(url).send(request(url, b"")) == Reply(200, b"0 0")


async def test_connections_are_kept(serve: Any, exchange: Any) -> None:
    peers = set()

    async def answer(asked: web.Request) -> web.Response:
        assert asked.transport is not None
        peers.add(asked.transport.get_extra_info("peername"))
        return web.Response(text="x")

    url = f"http://127.0.0.1:{await serve(answer)}/"
    one = exchange(url)
    for _ in range(5):
        await one.send(request(url))
    assert len(peers) == 1


async def test_there_are_never_more_than_concurrency(serve: Any, exchange: Any) -> None:
    at_work = most = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.01)
        at_work -= 1
        return web.Response()

    url = f"http://127.0.0.1:{await serve(answer)}/"
    one = exchange(url, concurrency=3)
    await asyncio.gather(*(one.send(request(url)) for _ in range(20)))
    assert most == 3


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_in_the_reply(serve: Any, exchange: Any, status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Retry-After": "120"})

    url = f"http://127.0.0.1:{await serve(answer)}/"
    assert await exchange(url).send(request(url)) == Reply(status, b"", "120")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(serve: Any, exchange: Any, status: int) -> None:
    paths = []

    async def answer(asked: web.Request) -> web.Response:
        paths.append(asked.path)
        return web.Response(status=status, headers={"Location": "/other", "Refresh": "0; url=/other"})

    url = f"http://127.0.0.1:{await serve(answer)}/first"
    assert (await exchange(url).send(request(url))).status == status
    assert paths == ["/first"]


async def test_cookies_are_forgotten(serve: Any, exchange: Any) -> None:
    async def answer(asked: web.Request) -> web.Response:
        return web.Response(text=asked.headers.get("Cookie", "none"), headers={"Set-Cookie": "a=b"})

    url = f"http://127.0.0.1:{await serve(answer)}/"
    one = exchange(url)
    assert [(await one.send(request(url))).body for _ in range(2)] == [b"none", b"none"]


async def test_proxies_of_the_environment_are_ignored(
    serve: Any, exchange: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxied = []

    async def proxy(asked: web.Request) -> web.Response:
        proxied.append(asked.path)
        return web.Response(text="proxy")

    async def answer(asked: web.Request) -> web.Response:
        return web.Response(text=asked.headers.get("Authorization", "none"))

    at_proxy = f"http://127.0.0.1:{await serve(proxy)}"
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, at_proxy)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login user password word\n")
    monkeypatch.setenv("NETRC", str(netrc))
    url = f"http://127.0.0.1:{await serve(answer)}/"
    assert await exchange(url).send(request(url)) == Reply(200, b"none")
    assert not proxied


# --------------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize(("size", "kept"), [(MOST_BODY_BYTES, True), (MOST_BODY_BYTES + 1, False)])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_is_kept_up_to_its_bound(serve: Any, exchange: Any, size: int, kept: bool, chunked: bool) -> None:
    async def answer(asked: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if chunked:
            response.enable_chunked_encoding()
        else:
            response.content_length = size
        await response.prepare(asked)
        await response.write(b"x" * size)
        await response.write_eof()
        return response

    url = f"http://127.0.0.1:{await serve(answer)}/"
    assert await exchange(url).send(request(url)) == Reply(200, b"x" * size if kept else None)


@pytest.mark.parametrize("length", [None, 1 << 30])
async def test_a_gigabyte_is_not_read(serve: Any, exchange: Any, length: int | None) -> None:
    sent = 0
    closed = asyncio.Event()
    part = bytes(1 << 20)

    async def answer(asked: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        response.content_length = length
        try:
            await response.prepare(asked)
            for _ in range(1 << 10):
                await response.write(part)
                sent += len(part)
        finally:
            closed.set()
        return response

    url = f"http://127.0.0.1:{await serve(answer)}/"
    one = exchange(url)
    before = resident_mb()
    assert await one.send(request(url)) == Reply(200, None)
    await soon(closed)
    assert sent < 32 << 20  # what the buffers of the system hold
    assert resident_mb() - before < 32
    assert (await one.send(request(url))).status == 200, "another connection"


async def test_nothing_is_decompressed(serve: Any, exchange: Any) -> None:
    bomb = gzip.compress(bytes(50 << 20))
    assert len(bomb) < MOST_BODY_BYTES

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    url = f"http://127.0.0.1:{await serve(answer)}/"
    before = resident_mb()
    assert await exchange(url).send(request(url)) == Reply(200, bomb)
    assert resident_mb() - before < 32


async def test_a_reply_may_come_before_the_request_was_read(talk: Any, exchange: Any) -> None:
    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(3600)

    url = f"http://127.0.0.1:{await talk(say)}/"
    assert await exchange(url).send(request(url, bytes(32 << 20))) == Reply(413, b"")


# --------------------------------------------------------------------------------------------- time


async def hang(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def hang_in_header(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-")
    await asyncio.sleep(3600)


async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def only_continue(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("say", [hang, hang_in_header, trickle, only_continue])
async def test_a_whole_exchange_has_a_time(talk: Any, exchange: Any, say: Any) -> None:
    port = await talk(say)
    url = f"http://127.0.0.1:{port}/"
    began = monotonic()
    reply = await exchange(url, timeout_ms=SOON_MS).send(request(url))
    assert reply == Reply(error=f"127.0.0.1:{port}: no whole reply within {SOON_MS} ms")
    assert monotonic() - began < 30


async def test_a_handshake_has_a_time(talk: Any, exchange: Any) -> None:
    url = f"https://127.0.0.1:{await talk(hang)}/"
    assert "no whole reply" in (await exchange(url, timeout_ms=SOON_MS).send(request(url))).error


async def test_a_look_up_has_a_time_and_delays_no_other_one(serve: Any, exchange: Any) -> None:
    end = threading.Event()
    threads = threading.active_count()

    def stuck(_: str) -> list[str]:
        end.wait(60)
        return ["127.0.0.1"]

    port = await serve(plain)
    stuck_urls = [f"http://stuck{n}.test:{port}/" for n in range(50)]
    replies = [
        asyncio.ensure_future(exchange(url, timeout_ms=SOON_MS, lookup=stuck).send(request(url))) for url in stuck_urls
    ]
    url = f"http://good.test:{port}/"
    good = await exchange(url, lookup=lambda _: ["127.0.0.1"]).send(request(url))
    assert good == Reply(200, b"done")
    assert all("no whole reply" in reply.error for reply in await asyncio.gather(*replies))
    end.set()
    await wait_until_on_loop(lambda: threading.active_count() <= threads)


async def test_requests_wait_for_one_look_up(serve: Any, exchange: Any) -> None:
    asked = []

    def lookup(host: str) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    url = f"http://good.test:{await serve(plain)}/"
    one = exchange(url, lookup=lookup, concurrency=20)
    replies = await asyncio.gather(*(one.send(request(url)) for _ in range(20)))
    assert {reply.status for reply in replies} == {200}
    assert asked == ["good.test"]


async def test_a_request_that_is_cancelled_closes_its_connection(talk: Any, exchange: Any) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def say(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"payload")
        began.set()
        assert await reader.read() == b""
        ended.set()

    url = f"http://127.0.0.1:{await talk(say)}/"
    sending = asyncio.ensure_future(exchange(url).send(request(url)))
    await soon(began)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await soon(ended)


# --------------------------------------------------------------------------------------------- broken replies


def saying(*parts: bytes, endless: bytes = b"") -> Callable[..., Any]:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"payload")
        for part in parts:
            writer.write(part)
        while endless:
            writer.write(endless)
            await writer.drain()

    return say


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (saying(), "closed the connection before its reply"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"), "broke off"),
        (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "broke off"),
        (saying(b"SSH-2.0-OpenSSH_9.9\r\n"), "is not HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"), "its header is too long"),
        (saying(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 200 + b"\r\n"), "its header is too long"),
        (saying(b"HTTP/1.1 200 OK\r\n", endless=b"X: " + b"a" * 8_000 + b"\r\n"), "its header is too long"),
        (saying(b"HTTP/1.1 200 OK\r\nX: ", endless=b"a" * 8_000), "its header is too long"),
        (saying(b"HTTP/1.1 200 ", endless=b"a" * 8_000), "its header is too long"),
        (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", endless=b"1" * 8_000), "broke off|not HTTP"),
    ],
    ids=["closed", "short", "chunk", "ssh", "long line", "many", "endless", "endless line", "endless status", "size"],
)
async def test_a_broken_reply_is_an_error(talk: Any, exchange: Any, say: Any, why: str) -> None:
    port = await talk(say)
    url = f"http://127.0.0.1:{port}/secret-path"
    before = resident_mb()
    reply = await exchange(url, timeout_ms=10_000).send(request(url))
    assert reply.status is None
    assert f"127.0.0.1:{port}" in reply.error
    assert any(one in reply.error for one in why.split("|")), reply.error
    assert "secret-path" not in reply.error
    assert resident_mb() - before < 32


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_request_is_sent_once(serve: Any, exchange: Any, method: str) -> None:
    """aiohttp repeats a PUT whose connection was closed, unless it is kept from that."""
    seen = []

    async def answer(asked: web.Request) -> web.Response:
        seen.append(await asked.read())
        if len(seen) > 1:
            assert asked.transport is not None
            asked.transport.abort()
        return web.Response()

    url = f"http://127.0.0.1:{await serve(answer)}/"
    one = exchange(url)
    assert (await one.send(request(url, method=method))).status == 200
    assert "closed the connection before its reply" in (await one.send(request(url, method=method))).error
    assert seen == [b"payload"] * 2


@pytest.mark.filterwarnings("error")
async def test_a_large_body_is_sent_whole(serve: Any, exchange: Any) -> None:
    async def answer(asked: web.Request) -> web.Response:
        body = await asked.read()
        return web.Response(text=f"{len(body)} {asked.content_length} {asked.content_type} {body == large}")

    large = bytes(range(256)) * 20_000
    url = f"http://127.0.0.1:{await serve(answer)}/"
    assert await exchange(url).send(request(url, large)) == Reply(200, b"5120000 5120000 text/plain True")


async def test_a_port_without_a_server(exchange: Any, held: int) -> None:
    url = f"http://127.0.0.1:{held}/"
    reply = await exchange(url).send(request(url))
    assert reply.error.startswith(f"cannot connect to 127.0.0.1:{held}: ")


async def test_a_name_that_is_unknown(exchange: Any) -> None:
    def lookup(_: str) -> list[str]:
        raise OSError(-2, "Name or service not known")

    url = "https://nowhere.test/"
    reply = await exchange(url, lookup=lookup).send(request(url))
    assert reply.error == "nowhere.test does not resolve: Name or service not known"
    reply = await exchange(url, lookup=lambda _: []).send(request(url))
    assert reply.error == "nowhere.test has no address"


async def test_a_name_that_is_none(exchange: Any) -> None:
    url = f"https://{'a' * 70}.test/"
    assert (await exchange(url).send(request(url))).error


# --------------------------------------------------------------------------------------------- addresses


async def test_an_endpoint_is_refused_before_any_request(exchange: Any) -> None:
    for url in ("http://example.org/", "https://127.0.0.1/", "https://2130706433/", "https://[::ffff:127.0.0.1]/"):
        with pytest.raises(Refused):
            exchange(url, allow=Allow())


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("169.254.169.254", "link-local, as are metadata services of clouds"),
        ("127.0.0.1", "a loopback address"),
        ("::1", "a loopback address"),
        ("::ffff:169.254.169.254", "::ffff:a9fe:a9fe (169.254.169.254), which is link-local"),
        ("64:ff9b::a9fe:a9fe", "(169.254.169.254), which is link-local"),
        ("fd00:ec2::254", "private"),
    ],
)
async def test_a_name_of_a_forbidden_address_is_refused(exchange: Any, address: str, why: str) -> None:
    url = "https://forged.test/"
    reply = await exchange(url, allow=Allow(), lookup=lambda _: [address]).send(request(url))
    assert reply.error.startswith("forged.test is at ")
    assert why in reply.error
    assert "[push] allow lists exceptions" in reply.error


async def test_the_system_resolves_localhost_to_loopback(exchange: Any) -> None:
    url = "https://localhost/"
    reply = await exchange(url, allow=Allow()).send(request(url))
    assert "is a loopback address: only global addresses are reached" in reply.error


async def test_an_answer_that_changes_is_checked_each_time(serve: Any, exchange: Any) -> None:
    """Only 127.0.0.2 is allowed. The name is there at the first look-up, and at 127.0.0.1 at each later one."""
    reached = []

    async def answer(asked: web.Request) -> web.Response:
        assert asked.transport is not None
        reached.append(asked.transport.get_extra_info("sockname")[0])
        return web.Response(headers={"Connection": "close"})

    answers = iter(["127.0.0.2"])
    url = f"http://rebound.test:{await serve(answer, '127.0.0.2', '127.0.0.1')}/"

    def lookup(_: str) -> list[str]:
        return [next(answers, "127.0.0.1")]

    allow = Allow.parse(["http://127.0.0.2/32"])
    first = exchange(url, allow=allow, lookup=lookup)
    for _ in range(3):  # each needs a new connection
        assert (await first.send(request(url))).status == 200
    later = await exchange(url, allow=allow, lookup=lookup).send(request(url))
    assert later.error.startswith("rebound.test is at 127.0.0.1, which is a loopback address")
    assert reached == ["127.0.0.2"] * 3


async def test_of_several_addresses_the_allowed_ones_are_used(serve: Any, exchange: Any) -> None:
    reached = []

    async def answer(asked: web.Request) -> web.Response:
        assert asked.transport is not None
        reached.append(asked.transport.get_extra_info("sockname")[0])
        return web.Response(headers={"Connection": "close"})

    url = f"http://many.test:{await serve(answer, '127.0.0.2', '127.0.0.1')}/"
    allow = Allow.parse(["http://127.0.0.2/32"])
    one = exchange(url, allow=allow, lookup=lambda _: ["127.0.0.1", "::1", "127.0.0.2", "127.0.0.3"])
    for _ in range(4):
        assert (await one.send(request(url))).status == 200
    assert reached == ["127.0.0.2"] * 4


# --------------------------------------------------------------------------------------------- TLS


@pytest.fixture
def held(anyio_backend: object) -> Any:
    with held_port() as port:
        yield port.getsockname()[1]


async def test_certificates_are_verified(serve: Any, exchange: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("hooks.test"))
    port = await serve(plain, ssl_context=context)

    async def reply_of(host: str, tls: ssl.SSLContext | None) -> Reply:
        url = f"https://{host}:{port}/"
        made: Reply = await exchange(url, allow=LOOPBACK, lookup=lambda _: ["127.0.0.1"], tls=tls).send(request(url))
        return made

    assert await reply_of("hooks.test", authority.client()) == Reply(200, b"done")
    wrong = await reply_of("other.test", authority.client())
    assert wrong.error.startswith(f"other.test:{port}: its certificate is refused: ")
    assert "certificate is refused" in (await reply_of("hooks.test", None)).error
