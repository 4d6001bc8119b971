"""What a call of the client enters, from the method to the outcome: a ratchet against detours that no other test sees.

Lower a ceiling with each change that shortens a path. A change that needs a higher one makes every call slower.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import foqs
from foqs_lab.bench import client
from foqs_lab.bench.host import Kind

PRODUCT = f"{Path(foqs.__file__).parent}/"
CEILINGS: Mapping[Kind, Mapping[str, tuple[int, int]]] = {
    Kind.PLAIN: {"enqueue": (6, 15), "dequeue": (7, 19), "ack": (6, 15), "ack_and_dequeue": (8, 29)},
    Kind.TOGETHER: {"enqueue": (6, 17), "dequeue": (7, 21), "ack": (6, 15), "ack_and_dequeue": (8, 31)},
}
"""The most product files, and calls of their functions, for a call with one item. Generated methods do not count."""

SAMPLES = 5


def files_called(call: Callable[[], Any]) -> list[str]:
    """Return the file of each call of a product's function."""
    found = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PRODUCT):
            found.append(frame.f_code.co_filename)

    gc.collect()  # clients of other tests
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize(("kind", "method"), [(kind, method) for kind, of in CEILINGS.items() for method in of])
def test_a_call_takes_the_short_path(kind: Kind, method: str) -> None:
    plan = client.Plan(kind)
    with client.memory_client(plan) as made:
        call = client.calls(made, plan)[method]
        call()  # opens the connection
        # The least of several: now and then the client looks if its token is due.
        found = min([files_called(call) for _ in range(SAMPLES)], key=len)
    most_files, most_calls = CEILINGS[kind][method]
    assert len(set(found)) <= most_files, sorted(set(found))
    assert len(found) <= most_calls
