"""The Thrift contract as Python classes, loaded from `thrift/foqs.thrift`.

`idl` is the module thriftpy2 makes of the IDL: `idl.Item`, `idl.EnqueueRequest`, `idl.Foqs`, ...
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import thriftpy2

_HERE = Path(__file__).resolve().parent
# A wheel carries the IDL inside the package; a checkout keeps it beside the package.
_CANDIDATES = (_HERE / "thrift" / "foqs.thrift", _HERE.parent / "thrift" / "foqs.thrift")

IDL_PATH = next(path for path in _CANDIDATES if path.is_file())
idl: Any = thriftpy2.load(str(IDL_PATH), module_name="foqs_thrift")
