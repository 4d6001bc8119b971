"""The path of each fact below the root, and the node names of ids."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from foqs.errors import Invalid
from foqs.ids import MAX_SHARD

SHARDS, HOSTS, OWNERS, DRAINED, ELECTION = "shards", "hosts", "owners", "drained", "election"
MARKS, SETTINGS = "marks", "settings"
ASSIGNMENT, SLOTS = "assignment", "slots"
FOLDERS = (SHARDS, HOSTS, OWNERS, DRAINED, ELECTION, MARKS, SETTINGS)


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths below `root`, which is absolute, has no slash at its end, and is not `/`."""

    root: str

    def folder(self, name: str) -> str:
        return f"{self.root}/{name}"

    def shard(self, shard: int) -> str:
        return f"{self.root}/{SHARDS}/{shard}"

    def host(self, host: str) -> str:
        return f"{self.root}/{HOSTS}/{node_name(host)}"

    def owner(self, shard: int) -> str:
        return f"{self.root}/{OWNERS}/{shard}"

    def marks(self, shard: int) -> str:
        return f"{self.root}/{MARKS}/{shard}"

    def mark(self, shard: int, identity: str) -> str:
        return f"{self.marks(shard)}/{node_name(identity or '-')}"

    def drained(self, host: str) -> str:
        return f"{self.root}/{DRAINED}/{node_name(host)}"

    def settings(self, ns: str) -> str:
        return f"{self.root}/{SETTINGS}/{node_name(ns)}"

    def candidate(self, name: str) -> str:
        return f"{self.root}/{ELECTION}/{name}"

    @property
    def assignment(self) -> str:
        return f"{self.root}/{ASSIGNMENT}"

    @property
    def slots(self) -> str:
        return f"{self.root}/{SLOTS}"

    @property
    def ancestors(self) -> list[str]:
        """The root and its ancestors, from the top."""
        parts = self.root.split("/")[1:]
        return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def node_name(text: str) -> str:
    """Return the node name of a host's id or a namespace, which can be any text."""
    # ZooKeeper refuses these two, and quote leaves dots alone.
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def text_of(name: str) -> str:
    """Return the text that `node_name` makes this name of. Raises Invalid if there is none, so that no text has two
    nodes."""
    text = unquote(name)
    if node_name(text) != name:
        raise Invalid("not the name of such a node")
    return text


def shard_of(name: str) -> int:
    """Return the number of a shard's node. Raises Invalid."""
    if not name.isascii() or not name.isdigit() or name.startswith("0") or len(name) > 5 or int(name) > MAX_SHARD:
        raise Invalid("not the number of a shard")
    return int(name)


def candidate_of(name: str) -> tuple[int, str]:
    """Return the sequence number and the host of a node in the election, <host>-<sequence>. Raises Invalid."""
    host, _, sequence = name.rpartition("-")
    if not sequence.isascii() or not sequence.isdigit():
        raise Invalid("no sequence number")
    return int(sequence), text_of(host)
