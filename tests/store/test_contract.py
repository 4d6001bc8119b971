"""The store's contract on SQLite, MariaDB and MySQL."""

from tests.store.contract import StoreContract


class TestSqlStore(StoreContract):
    pass
