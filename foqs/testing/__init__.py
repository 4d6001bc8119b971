"""For tests of applications: a service in the process of the test, with a clock that the test moves."""

from foqs.extras import EXTRA_OF, missing

try:
    from foqs.testing.service import Dev, Server, dev, server
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in EXTRA_OF:
        raise
    raise ModuleNotFoundError(missing(f"the package {error.name}, which foqs.testing needs,", "testing")) from error

__all__ = ["Dev", "Server", "dev", "server"]
