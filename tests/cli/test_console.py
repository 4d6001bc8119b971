"""`foqs console` and `foqs dev --console` as commands: their options, errors and ends."""

import signal
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foqs.testing import Server, server
from tests.api.hosts import HostProcess, foqs, until
from tests.support.certificates import Authority

Start = Callable[..., HostProcess]


@pytest.fixture(scope="module")
def service() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[HostProcess] = []

    def start(*args: object, **env: str) -> HostProcess:
        started.append(HostProcess(tmp_path / f"log-{len(started)}", [*map(str, args)], env))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def url_of(process: HostProcess, line: int = 0) -> str:
    until(lambda: len(process.lines) > line or not process.running, "the address of the console")
    assert len(process.lines) > line, process.said()
    return process.lines[line].removeprefix("foqs console on ")


def page(url: str, context: ssl.SSLContext | None = None) -> str:
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:
        return str(answer.read().decode())


def answers(url: str) -> bool:
    try:
        page(url)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_console_serves_until_a_signal(start: Start, service: Server, number: int) -> None:
    console = start("console", "--address", service.address, "--port", "0")
    url = url_of(console)
    assert "<h1>Topics</h1>" in page(f"{url}/topics")
    assert console.stop(number) == 0
    assert console.said() == ""
    assert not answers(url)


def test_a_second_request_behind_a_refused_one_is_not_read(start: Start, service: Server) -> None:
    url = url_of(start("console", "--address", service.address, "--port", "0"))
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(
            b"POST /topics/pause HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 403")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_malformed_requests_write_no_line_to_the_log(start: Start, service: Server) -> None:
    console = start("console", "--address", service.address, "--port", "0")
    port = int(url_of(console).rpartition(":")[2])
    upgrade = b"GET /login HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n"
    for sent, status in ((b"\x16\x03\x01\r\n\r\n", b"400"), (upgrade, b"200")):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(sent)
            assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 " + status)
    assert console.stop() == 0
    assert console.said() == ""


def test_a_console_speaks_https(start: Start, service: Server, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    files = ("--certificate", pair.cert_file, "--key", pair.key_file)
    url = url_of(start("console", "--address", service.address, "--port", "0", *files))
    assert url.startswith("https://")
    assert "<h1>Topics</h1>" in page(f"{url}/topics", authority.client())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--key", "key.pem"], "--key needs --certificate"),
        (["--trace-url", "https://traces"], "--trace-url: give a URL with "),
        (["--trace-url", "javascript:{{trace_id}}"], "--trace-url: give a URL with "),
        (["--certificate", "none.pem"], "--certificate, --key: No such file or directory"),
        (["--auth", "proxy"], "--auth proxy needs --config, a foqs.toml with a section [console]"),
        (["--auth", "proxy", "--config", "{file}"], "--auth proxy: {file} has no section [console]"),
        (["--listen", "192.0.2.1"], "the console cannot listen on 192.0.2.1:0: Cannot assign requested address"),
        (["--listen", "a" * 70], f"cannot listen on {'a' * 70}:0: this is no name of a host"),
        (["--address", "h:0"], "address 'h:0' is not host:port"),
        (["--tls", "sometimes"], "tls: neither `on` nor a list of"),
    ],
)
def test_wrong_options_are_said_in_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    file = tmp_path / "foqs.toml"
    file.write_text("")
    given = [option.format(file=file) for option in options]
    ran = foqs("console", "--port", "0", *given)
    assert ran.returncode != 0
    assert said.format(file=file) in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = foqs("console", "--port", str(port))
    assert ran.returncode == 1
    assert ran.stderr == f"foqs: the console cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_dev_runs_a_console_which_ends_with_it(start: Start, tmp_path: Path, number: int) -> None:
    options = ("--port", "0", "--console", "--console-port", "0", "--data-dir", tmp_path / "data")
    dev = start("dev", *options, FOQS_ADMIN__PORT="0", PYTHONDONTWRITEBYTECODE="1")
    url = url_of(dev, 1)
    assert "HEALTHY" in page(url)
    dev.stop(number)
    until(lambda: not answers(url), "the end of the console")


def test_two_consoles_do_not_share_their_jobs(start: Start, service: Server, tmp_path: Path) -> None:
    """A console that was killed leaves the folder free."""
    options = ("console", "--address", service.address, "--port", "0", "--state-dir", str(tmp_path / "jobs"))
    first = start(*options)
    url_of(first)
    ran = foqs(*options)
    assert (ran.returncode, ran.stdout) == (1, "")
    said = f"--state-dir {tmp_path / 'jobs'}: another `foqs console` runs on this folder (process {first.pid})"
    assert said in ran.stderr
    first.kill()
    assert answers(url_of(start(*options)))
