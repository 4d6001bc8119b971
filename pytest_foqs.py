"""Fixtures of pytest for applications of foqs. It is loaded in every project whose environment has foqs, so foqs is
imported by the fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from foqs.testing import Dev, Server


@pytest.fixture
def foqs_server() -> Iterator[Server]:
    """A service in this process, new for each test, with a clock that the test moves (`foqs.testing.server`)."""
    from foqs.testing import server

    with server() as made:
        yield made


@pytest.fixture
def foqs_dev(tmp_path: Path) -> Iterator[Dev]:
    """A process of `foqs dev`, new for each test, with its data in a temporary folder (`foqs.testing.dev`)."""
    from foqs.testing import dev

    with dev(tmp_path / "foqs-data") as made:
        yield made
