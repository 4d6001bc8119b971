"""GetResult: how an item ended, for callers that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from foqs.api import responses, validation
from foqs.api.host import Host
from foqs.engine.endings import NO_ITEM, EndCall, Ending, Living
from foqs.errors import FoqsError, Invalid, NotFound, NotServed
from foqs.idl import idl
from foqs.rpc.call import Call


class Results:
    def __init__(self, host: Host) -> None:
        self._host = host

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        return {"GetResult": self.get_result}

    def get_result(self, call: Call) -> None:
        """Raises Invalid, Overloaded."""
        request, limits = call.request, self._host.limits
        self._host.refuse_when_full()
        if request.id is None:
            raise Invalid("id is missing")
        wait_ms = validation.within(request.wait_ms, "wait_ms", 0, limits.result_wait_max_ms, 0)
        timeout_ms, now_ms = validation.timeout_ms(request, limits), self._host.now_ms()
        self._await(call, now_ms + wait_ms, now_ms + wait_ms + timeout_ms)

    def _await(self, call: Call, until_ms: int, deadline_ms: int) -> None:
        """Wait until `until_ms`, and have the answer by `deadline_ms`."""
        engine, now_ms = self._host.engine, self._host.now_ms()
        waiting = EndCall(call.request.id, partial(self._ended, call, until_ms, deadline_ms), engine.look_at_end)
        engine.await_end(waiting, now_ms, max(0, until_ms - now_ms))
        if not waiting.done:
            call.on_lost = partial(engine.stop_awaiting, waiting)

    def _ended(self, call: Call, until_ms: int, deadline_ms: int, outcome: Ending | Living | FoqsError) -> None:
        if isinstance(outcome, NotServed):
            again = partial(self._await, call, until_ms, deadline_ms)
            if self._host.forwarder.get_result(call, again, until_ms, deadline_ms):
                return
        if isinstance(outcome, FoqsError):
            is_absent = isinstance(outcome, NotFound) and outcome.message == NO_ITEM
            call.fail(NotFound(self._host.no_item(call)) if is_absent else outcome)
            return
        ns = outcome.ns if isinstance(outcome, Ending) else outcome.item.lane.topic.key[0]
        if call.within is not None and ns not in call.within:
            call.fail(NotFound(self._host.no_item(call)))
        elif isinstance(outcome, Living):
            progress, log = responses.progress_fields(outcome.found.progress)
            call.reply(idl.GetResultResponse(responses.state_of(outcome.item), progress=progress, log=log))
        else:
            failure = None if outcome.failure is None else responses.failure_struct(outcome.failure)
            progress, log = responses.progress_fields(outcome.progress)
            call.reply(
                idl.GetResultResponse(outcome.state, outcome.result, outcome.ended_at_ms, failure, progress, log)
            )
