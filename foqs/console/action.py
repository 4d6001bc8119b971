"""Changes that a page offers: a form, a question where something is lost, the call, and a notice about its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from foqs.console.view import Page, View

Form = Mapping[str, str]
"""The fields of a form. Fields of one name are joined by newlines."""


class Question(NamedTuple):
    """What a user has to confirm. `typed`: the name that the user has to type; "": a button is enough."""

    title: str
    text: str
    button: str
    typed: str = ""


class Done(NamedTuple):
    """`text` is shown on the next page, which is `to`: "" for the page with the form. `well` is False if some of it
    was not done. `links` are (words, path) of pages about its subjects."""

    text: str
    to: str = ""
    well: bool = True
    links: Sequence[tuple[str, str]] = ()


class Action(NamedTuple):
    """`run` makes the change, and raises what the calls raise. In place of an outcome it may return values of the
    template of `page`: the page is shown again, with the form as the user sent it; its `status` is 400 if the values
    have none. `ask` returns a question for those changes that lose something; the form comes again with the answer."""

    path: str
    run: Callable[[View, Form], Awaitable[Done | Mapping[str, Any]]]
    ask: Callable[[View, Form], Awaitable[Question | None]] | None = None
    page: Page | None = None


def is_answered(question: Question, form: Form) -> bool:
    """Return True if the form has the answer to the question."""
    if question.typed:
        return form.get("typed", "") == question.typed
    return form.get("confirmed") == "yes"
