"""A transactional outbox: items that the application stores in its own database transaction, and a relay that enqueues
them (`foqs outbox relay`)."""

from foqs.extras import missing

try:
    import sqlalchemy as _needed  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing("SQLAlchemy, which foqs.outbox needs,", "outbox"), name=error.name) from error

from foqs.outbox.table import Outbox

__all__ = ["Outbox"]
