"""`foqs top`: the overview of a namespace on a terminal, which follows the service."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from foqs.checks import printable as name
from foqs.cli.connection import Connection
from foqs.cli.look import topics_table
from foqs.cli.main import command
from foqs.cli.status import consumers_table
from foqs.cli.terminal import fail, when
from foqs.cli.throttle import Row, rows_of, throttles_table
from foqs.errors import FoqsError, Forbidden
from foqs.policies.entries import THROTTLE

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from foqs.client import ActiveTopic, Client, Consumers, Rates
    from foqs.doctor.verdict import Verdict

_TOPICS = 1_000
"""Topics that are looked at for the largest."""
_ROWS = 50
"""The most rows of a table: a screen has no more."""
_HEADS = 3
"""Lines of a table besides its rows: the title, the names of the columns, and a free line."""
_REASONS = 3
_BARS = " ▁▂▃▄▅▆▇█"
_CELLS = 45
"""Of an hour: the line fits into 80 columns."""

app = typer.Typer()


class Frame(NamedTuple):
    """The answers of the service at `now_ms`. `verdict` and `consumers` are None without the right `admin`.
    `more_topics`: there are more than were looked at."""

    now_ms: int
    verdict: Verdict | None
    rates: Rates
    topics: Sequence[ActiveTopic]
    more_topics: bool
    throttles: Sequence[Row]
    consumers: Consumers | None


@command(app, "foqs top", "foqs top --ns shop --every 5", "foqs top --once")
def top(
    every: Annotated[float, typer.Option(min=0.5, max=3600, help="The view is renewed after this many seconds.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="The command prints the view once, and ends.")] = False,
    *,
    connection: Connection,
) -> None:
    """Show a namespace at work: the verdict about the cluster, rates, topics, throttles and consumers.

    The view follows the service until `q` or Ctrl-C. Rates count items a second; their lines show
    the last hour. Without a terminal that has
    a cursor, it is printed once.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    with connection.client() as client:
        frame = ask(client)
        if once or not console.is_terminal or console.is_dumb_terminal:
            for part in draw(frame, connection.namespace, None):
                console.print(part, crop=False)
            return
        _follow(console, client, frame, connection.namespace, every)


def _follow(console: Any, client: Client, frame: Frame, namespace: str, every: float) -> None:
    from rich.console import Group
    from rich.live import Live

    said = ""
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Group(*draw(frame, namespace, console.size.height, said)), refresh=True)
            if pressed(every) in ("q", "Q"):
                return
            try:
                frame, said = ask(client), ""
            except FoqsError as error:
                said = f"no answer since {when(frame.now_ms)}: {error.message}"


@contextmanager
def _keys() -> Iterator[Any]:
    """Give a function that waits some seconds for a key, and returns it or "". Ctrl-C is `q`."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (termios.error, ValueError, OSError):  # stdin is no terminal
        fail("foqs top reads keys from a terminal: use --once", 2)

    def pressed(seconds: float) -> str:
        try:
            ready, _, _ = select.select([terminal], [], [], seconds)
            return os.read(terminal, 1).decode(errors="replace") if ready else ""
        except KeyboardInterrupt:
            return "q"

    tty.setcbreak(terminal, termios.TCSANOW)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def ask(client: Client) -> Frame:
    """Return what the service answers now. Raises FoqsError."""
    from foqs.doctor.system import Facts
    from foqs.doctor.verdict import judge

    now_ms = client.server_info().now_ms
    try:
        status, consumers = client.status(), client.consumers()
    except Forbidden:
        status, consumers = None, None
    found = list(islice(client.active_topics(all_states=True, rates=True), _TOPICS + 1))
    topics = sorted(found[:_TOPICS], key=_busiest)
    verdict = None if status is None else judge(Facts(status.hosts, status.missing))
    live = client.throttles(limit=_TOPICS).throttles
    throttles = sorted(rows_of(client.settings(THROTTLE).entries, live), key=_parked, reverse=True)
    return Frame(now_ms, verdict, client.rates(), topics, len(found) > _TOPICS, throttles, consumers)


def _busiest(topic: ActiveTopic) -> tuple[int | str, ...]:
    """Sorts topics: the most ready items first, then the most leased ones and deliveries."""
    return -topic.ready, -(topic.leased or 0), -(topic.delivered_minute or 0), topic.topic


def _parked(row: Row) -> int:
    return row.live.parked_items if row.live is not None else 0


def draw(frame: Frame, namespace: str, height: int | None, said: str = "") -> list[RenderableType]:
    """Return the parts of the view, which fit into `height` lines; all of it if that is None."""
    from rich.text import Text

    lines = [_head(frame, namespace), *([f"! {said}"] if said else [])]
    reasons = () if frame.verdict is None else frame.verdict.reasons
    for one in reasons[: None if height is None else _REASONS]:
        lines += [f"- {one.text}", f"  -> {one.remedy}"]
    lines += ["", *_rates(frame.rates), ""]
    parts: list[RenderableType] = list(lines)
    if height is not None:
        parts = [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
    consumers = () if frame.consumers is None else frame.consumers.consumers
    tables: list[tuple[str, Sequence[Any], Callable[[Sequence[Any]], Table]]] = [
        ("topics", frame.topics, lambda rows: topics_table(list(rows), frame.now_ms, all_states=True)),
        ("throttles", frame.throttles, throttles_table),
        ("consumers", consumers, lambda rows: consumers_table(rows, all_namespaces=False)),
    ]
    tables = [one for one in tables if one[1]]
    left = _ROWS * len(tables) if height is None else max(0, height - len(parts) - _HEADS * len(tables) + 1)
    for at, (title, rows, table_of) in enumerate(tables):
        shown = rows[: min(_ROWS, max(1, left // (len(tables) - at)))]
        left -= len(shown)
        more = "+" if title == "topics" and frame.more_topics else ""
        count = f"{len(rows):,}{more}" if len(shown) == len(rows) else f"{len(shown):,} of {len(rows):,}{more}"
        parts += [f"{title}: {count}", table_of(shown), *([""] if at + 1 < len(tables) else [])]
    if not tables:
        parts.append(f"namespace {name(namespace)} has no items, and nothing asks for some")
    return parts


def _head(frame: Frame, namespace: str) -> str:
    word = "" if frame.verdict is None else f"{frame.verdict.word.value}  "
    missing = frame.rates.missing
    without = f"  without {', '.join(missing)}, which did not answer" if missing else ""
    return f"{word}namespace {name(namespace)}  {when(frame.now_ms)}{without}"


def _rates(rates: Rates) -> list[str]:
    """Return a line for each kind of event: the last whole step a second, and the hour."""
    found = rates.namespaces[0] if rates.namespaces else None
    lines = []
    for kind in ("enqueued", "delivered", "acked", "failed"):
        counts = getattr(found, kind, ())
        now = counts[-1] * 1_000 / rates.step_ms if counts else 0.0
        lines.append(f"{kind:<9} {now:>9,.1f}/s  {bars(counts)}")
    return lines


def bars(counts: Sequence[int], cells: int = _CELLS) -> str:
    """Return a line of characters, higher for larger sums of neighbours; any count above 0 is visible.

    >>> bars([0, 0, 1, 0, 8, 8], 3), bars([], 3)
    (' ▁█', '')
    """
    if not counts:
        return ""
    size = -(-len(counts) // cells)
    sums = [sum(counts[at : at + size]) for at in range(0, len(counts), size)]
    most = max(sums)
    return "".join(_BARS[-(-one * (len(_BARS) - 1) // most)] if one else " " for one in sums)
