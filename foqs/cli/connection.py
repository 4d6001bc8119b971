"""The options of the commands that call a host, and how their results are written."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.cli.errors import hint_of
from foqs.errors import FoqsError, Invalid

if TYPE_CHECKING:
    from foqs.client import Client

DEFAULT_ADDRESS = "127.0.0.1:7707"
TIMEOUT_MS = 10_000
WAIT_SERVER_MS = 60_000
BATCH_ITEMS = 500
"""Items of a request."""
_CONNECTION = "Connection"


@dataclass(frozen=True, slots=True)
class Connection:
    """The options of a command that calls a host."""

    address: Annotated[
        str,
        typer.Option(
            envvar="FOQS_ADDRESS",
            rich_help_panel=_CONNECTION,
            help="The command connects to this host:port. Commas separate several.",
        ),
    ] = DEFAULT_ADDRESS
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "--ns",
            "-n",
            rich_help_panel=_CONNECTION,
            help="The command works in this namespace.",
        ),
    ] = "default"
    token: Annotated[
        str | None,
        typer.Option(
            envvar="FOQS_TOKEN",
            rich_help_panel=_CONNECTION,
            help="This credential identifies the caller. @FILE reads it from a file.",
        ),
    ] = None
    tls: Annotated[
        str | None,
        typer.Option(
            envvar="FOQS_CLIENT_TLS",
            metavar="on|KEY=VALUE,...",
            rich_help_panel=_CONNECTION,
            help="The connection uses TLS: `on`, or any of ca_file, cert_file, key_file and server_name.",
        ),
    ] = None
    wait_server: Annotated[
        bool,
        typer.Option(
            "--wait-server",
            rich_help_panel=_CONNECTION,
            help="If the server refuses the connection, or TLS, the command tries again for "
            f"{WAIT_SERVER_MS // 1000} s. Default: it ends at once.",
        ),
    ] = False

    def client(self) -> Client:
        from foqs.client import Client

        # A command makes too few calls to gain from learning which host serves which topic.
        return Client(
            self.address,
            self.namespace,
            token=self.token,
            tls=self.tls,
            timeout_ms=WAIT_SERVER_MS if self.wait_server else TIMEOUT_MS,
            routing=False,
            wait_server=self.wait_server,
            on_retry=_say_retry,
        )

    def client_for_stdin(self) -> Client:
        """Return a client that a server has answered: a command whose server refuses it shall not wait for stdin.
        Raises the error of the first call."""
        client = self.client()
        try:
            client.server_info()
        except BaseException:
            client.close()
            raise
        return client


def server_clock(client: Client) -> Callable[[], int]:
    """Return a function for the time of the server's clock (Unix epoch, milliseconds). The machine's own clock may be
    hours off. The first call asks the server, later calls count from its answer."""

    @cache
    def anchor_ms() -> float:
        return client.server_info().now_ms - monotonic() * 1000

    return lambda: int(anchor_ms() + monotonic() * 1000)


def stdin_lines(what: str, *, raw: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of stdin with their numbers, from 1. On a terminal, ask for `what`. Raises Invalid.

    The mark of UTF-8 that some programs write at the start is left out, unless the lines are `raw` bytes.
    """
    if sys.stdin.isatty():
        print(f"foqs: type {what}, one in each line; Ctrl-D ends them", file=sys.stderr, flush=True)
    try:
        lines = iter(sys.stdin.buffer)
        first = [next(lines, b"")]
        yield from enumerate(chain(first if raw else [first[0].removeprefix(BOM_UTF8)], lines), 1)
    except OSError as error:
        raise Invalid(f"cannot read stdin: {error.strerror or error}") from None


def _say_retry(error: FoqsError, left_s: float) -> None:
    said = f"{error.message}; retrying for up to {left_s:.0f} s{hint_of(error, waits=True)}"
    print(f"foqs: {said}", file=sys.stderr, flush=True)
