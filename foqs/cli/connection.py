"""What the commands that call a host share: the options of the connection, and the items and topics that they name.

Each line of stdin has an outcome of its own, and a wrong line stops no other one. A topic without items and settings
does not exist: without a word about it, a wrong name would look like an empty topic.
"""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from foqs.bounds import DEFAULT_ADDRESS
from foqs.checks import counted, part_of
from foqs.checks import printable as name
from foqs.cli.terminal import fail, hint_of, say, say_done
from foqs.errors import FoqsError, Invalid
from foqs.travel import bare

if TYPE_CHECKING:
    from foqs.client import Client

T = TypeVar("T", bound=Hashable)

TIMEOUT_MS = 10_000
WAIT_SERVER_MS = 60_000
BATCH_ITEMS = 500
"""Items of a request."""
_MOST_KNOWN = 100_000
"""A line that repeats another one gets the same outcome if no more lines are between them."""
_LOOKED_AT = 10_000
"""Topics among which a similar name is looked for."""
_LOOK_MS = 2_000
CONNECTION = "Connection"
"""The heading of its options in the help."""

Address = Annotated[
    str,
    typer.Option(
        envvar="FOQS_ADDRESS",
        rich_help_panel=CONNECTION,
        help="The command connects to this host:port. Commas separate several.",
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        envvar="FOQS_TOKEN",
        rich_help_panel=CONNECTION,
        help="This credential identifies the caller. @FILE reads it from a file.",
    ),
]
TlsOption = Annotated[
    str | None,
    typer.Option(
        envvar="FOQS_CLIENT_TLS",
        metavar="on|KEY=VALUE,...",
        rich_help_panel=CONNECTION,
        help="The connection uses TLS: `on`, or any of ca_file, cert_file, key_file and server_name.",
    ),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """The options of a command that calls a host."""

    address: Address = DEFAULT_ADDRESS
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "--ns",
            "-n",
            envvar="FOQS_NAMESPACE",
            rich_help_panel=CONNECTION,
            help="The command works in this namespace.",
        ),
    ] = "default"
    token: TokenOption = None
    tls: TlsOption = None
    wait_server: Annotated[
        bool,
        typer.Option(
            "--wait-server",
            rich_help_panel=CONNECTION,
            help="If the server refuses the connection, or TLS, the command tries again for "
            f"{WAIT_SERVER_MS // 1000} s. Default: it ends at once.",
        ),
    ] = False

    def topic(self, topic: str) -> str:
        """Return the name of a topic and its namespace, as a sentence names it."""
        return f"topic {name(topic)} in namespace {name(self.namespace)}"

    def client(self, *, routing: bool = False) -> Client:
        """Return a client. Most commands make too few calls to gain from learning which host serves which topic."""
        from foqs.client import Client

        return Client(
            self.address,
            self.namespace,
            token=self.token,
            tls=self.tls,
            timeout_ms=WAIT_SERVER_MS if self.wait_server else TIMEOUT_MS,
            routing=routing,
            wait_server=self.wait_server,
            program="foqs",
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
        say(f"type {what}, one in each line; Ctrl-D ends them")
    try:
        for number, line in enumerate(sys.stdin.buffer, 1):  # one end of the input is enough: a terminal has several
            yield number, line.removeprefix(BOM_UTF8) if number == 1 and not raw else line
    except OSError as error:
        raise Invalid(f"cannot read stdin: {error.strerror or error}") from None


def _say_retry(error: FoqsError, left_s: float) -> None:
    say(f"{error.message}; retrying for up to {left_s:.0f} s{hint_of(error, waits=True)}")


class Ended(NamedTuple):
    """The outcome of an entry. `line` is its number, 0 for an argument; `entry` is None for a line that names none."""

    line: int
    entry: object
    error: FoqsError | None

    @property
    def message(self) -> str:
        """The error, with the number of the line."""
        assert self.error is not None
        said = self.error.message
        return said if not self.line or said.startswith(f"line {self.line}") else f"line {self.line}: {said}"


class Count:
    """The number of entries that ended, and of failures among them."""

    def __init__(self) -> None:
        self.total = self.failed = 0

    def add(self, ended: Ended) -> None:
        self.total += 1
        self.failed += ended.error is not None

    def report(self, done: str) -> None:
        """End the command with an error if an entry failed; `done` says how the rest ended."""
        if self.failed:
            sys.stdout.flush()
            fail(f"{part_of(self.failed, self.total, 'item', 'was', 'were')} not {done}")
        whole = "all " if self.total > 1 else ""
        say_done(f"{whole}{counted(self.total, 'item', 'was', 'were')} {done}")


def entries_of_lines(what: str, read: Callable[[bytes, int], T]) -> Iterator[tuple[int, T | Invalid]]:
    """Yield the number of each line that is not blank, with the entry that `read` makes of it or the error."""
    for number, line in stdin_lines(what):
        if line.strip():
            try:
                yield number, read(line, number)
            except Invalid as error:
                yield number, bare(error)


def settle(
    entries: Iterable[tuple[int, T | Invalid]], send: Callable[[list[T]], Sequence[FoqsError | None]]
) -> Iterator[Ended]:
    """Send the entries that were read, a request at a time, and yield the end of each entry in order."""
    known: dict[T, FoqsError | None] = {}
    left = iter(entries)
    while chunk := list(islice(left, BATCH_ITEMS)):
        new = dict.fromkeys(entry for _, entry in chunk if not isinstance(entry, Invalid) and entry not in known)
        known.update(zip(new, send(list(new)) if new else (), strict=True))
        for number, entry in chunk:
            yield Ended(number, None, entry) if isinstance(entry, Invalid) else Ended(number, entry, known[entry])
        sys.stdout.flush()
        for entry in list(islice(known, max(0, len(known) - _MOST_KNOWN))):
            del known[entry]


def unknown(client: Client, topic: str) -> str:
    """Return why a topic with this name does not exist; empty if it does, or if the host does not say.

    A topic that takes the dead letters of another exists also while it is empty."""
    try:
        if _exists(client, topic) or _takes_dead_letters(client, topic):
            return ""
        listed = client.active_topics(all_states=True, timeout_ms=_LOOK_MS)
        others = [one.topic for one in islice(listed, _LOOKED_AT)]
    except FoqsError:  # the command itself was allowed, or has its own error
        return ""
    near = get_close_matches(topic, [one for one in others if one != topic], n=1)
    hint = f"; did you mean {name(near[0])}?" if near else ""
    where = f"in namespace {name(client.namespace)}"
    return f"no topic {name(topic)} is known {where}: it has no items and no policy of its own{hint}"


def _exists(client: Client, topic: str) -> bool:
    found = client.topic_stats(topic, timeout_ms=_LOOK_MS)
    own = f"topic.{topic}" in found.policy_layers.values()
    return own or bool(found.ready or found.delayed or found.leased or found.behind or found.missing)


def _takes_dead_letters(client: Client, topic: str) -> bool:
    from foqs.policies.entries import TOPIC
    from foqs.policies.topic_policy import DEAD_SUFFIX

    source = topic.removesuffix(DEAD_SUFFIX)
    if source != topic and (_exists(client, source) or client.failing(source, limit=1, timeout_ms=_LOOK_MS).topics):
        return True
    values = client.settings(TOPIC, timeout_ms=_LOOK_MS).entries.values()
    return any((json.loads(value).get("dead") or {}).get("topic") == topic for value in values)


def say_unknown(client: Client, topic: str) -> bool:
    """Say on stderr that a topic does not exist. Return True if that is so."""
    if why := unknown(client, topic):
        say(why)
    return bool(why)
