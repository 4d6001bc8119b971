"""Changes to ZooKeeper: each takes a few requests, one of which decides. All raise ZkError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from foqs import settings_log
from foqs.errors import Invalid
from foqs.ids import Mark, Marks, decode_mark, encode_mark
from foqs.policies import settings
from foqs.policies.settings import Change, Settings
from foqs.shardmgr.facts import (
    HostFact,
    Identity,
    OwnerFact,
    ShardFact,
    Slots,
    decode_host,
    decode_owner,
    encode_assignment,
    encode_host,
    encode_identity,
    encode_owner,
    encode_shard,
    encode_slots,
)
from foqs.zk.link import Link, first_failure, mapped
from foqs.zk.protocol import ZkConflict, ZkRefused
from foqs.zk.records import ELECTION, FOLDERS, Paths, node_name

# ZooKeeper closes the connection at a request of 1 MiB (jute.maxbuffer), and again at each repetition.
MAX_RECORD_BYTES = 1_000_000
_TRIES = 10  # each failed attempt means that another client made a change


class Changes:
    """Writes records; ephemeral ones belong to the session `session`."""

    def __init__(self, link: Link, paths: Paths) -> None:
        self.session = 0
        self._link = link
        self._paths = paths

    async def prepare(self) -> None:
        """Create the missing folders, and have the server catch up: one that lags could show a host that starts again
        older settings than those it acted on before."""
        try:
            found = await self._children(self._paths.root)
        except ZkConflict:
            found = set()
            for path in self._paths.ancestors:
                await self._make_folder(path)
        for name in FOLDERS:
            if name not in found:
                await self._make_folder(self._paths.folder(name))
        await self._link.answer(lambda client: client.sync_async(self._paths.root))

    async def register(self, host: HostFact) -> None:
        """Write the host's record and one candidacy. Raises ZkConflict while the id has a record at another address."""

        def may_replace(data: bytes) -> bool:
            try:
                return host.replaces(decode_host(host.id, data))
            except Invalid:
                return True

        await self._place(self._paths.host(host.id), encode_host(host), may_replace)
        ours = []
        for name in await self._children(self._paths.folder(ELECTION)):
            if name.rpartition("-")[0] != node_name(host.id):
                continue
            found = await self._read(self._paths.candidate(name))
            if found is not None and found[1].ephemeralOwner == self.session:
                ours.append(name)
            elif found is not None:
                await self._remove(self._paths.candidate(name))
        # Two exist if the outcome of the first one was unknown.
        for name in sorted(ours, key=lambda name: int(name.rpartition("-")[2]))[1:]:
            await self._remove(self._paths.candidate(name))
        if not ours:
            path = f"{self._paths.candidate(node_name(host.id))}-"
            await self._link.answer(lambda client: client.create_async(path, ephemeral=True, sequence=True))

    async def own(self, owner: OwnerFact) -> None:
        def may_replace(data: bytes) -> bool:
            try:
                other = decode_owner(owner.shard, data)
            except Invalid:
                return True
            return (other.epoch, other.host) == (owner.epoch, owner.host) or other.epoch < owner.epoch

        await self._place(self._paths.owner(owner.shard), encode_owner(owner), may_replace)

    async def disown(self, shard: int, epoch: int) -> None:
        path = self._paths.owner(shard)
        for _ in range(_TRIES):
            found = await self._read(path)
            if found is None:
                return
            data, stat = found
            with contextlib.suppress(Invalid):
                if decode_owner(shard, data).epoch != epoch:
                    return
            with contextlib.suppress(ZkConflict):
                await self._delete(path, stat.version)
                return
        raise ZkConflict(f"{path} keeps changing")

    async def assign(self, hosts: Mapping[int, str], version: int) -> None:
        await self._compare_and_set(self._paths.assignment, encode_assignment(hosts), version)

    async def share_slots(self, slots: Slots) -> None:
        await self._compare_and_set(self._paths.slots, encode_slots(slots), slots.version)

    async def identify(self, identity: Identity) -> None:
        await self._compare_and_set(self._paths.identity, encode_identity(identity), identity.version)

    async def put_back_shard(self, fact: ShardFact, version: int) -> None:
        await self._compare_and_set(self._paths.shard(fact.id), encode_shard(fact), version)

    async def _compare_and_set(self, path: str, data: bytes, version: int) -> None:
        if version < 0:
            await self._create(path, _sized(data))
        else:
            await self._set(path, _sized(data), version)

    async def recall(self, shard: int) -> Marks:
        folder = self._paths.marks(shard)
        found: dict[str, Mark] = {}
        try:
            names = await self._children(folder)
        except ZkConflict:  # there is no such node
            return found
        for name in sorted(names):
            path = f"{folder}/{name}"
            record = await self._read(path)
            if record is not None:
                found["" if name == "-" else name] = _mark(path, record[0])
        return found

    async def remember(self, shard: int, identity: str, mark: Mark) -> None:
        path, data = self._paths.mark(shard, identity), encode_mark(mark)
        for _ in range(_TRIES):
            found = await self._read(path)
            with contextlib.suppress(ZkConflict):
                if found is None:
                    await self._make_folder(self._paths.marks(shard))
                    await self._create(path, data)
                    return
                with contextlib.suppress(ZkRefused):  # an unreadable mark is replaced
                    if _mark(path, found[0]).epoch > mark.epoch:
                        return
                await self._set(path, data, found[1].version)
                return
        raise ZkConflict(f"{path} keeps changing")

    async def change_settings(self, ns: str, change: Change, known: Settings) -> Settings:
        """Return the settings as they are stored now. `known` takes the place of a record that is missing: it was
        never written, or ZooKeeper lost it; so does its log. Raises what `change` raises, and Invalid for an unreadable
        record."""
        path, log_path = self._paths.settings(ns), self._paths.settings_log(ns)
        for _ in range(_TRIES):
            logged, found = await self._read(log_path), await self._read(path)
            before = known if found is None else _with_log(settings.decode(ns, found[0]), logged, known)
            made = change(before)
            if made is before and (found is not None or not made.version):
                return made
            with contextlib.suppress(ZkConflict):
                await self._replace_both(  # the log first: a host that reads the document finds it there
                    (log_path, made.log.encoded(), logged), (path, made.document(), found)
                )
                return made
        raise ZkConflict(f"{path} keeps changing")

    async def _replace_both(self, *records: tuple[str, bytes, Any]) -> None:
        """Write records in one transaction, each (path, data, what `_read` returned): none, if one has changed."""
        _sized(b"".join(data for _, data, _ in records))

        def call(client: Any) -> Any:
            transaction = client.transaction()
            for path, data, found in records:
                if found is None:
                    transaction.create(path, data)
                else:
                    transaction.set_data(path, data, found[1].version)
            return transaction.commit_async()

        failure = first_failure(await self._link.answer(call))
        if failure is not None:
            raise mapped(failure)

    async def put_shard(self, fact: ShardFact, *, new: bool) -> None:
        write = self._create if new else self._set
        await write(self._paths.shard(fact.id), _sized(encode_shard(replace(fact, as_of_ms=0))))

    async def remove_shard(self, shard: int) -> None:
        await self._delete(self._paths.shard(shard), -1)

    async def drain_host(self, host: str, *, drained: bool) -> None:
        path = self._paths.drained(host)
        if drained:
            await self._make_folder(path)
        else:
            await self._remove(path)

    # ------------------------------------------------------------------------------------- requests

    async def _place(self, path: str, data: bytes, may_replace: Callable[[bytes], bool]) -> None:
        """Write an ephemeral record of this session at `path`."""
        _sized(data)
        for _ in range(_TRIES):
            try:
                await self._create(path, data, ephemeral=True)
                return
            except ZkConflict:
                found = await self._read(path)
            if found is None:
                continue
            old, stat = found
            if not may_replace(old):
                raise ZkConflict(f"{path} has newer content")
            ours = stat.ephemeralOwner == self.session
            if ours and old == data:
                return
            with contextlib.suppress(ZkConflict):
                await self._replace(path, data, stat.version, ours=ours)
                return
        raise ZkConflict(f"{path} keeps changing")

    async def _replace(self, path: str, data: bytes, version: int, *, ours: bool) -> None:
        """Replace a record; one of another session in one transaction, so that no reader finds the node missing."""
        if ours:
            await self._set(path, data, version)
            return

        def call(client: Any) -> Any:
            transaction = client.transaction()
            transaction.delete(path, version)
            transaction.create(path, data, ephemeral=True)
            return transaction.commit_async()

        failure = first_failure(await self._link.answer(call))
        if failure is not None:
            raise mapped(failure)

    async def _children(self, path: str) -> set[str]:
        return set(await self._link.answer(lambda client: client.get_children_async(path)))

    async def _read(self, path: str) -> Any:
        """Return data and kazoo's ZnodeStat, or None."""
        try:
            return await self._link.answer(lambda client: client.get_async(path))
        except ZkConflict:
            return None

    async def _create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        await self._link.answer(lambda client: client.create_async(path, data, ephemeral=ephemeral))

    async def _set(self, path: str, data: bytes, version: int = -1) -> None:
        await self._link.answer(lambda client: client.set_async(path, data, version))

    async def _make_folder(self, path: str) -> None:
        with contextlib.suppress(ZkConflict):
            await self._create(path)

    async def _remove(self, path: str) -> None:
        with contextlib.suppress(ZkConflict):
            await self._delete(path, -1)

    async def _delete(self, path: str, version: int) -> None:
        await self._link.answer(lambda client: client.delete_async(path, version))


def _with_log(document: Settings, logged: Any, known: Settings) -> Settings:
    """Return stored settings with their log. The known one takes its place if it is missing or unreadable."""
    with contextlib.suppress(Invalid):
        if logged is not None:
            return document.with_log(settings_log.decode(logged[0]))
    return document.united(known)


def _mark(path: str, data: bytes) -> Mark:
    try:
        return decode_mark(data)
    except Invalid as error:
        raise ZkRefused(f"{path} cannot be read: {error.message}") from None


def _sized(data: bytes) -> bytes:
    if len(data) > MAX_RECORD_BYTES:
        raise ZkRefused(f"a record of {len(data):,} bytes is more than ZooKeeper takes ({MAX_RECORD_BYTES:,})")
    return data
