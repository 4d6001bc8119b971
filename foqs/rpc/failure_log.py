"""The log line of a handler that raised an exception: a fault in foqs."""

from __future__ import annotations

from typing import Any

import structlog

from foqs.idl import request_id_of, trace_of

log = structlog.get_logger("foqs.rpc")


def log_failure(method: str, error: Exception, request: Any) -> None:
    """Log an exception that a handler raised; the default `report` of a server."""
    request_id = None if request is None else request_id_of(request)
    trace = {} if request is None else trace_of(request.context)
    log.error("handler.failed", method=method, request_id=request_id, exc_info=error, **trace)
