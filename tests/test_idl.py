"""What the context of a request says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from foqs.idl import idl, is_forwarded


@pytest.mark.parametrize(("hops", "forwarded"), [(None, False), (0, False), (1, True), (2, True)])
def test_a_request_with_hops_came_from_another_host(hops: int | None, forwarded: bool) -> None:
    assert is_forwarded(SimpleNamespace(context=idl.RequestContext(hops=hops))) is forwarded


def test_a_request_without_a_context_came_from_a_client() -> None:
    assert is_forwarded(SimpleNamespace(context=None)) is False
