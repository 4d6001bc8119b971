"""What a test gets: a service in its own process, or a process of `foqs dev`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from foqs.checks import is_time
from foqs.client import Client, Invalid, Item, ItemState
from foqs.testing.host import MemoryHost

_LISTENING = "foqs listening on "


class Server:
    """A foqs service in this process: a real host with one shard, on a loopback port. Its clock stands still until
    `advance`, so no item becomes due, no lease ends and no schedule fires before. Long polls wait in real time. Raises
    Invalid for a `now` that is none of these times.

    now      the time at its begin, with a time zone, from the year 1974 to the year 5000: the machine's if None
    address  host:port, for an `App`, a `Client` or an `AsyncClient`
    """

    def __init__(self, now: datetime | None = None) -> None:
        begin: object = datetime.now(UTC) if now is None else now
        if not isinstance(begin, datetime) or begin.tzinfo is None:
            raise Invalid(f"now is {now!r}: give a datetime with a time zone")
        now_ms = round(begin.timestamp() * 1000)
        if not is_time(now_ms):
            raise Invalid(f"now is {now}: give a time from the year 1974 to the year 5000")
        self._host = MemoryHost(now_ms)
        self._clients: dict[str, Client] = {}
        self.address = self._host.address

    @property
    def now(self) -> datetime:
        """The time of the service, in UTC."""
        return datetime.fromtimestamp(self._host.time.now_ms() / 1000, UTC)

    def advance(
        self, by: timedelta | None = None, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0,
        ms: float = 0,
    ) -> None:  # fmt: skip
        """Let the time pass, in whole milliseconds: by a timedelta, the named units, or their sum. All that falls due
        in between happens at its time and in order, and is done when this returns. Raises Invalid for a time below 0.

        Nothing else is waited for: a worker in another thread may still be at work."""
        more = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
        by_ms = ((by or timedelta()) + more) / timedelta(milliseconds=1)
        if by_ms < 0:
            raise Invalid(f"advance by {by_ms} ms: the time goes forward only")
        self._host.advance(round(by_ms))

    def items(self, topic: str, namespace: str = "default", state: ItemState | None = None) -> list[Item]:
        """Return the items of a topic, as `Client.list_items` does."""
        return list(self._client(namespace).list_items(topic, state=state))

    def clear(self) -> None:
        """Forget all items and settings of all namespaces. The time and the address stay."""
        self._host.restart()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._host.close()

    def _client(self, namespace: str) -> Client:
        if namespace not in self._clients:
            self._clients[namespace] = Client(self.address, namespace, routing=False)
        return self._clients[namespace]


@contextmanager
def server(now: datetime | None = None) -> Iterator[Server]:
    """A service in this process, inside the `with`. Its time begins with `now`, or the machine's: a test of what
    happens at a time of day gives it. Raises Invalid for a time that `Server` refuses.

    >>> with server() as service, app.test_mode(service):                      # doctest: +SKIP
    ...     send_mail.enqueue("ada@example.org", subject="hi")
    ...     app.worker().run_until_empty()
    """
    made = Server(now)
    try:
        yield made
    finally:
        made.close()


class Dev(NamedTuple):
    """A process of `foqs dev`."""

    address: str
    process: subprocess.Popen[str]


@contextmanager
def dev(folder: Path | str) -> Iterator[Dev]:
    """A process of `foqs dev`, inside the `with`: with the time of the machine, and its data in `folder`. Raises
    RuntimeError if it does not start; its reason is on stderr."""
    command = [sys.executable, "-m", "foqs", "dev", "--data-dir", str(folder), "--port", "0", "--shards", "1"]
    environment = {"FOQS_LOG__LEVEL": "warning", **os.environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith(_LISTENING):
                raise RuntimeError(f"`foqs dev` has not started: {line.strip() or 'see its stderr'}")
            yield Dev(line.split()[-1], process)
        finally:
            process.terminate()
