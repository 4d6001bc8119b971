"""A host in this process, and what its requests leave for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from foqs.config.load import Config
from foqs.config.schema import AuthSection, ServerSection, ShardSection
from foqs.rpc.call import Call
from foqs.server.node import Node
from foqs.store.maintenance import create_schema
from foqs.store.sql import SqlStore


@contextmanager
def no_collector() -> Iterator[None]:
    """Inside the `with`, nothing is freed by the collector. What earlier tests have left is not counted."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def with_host(url: str, work: Callable[[int], Any], auth: AuthSection | None = None) -> Any:
    """Return what `work` returns of the port of a host in this process. It runs in a thread."""
    create_schema(url, 1)

    async def run() -> Any:
        config = Config(server=ServerSection(port=0), shards=(ShardSection(id=1, url=url),), auth=auth)
        node = Node(config, lambda number: SqlStore(url, shard=number))
        _, port = await node.start()
        try:
            return await asyncio.to_thread(work, port)
        finally:
            await node.stop()

    return asyncio.run(run())


def kept_errors() -> Counter[str]:
    """Return the errors, tracebacks, frames and answered calls that only the collector frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found: Counter[str] = Counter()
    for thing in gc.garbage:
        if isinstance(thing, BaseException):
            found[f"{type(thing).__name__}: {thing}"] += 1
        elif isinstance(thing, Call):
            found[f"Call of {type(thing.request).__name__}"] += 1
        elif isinstance(thing, FrameType | TracebackType):
            code = thing.f_code if isinstance(thing, FrameType) else thing.tb_frame.f_code
            if "/foqs/" in code.co_filename:
                found[f"{type(thing).__name__} of {code.co_qualname}"] += 1
    gc.garbage.clear()
    return found
