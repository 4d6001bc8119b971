"""Mail that is sent exactly if the transaction of its order commits.

python -m examples.outbox ada@example.org
foqs outbox relay sqlite:///shop.sqlite3
foqs worker examples.outbox:app
"""

import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from foqs import App
from foqs.outbox import Outbox


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]


app = App.from_env()
outbox = Outbox(Base.metadata)  # a table, which the relay reads
engine = create_engine("sqlite:///shop.sqlite3")


@app.task(topic="mail", max_attempts=5)
def thank(to: str) -> None:
    print(f"thanks: {to}")


if __name__ == "__main__":
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():  # an exception in here takes back both rows
        session.add(Order(email=sys.argv[1]))
        outbox.add(session, thank, sys.argv[1])
