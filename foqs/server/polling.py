"""Wait for a state that nothing announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_CHECK_S = 0.01


async def until(reached: Callable[[], bool], deadline: float) -> bool:
    """Check `reached` every 10 ms. Return False at `deadline`, a time of the event loop's clock."""
    loop = asyncio.get_running_loop()
    while not reached():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_CHECK_S)
    return True
