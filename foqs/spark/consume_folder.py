"""The folder with the batches of a consuming stream. One process uses it at a time, and every file is replaced as a
whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from foqs.client.items import Item
from foqs.errors import Invalid, Unavailable
from foqs.spark.consume_rows import batch_text, read_batch
from foqs.spark.consume_state import NEW_START, Again, Ledger, again_text, read_again, read_state, state_text

_LOOK_AGAIN_S = 0.05
_SUFFIX = ".batch"
_AGAIN = "again"


class StateFolder:
    """Files: `lock`, `state`, `<number>.batch` for each batch of the ledger, and `again` if items came again. Every
    method may also raise OSError. One thread may use `write` and `erase` while another uses the other methods; one
    thread at a time uses `save_again`."""

    def __init__(self, path: str, namespace: str) -> None:
        self.path = Path(path)
        self._namespace = namespace
        self._lock: int | None = None
        self.ledger = Ledger()
        self.again = Again()

    def open(self, wait_s: float) -> None:
        """Create the folder if it is missing. Raises Unavailable if another process holds it for longer than `wait_s`,
        and Invalid if it belongs to another namespace or is damaged."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._take_lock(monotonic() + wait_s)
        try:
            self.ledger = self._read_ledger()
            self.again = self._read_again()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def commit(self, seq: int) -> None:
        """Raises Invalid: see `Ledger.commit`."""
        ledger = self.ledger.commit(seq)
        if ledger != self.ledger:
            self._write("state", state_text(seq, self._namespace))
            self.ledger = ledger

    def write(self, seq: int, items: Sequence[Item]) -> None:
        """Write a batch that is not yet in the ledger."""
        self._write(self._name(seq), batch_text(seq, items))

    def erase(self, seq: int) -> None:
        """Undo `write`."""
        (self.path / self._name(seq)).unlink(missing_ok=True)

    def add(self, seq: int) -> None:
        """Add a written batch to the ledger."""
        self.ledger = self.ledger.added(seq)

    def read(self, seq: int) -> Any:
        """Return the table of a batch. Raises Invalid when the file is damaged."""
        path = self.path / self._name(seq)
        try:
            return read_batch(path.read_bytes(), seq)
        except Invalid as error:
            raise Invalid(f"{path}: {error.message}; {NEW_START}") from None

    def remove(self, seq: int) -> None:
        """Remove the batch: its acks are settled, or its items were given back."""
        self.erase(seq)
        self.ledger = self.ledger.settled(seq)

    def save_again(self) -> None:
        """Write the leases of items that came again, if they have changed."""
        if self.again.changed:
            self._write(_AGAIN, again_text(self.again))
            self.again.changed = False

    def _name(self, seq: int) -> str:
        return f"{seq}{_SUFFIX}"

    def _take_lock(self, deadline: float) -> None:
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic() >= deadline:
                    os.close(lock)
                    raise Unavailable(
                        f"{self.path} is in use by another query: each needs a stateDir of its own"
                    ) from None
                sleep(_LOOK_AGAIN_S)
            else:
                self._lock = lock
                return

    def _read_ledger(self) -> Ledger:
        for left in self.path.glob("*.tmp"):
            left.unlink()
        state = self.path / "state"
        try:
            committed = read_state(state.read_bytes(), self._namespace)
        except FileNotFoundError:
            committed = 0
            # Written before the first batch, so the folder always names its namespace.
            self._write("state", state_text(0, self._namespace))
        except Invalid as error:
            raise Invalid(f"{state}: {error.message}; {NEW_START}") from None
        names = (path.stem for path in self.path.glob(f"*{_SUFFIX}"))
        return Ledger(committed, tuple(sorted(int(name) for name in names if name.isdecimal())))

    def _read_again(self) -> Again:
        path = self.path / _AGAIN
        try:
            return read_again(path.read_bytes())
        except FileNotFoundError:
            return Again()
        except Invalid as error:
            raise Invalid(
                f"{path}: {error.message}; if you remove it, items whose leases had ended may be delivered again"
            ) from None

    def _write(self, name: str, text: bytes) -> None:
        """Replace the file atomically: a later reader finds the old file or the new one, also after a power cut."""
        temporary = self.path / f"{name}.tmp"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / name)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
