"""Connections of browsers: their number, and the time that each may take."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from foqs.cli.console_connections import LONGEST_S, Connections, Phase
from tests.support.certificates import Authority

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
FORM = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"
TLS_HELLO = b"\x16\x03\x01\x02\x00"
LONG = dict.fromkeys(Phase, 60.0)
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Open = Callable[..., Awaitable[Pair]]


class App:
    """Reads each request whole, then waits until `may_answer` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = 0
        self.answer = b"ok"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.answer, "more_body": True})
        await send({"type": "http.response.body"})


@asynccontextmanager
async def serving(app: App, connections: Connections) -> AsyncIterator[Open]:
    config = uvicorn.Config(app, ws="none", log_config=None, timeout_keep_alive=60)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: connections.protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    opened: list[asyncio.StreamWriter] = []

    async def begin(source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Pair:
        pair = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), ssl=tls)
        opened.append(pair[1])
        return pair

    async with asyncio.timeout(60):
        yield begin
    for writer in opened:
        writer.close()
    app.may_answer.set()
    server.close()
    while len(connections):  # noqa: ASYNC110 - a connection has no event of its end
        await asyncio.sleep(0.005)


async def ends(pair: Pair) -> bytes:
    """Return the bytes until the end of the connection."""
    got = b""
    try:
        while part := await pair[0].read(1 << 16):
            got += part
    except ConnectionError:
        pass
    return got


async def answered(pair: Pair) -> None:
    pair[1].write(GET)
    await answer_of(pair)


async def answer_of(pair: Pair) -> None:
    assert (await pair[0].readuntil(b"ok\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the console has no event of this
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("phase", "sent"),
    [(Phase.HEAD, b""), (Phase.HEAD, b"GET / HT"), (Phase.REQUEST, FORM), (Phase.IDLE, GET)],
)
def test_a_slow_connection_ends(phase: Phase, sent: bytes) -> None:
    async def work() -> None:
        connections = Connections(longest_s={**LONG, phase: 0.1})
        async with serving(App(), connections) as begin:
            pair = await begin()
            for at in range(len(sent)):
                pair[1].write(sent[at : at + 1])
            assert (await ends(pair)).count(b"200 OK") == sent.count(GET)

    asyncio.run(work())


def test_a_slow_second_request_ends() -> None:
    async def work() -> None:
        async with serving(App(), Connections(longest_s={**LONG, Phase.HEAD: 0.1})) as begin:
            pair = await begin()
            await answered(pair)
            pair[1].write(b"GET")
            assert await ends(pair) == b""

    asyncio.run(work())


def test_bytes_now_and_then_keep_no_connection() -> None:
    async def work() -> None:
        async with serving(App(), Connections(longest_s={**LONG, Phase.REQUEST: 0.2})) as begin:
            pair = await begin()
            pair[1].write(FORM)
            end = asyncio.create_task(ends(pair))
            while not end.done():
                pair[1].write(b"x")
                await asyncio.sleep(0.01)

    asyncio.run(work())


def test_an_answer_that_is_not_read_keeps_no_connection() -> None:
    async def work() -> None:
        app, connections = App(), Connections(longest_s={**LONG, Phase.REQUEST: 0.2})
        app.answer = bytes(64 << 20)
        async with serving(app, connections) as begin:
            pair = await begin()
            pair[1].write(GET)
            await until(lambda: app.asked == 1)
            await until(lambda: not len(connections))

    asyncio.run(work())


def test_one_address_keeps_no_other_one_out() -> None:
    async def work() -> None:
        connections = Connections(most=5)
        async with serving(App(), connections) as begin:
            kept = await begin("127.0.0.2")
            await answered(kept)
            many = [await begin() for _ in range(4)]
            for pair in many:
                await answered(pair)
            further = await begin()
            await answered(further)
            assert await ends(many[0]) == b""
            other = await begin("127.0.0.3")
            assert await ends(many[1]) == b""
            for pair in (kept, many[2], many[3], further, other):
                await answered(pair)
            assert len(connections) == 5

    asyncio.run(work())


def test_a_request_in_progress_keeps_its_place() -> None:
    async def work() -> None:
        app, connections = App(), Connections(most=2)
        app.may_answer.clear()
        async with serving(app, connections) as begin:
            pairs = [await begin() for _ in range(2)]
            for pair in pairs:
                pair[1].write(GET)
            await until(lambda: app.asked == 2)
            assert await ends(await begin("127.0.0.2")) == b""
            app.may_answer.set()
            for pair in pairs:
                await answer_of(pair)

    asyncio.run(work())


def test_a_slow_form_makes_room() -> None:
    async def work() -> None:
        app, connections = App(), Connections(most=2)
        async with serving(app, connections) as begin:
            pairs = [await begin() for _ in range(2)]
            for pair in pairs:
                pair[1].write(FORM)
            await until(lambda: app.asked == 2)
            await answered(await begin("127.0.0.2"))
            assert await ends(pairs[0]) == b""

    asyncio.run(work())


@pytest.mark.parametrize("sent", [b"", TLS_HELLO, GET])
def test_a_handshake_takes_a_place_and_ends(tmp_path: Path, sent: bytes) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.cert_file, pair.key_file)

    async def work() -> None:
        connections = Connections(tls, most=3, longest_s={**LONG, Phase.HEAD: 0.5})
        async with serving(App(), connections) as begin:
            slow = [await begin() for _ in range(3)]
            for one in slow:
                one[1].write(sent)
            secure = await begin("127.0.0.2", authority.client())
            await answered(secure)
            for one in slow:
                await ends(one)
            await answered(secure)
            assert len(connections) == 1

    asyncio.run(work())


def test_slow_requests_end_before_idle_connections() -> None:
    assert LONGEST_S[Phase.HEAD] < LONGEST_S[Phase.REQUEST] <= LONGEST_S[Phase.IDLE]
