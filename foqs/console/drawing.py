"""The templates with their words and parts, and the static files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, Template
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from foqs.checks import per_second, printable
from foqs.client import BatchState, FailureCause, ItemState
from foqs.console.payload_text import escaped
from foqs.enums import NamedInt
from foqs.page.environment import environment

STATIC = {
    "page.css": ("foqs.page", "text/css"),
    "console.css": ("foqs.console", "text/css"),
    "console.js": ("foqs.console", "text/javascript"),
    "htmx-2.0.11.min.js": ("foqs.console", "text/javascript"),
    "icon.svg": ("foqs.console", "image/svg+xml"),
}
"""The static files: the package that has each, and its type."""


def templates() -> Environment:
    """Return the templates, with their words and parts."""
    made = environment("foqs.console", extra="console")
    made.filters |= {
        "printable": printable, "state": state_name, "cause": cause_name, "escaped": escaped, "per_second": per_second,
    }  # fmt: skip
    made.globals |= {"asset": asset, "parts": made.get_template("parts.html").module}
    made.globals["macros"] = made.get_template("macros.html").module
    return made


def state_name(number: int) -> str:
    """Return the name of an item's state; the number of one that a newer host gave."""
    return _name(ItemState, number)


def batch_state_name(number: int) -> str:
    return _name(BatchState, number)


def cause_name(number: int) -> str:
    return _name(FailureCause, number).replace("_", " ")


def _name(kind: type[NamedInt], number: int) -> str:
    try:
        return kind(number).name.lower()
    except ValueError:
        return str(number)


def block(template: Template, name: str, values: Mapping[str, Any]) -> str:
    """Return one block of a template."""
    found = template.blocks.get(name)
    return "" if found is None else "".join(found(template.new_context(dict(values))))


@cache
def _asset(name: str) -> bytes:
    package, _ = STATIC[name]
    return (files(package) / "static" / name).read_bytes()


@cache
def asset(name: str) -> str:
    """Return the URL of a static file, which changes with its content."""
    return f"/static/{name}?{sha256(_asset(name)).hexdigest()[:12]}"


async def static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404)
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(_asset(name), media_type=STATIC[name][1], headers=headers)
