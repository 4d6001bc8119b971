"""Two servers and a name that leads to one of them, as in a planned switch of the primary."""

from __future__ import annotations

from sqlalchemy.engine import make_url

from foqs.store.maintenance import create_schema
from foqs_lab.relay import Relay
from foqs_lab.servers import Kind
from tests.conftest import NewServer, Server
from tests.store.copies import dump, restore
from tests.store.shards import NUMBER

RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX"


class Primaries:
    """`url` leads to the old primary until `switch`. The account of the URL is not an administrator's."""

    def __init__(self, kind: Kind, new_server: NewServer, *, number: int = NUMBER, driver: str = "pymysql") -> None:
        self.old: Server = new_server(kind)
        self.new: Server = new_server(kind)
        self.number = number
        for server in (self.old, self.new):
            server.create_database("shard")
            server.query("CREATE USER worker@'127.0.0.1' IDENTIFIED BY ''")
            server.query(f"GRANT {RIGHTS} ON shard.* TO worker@'127.0.0.1'")
        self.relay = Relay(self.old.port)
        url = make_url(self.old.url("shard", driver=driver)).set(port=self.relay.port)
        self.root_url = url.render_as_string(hide_password=False)
        self.url = url.set(username="worker").render_as_string(hide_password=False)
        create_schema(self.old.url("shard"), number)

    def close_old(self) -> None:
        """The old primary stays alive, and takes no writes any more."""
        self.old.query("SET GLOBAL read_only = 1")

    def copy(self) -> None:
        """The new server catches up, as a replica does."""
        create_schema(self.new.url("shard"), self.number)
        restore(self.new.url("shard"), dump(self.old.url("shard")))

    def switch(self) -> None:
        """Copy, then let the name lead to the new primary."""
        self.copy()
        self.relay.lead_to(self.new.port)

    def connections(self, server: Server) -> int:
        """Return the number of connections that the account has."""
        ((count,),) = server.query("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'worker'")
        return int(count)

    def close(self) -> None:
        self.relay.close()
