from typing import Any

import pytest

from foqs.api.host import Host
from foqs.bounds import Budget, Limits
from foqs.engine.listing import ANSWERS_SHARE, OVERLOADED_RETRY_MS
from foqs.errors import Overloaded, Unavailable

pytestmark = pytest.mark.memory


class Engine:
    def __init__(self) -> None:
        self.state = self
        self.budget = Budget(1_000)
        self.draining = False


def test_full_buffers_and_a_stopping_host_refuse() -> None:
    engine: Any = Engine()
    forwarder: Any = None
    host = Host(engine, Limits(), lambda: 0, lambda: "h:1", forwarder)
    engine.budget.take(int(1_000 * ANSWERS_SHARE))
    host.refuse_when_full()
    engine.budget.take(1)
    with pytest.raises(Overloaded, match=r"^the host's buffers are full$") as error:
        host.refuse_when_full()
    assert error.value.retry_after_ms == OVERLOADED_RETRY_MS
    host.refuse_when_draining()
    engine.draining = True
    with pytest.raises(Unavailable, match=r"^the host is shutting down$"):
        host.refuse_when_draining()
