"""Callers that wait for the end of an item whose progress is read when it has ended."""

from __future__ import annotations

import pytest

from foqs.engine.endings import Awaited, EndCall, Ending, Living
from foqs.engine.kept_items import end_of
from foqs.errors import FoqsError, NotFound, Unavailable
from foqs.item import Cause, Change, To
from foqs.rows import EndedRow, EndedState
from tests.engine.laboratory import Laboratory


@pytest.mark.parametrize("found", [None, Unavailable("the database does not answer")])
def test_the_end_is_answered_though_the_item_is_kept_no_longer(found: FoqsError | None) -> None:
    """The time for which it is kept may be shorter than a pause of the database."""
    lab = Laboratory(1)
    (item_id,) = lab.stored()
    memory = lab.engine.state.shards[1].memory
    item = memory.known[item_id]
    answers: list[Ending | Living | FoqsError] = []
    looks: list[EndCall] = []
    awaited, call = Awaited(), EndCall(item_id, answers.append, looks.append)
    awaited.add(call)
    change = Change(item, To.GONE, Cause.ACK)
    change.result, change.ended = b"done", EndedRow(2, item_id, 1, EndedState.COMPLETED, 1, 1, 1)
    awaited.committed(change, 1, noted=True)
    assert looks == [call] and not answers
    call.end(found or end_of(memory, None, None))
    (answer,) = answers
    assert isinstance(answer, Ending)
    assert (answer.state, answer.result, answer.ended_at_ms) == (EndedState.COMPLETED, b"done", 1)


def test_an_item_without_an_end_gives_the_error() -> None:
    answers: list[Ending | Living | FoqsError] = []
    EndCall(1, answers.append, lambda one: None).end(NotFound("no such item"))
    assert isinstance(answers[0], NotFound)
