"""Loads the templates and the style."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING
from zlib import crc32

from foqs.errors import Invalid
from foqs.extras import missing
from foqs.page import words
from foqs.page.lines import plot

if TYPE_CHECKING:
    from jinja2 import Environment


def environment(*packages: str, extra: str = "spark") -> Environment:
    """Return an environment with the templates of `packages` (dotted names), then of `foqs.page`.

    Templates are in the folder `templates` of a package. All text is escaped. A name that is not defined is an error.
    Raises Invalid without Jinja2, naming `extra`.
    """
    try:
        from jinja2 import ChoiceLoader, PackageLoader, StrictUndefined
        from jinja2 import Environment as Made
    except ImportError:
        raise Invalid(missing("Jinja2, which draws the page,", extra)) from None
    made = Made(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        auto_reload=False,
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "foqs.page")]),
    )
    filters = (
        words.number, words.many, words.size, words.short, words.short_number, words.share, words.duration,
        words.ago, words.moment, words.unit, anchor,
    )  # fmt: skip
    made.filters |= {one.__name__: one for one in filters}
    made.globals |= {"nothing": words.NOTHING, "plot": plot}
    return made


def anchor(text: str) -> str:
    """Return an id of an element, equal for equal text.

    >>> anchor("Items, <by age>")
    'id-b9a6a576'
    """
    return f"id-{crc32(text.encode()):08x}"


def stylesheet() -> str:
    """Return the CSS of all pages. An element <style> may hold it."""
    return (files("foqs.page") / "static" / "page.css").read_text(encoding="utf-8")
