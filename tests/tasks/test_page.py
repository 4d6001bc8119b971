"""Runs the code of docs/do/tasks.md as written, but for the address."""

import re
import time
from pathlib import Path

import pytest

from tests.client.peer import LATER, eventually

PAGE = (Path(__file__).parents[2] / "docs/do/tasks.md").read_text()


@pytest.mark.threads
@pytest.mark.filterwarnings("error")
def test_the_code_of_the_page(server, start):
    made, enqueue, *more = re.findall(r"^```python\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL)
    names = {"__name__": "page", "time": time}
    exec(made.replace("127.0.0.1:7707", server.address), names)
    app = names["app"]
    start(app)
    exec(enqueue, names)
    assert names["handle"].result(LATER) == "sent to ada@example.org"
    assert names["load"].enqueue(pages=3).result(LATER) == 3
    for code in more:
        exec(code.replace("s3://shop-bodies", "memory://bodies"), names)
    with app:
        start(app)
        assert names["handle"].result(LATER) == "a.png of 300"
        assert names["newsletter"].wait(LATER).counts.completed == 2
        assert names["first"].result(LATER) == "stored b.png"
        eventually(lambda: {"schedule.nightly", "schedule.poll"} == app.client.settings("schedule.").entries.keys())
