"""An owner in a process of its own, to be frozen: `python -m tests.store.owner_process URL NUMBER idle|open`.

Prints `ready` when it holds the shard (`open`: inside a transaction that passed the fence and inserted item 5), then
waits for a line on stdin, goes on with a transaction that inserts item 6 or with COMMIT, and prints the outcome.
"""

import sys

from foqs.rows import Batch
from foqs.store.protocol import Fenced, StoreDown
from foqs.store.sql import SqlStore
from tests.store.row_contract import LANE
from tests.store.shards import new_item, send_commit_apart


def main(url: str, number: str, what: str) -> None:
    store = SqlStore(url, shard=int(number))
    store.open("frozen", take_over=False)
    link = store._link
    assert link is not None
    if what == "open":
        send_commit_apart(store)
        batch = Batch(lanes_new=[LANE], inserts=[new_item(5)])
        plan = store._planner.plan(store._epoch, link.id, store._seq + 1, 10, batch)
        assert list(link.run(plan.texts))[1] == 1
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        if what == "open":
            link.execute("COMMIT")
        else:
            store.commit(Batch(lanes_new=[LANE], inserts=[new_item(6)], next_number=10))
    except (StoreDown, Fenced, *store._errors.error) as error:
        print(type(error).__name__, flush=True)
    else:
        print("committed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
