#!/usr/bin/env python3
"""Writes thrift/foqs.json, which Python programs read, from thrift/foqs.thrift: script/idl.py [--check]

To parse the IDL takes longer than the rest of the import of the client. `--check` writes nothing, and ends with status
1 if the file is not current.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import thriftpy2
from thriftpy2.thrift import TException

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "thrift" / "foqs.thrift"
WRITTEN = ROOT / "thrift" / "foqs.json"


def main() -> int:
    text = as_json(thriftpy2.load(str(SOURCE), module_name="foqs_thrift"))
    if "--check" not in sys.argv[1:]:
        WRITTEN.write_text(text)
    elif WRITTEN.read_text() != text:
        print("thrift/foqs.json is not current; script/idl.py writes it", file=sys.stderr)
        return 1
    return 0


def as_json(module: ModuleType) -> str:
    """Return the module of an IDL as `foqs.idl` reads it, with one struct on a line."""
    enums, structs, services = {}, {}, {}
    for name, made in vars(module).items():
        if hasattr(made, "_NAMES_TO_VALUES"):
            enums[name] = made._NAMES_TO_VALUES
        elif hasattr(made, "thrift_spec"):
            structs[name] = [issubclass(made, TException), _fields(made)]
        elif hasattr(made, "thrift_services"):
            services[name] = {
                method: [_fields(getattr(made, f"{method}_{part}")) for part in ("args", "result")]
                for method in made.thrift_services
            }
    parts = {"enums": enums, "structs": structs, "services": services}
    lines = [f"{json.dumps(name)}: {_block(part)}" for name, part in parts.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _block(part: dict[str, Any]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in part.items()) + "\n}"


def _fields(struct: Any) -> list[list[Any]]:
    """Return [number, name, type, default] of each field."""
    defaults = dict(struct.default_spec)
    return [
        [number, spec[1], _type(spec[0] if len(spec) == 3 else (spec[0], spec[2])), defaults[spec[1]]]
        for number, spec in struct.thrift_spec.items()
    ]


def _type(given: Any) -> Any:
    """Return a type as JSON: its number, or a list of that with what it holds."""
    if isinstance(given, tuple):
        return [_type(one) for one in given]
    return given.__name__ if isinstance(given, type) else given


if __name__ == "__main__":
    sys.exit(main())
