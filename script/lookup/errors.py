"""The errors that a caller can get: by the codes of the contract, and as exceptions of the Python library."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import foqs
import foqs.client
from foqs import errors
from foqs.errors import Code, FoqsError, NotServed, from_code
from script.lookup.markdown import anchor, cell, table

_BETWEEN_HOSTS = (errors.KeyElsewhere, errors.OtherProtocol)
_SIGNALS = (foqs.Reject, foqs.Retry)
"""A handler raises these: no caller gets them."""


def codes() -> str:
    rows = []
    for code in Code:
        error = type(from_code(code, ""))
        if error is not NotServed:
            name = f"[`{error.__name__}`](#{anchor(error.__name__)})"
            rows.append((f"{int(code)} `{code.name}`", name, *_facts(error)))
    return table(("code", "exception", "retry", "outcome", "meaning"), rows)


def exceptions() -> str:
    rows = [
        (f"`{module}.{one.__name__}`", f"`{one.__mro__[1].__name__}`", *_facts(one))
        for module, one in sorted(_further(), key=lambda found: (found[0], found[1].__name__))
    ]
    return table(("exception", "is a", "retry", "outcome", "meaning"), rows)


def _further() -> Iterator[tuple[str, type[Exception]]]:
    """Yield the exceptions that have no code of their own, with the module that a program imports them from."""
    coded = {FoqsError, *(type(from_code(code, "")) for code in Code if code is not Code.NOT_OWNER)}
    seen: set[type] = {*coded, *_BETWEEN_HOSTS, *_SIGNALS}
    for module in (foqs, foqs.client, errors):
        for name in getattr(module, "__all__", None) or vars(module):
            found = getattr(module, name)
            if isinstance(found, type) and issubclass(found, FoqsError | RuntimeError) and found not in seen:
                seen.add(found)
                yield module.__name__, found


def _facts(error: type[Exception]) -> tuple[str, str, str]:
    """Return whether a retry may help, what is known of the outcome, and what the error means."""
    text = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0]
    if not issubclass(error, FoqsError):
        return "no", "known", cell(text)
    return "yes" if error.retryable else "no", "known" if error.outcome_known else "**not known**", cell(text)
