"""Map kazoo's errors to those of the protocol."""

from __future__ import annotations

from collections.abc import Iterable

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    ZookeeperError,
)

from foqs.zk.protocol import ZkConflict, ZkError, ZkRefused, ZkUnknown

CONFLICTS = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
# A failed authentication ends the connection; one without the rights is refused with NoAuthError.
LOST = (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)


def mapped(error: Exception) -> ZkError:
    """Map an error. The text is only the kind of error: the written data may hold a shard's URL."""
    kind = type(error).__name__
    if isinstance(error, ZkError):
        return error
    if isinstance(error, CONFLICTS):
        return ZkConflict(kind)
    if isinstance(error, ZookeeperError) and not isinstance(error, LOST):
        return ZkRefused(f"ZooKeeper refuses it: {kind}")
    return ZkUnknown(kind)


def first_failure(results: Iterable[object]) -> Exception | None:
    """Return the reason why a transaction failed; None if it succeeded. Steps that would have succeeded also have an
    error."""
    failures = [result for result in results if isinstance(result, KazooException)]
    reasons = [failure for failure in failures if not isinstance(failure, RolledBackError | RuntimeInconsistency)]
    return next(iter(reasons or failures), None)
