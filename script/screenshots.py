#!/usr/bin/env python3
"""Makes the pictures of docs/run/console.md: script/screenshots.py [FOLDER]

Runs a private cluster with work for it, and a console, and opens pages in chromium (`script/setup test` has all of it).
Run it after a change of the pages, and look at the pictures before they are committed.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from foqs.client import Client, ItemSpec

ROOT = Path(__file__).parent.parent
NAMESPACE = "shop"
WORK_S = 90
PICTURES = {
    "overview": ("/", 1280, 1010, "light"),
    "items": ("/items?topic=mail", 1280, 760, "light"),
    "dead": ("/dead?topic=mail.dlq", 1440, 640, "dark"),
    "hosts": ("/hosts", 1280, 820, "light"),
}
"""By name: the page, its width and height, and the colours."""
SETTINGS = {
    "topic.mail": {
        "max_attempts": 3,
        "retry": {"kind": "constant", "first_ms": 2_000},
        "fair": {"weights": {"acme": 3}},
    },
    "topic.newsletter": {"paused": True},
    "throttle.smtp": {"per_second": 4, "burst": 4},
    "throttle.gpu": {"concurrency": 2},
    "schedule.nightly": {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "topic": "report"},
}
REASONS = ("SMTP 451: mailbox busy", "TimeoutError: no answer within 5 s", "KeyError: 'order_id' of order 4711")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    foqs = [sys.executable, "-m", "foqs"]
    with subprocess.Popen([*foqs, "cluster", "up", "--shards", "6"], stdout=subprocess.PIPE, text=True) as cluster:
        try:
            address, config = _cluster(cluster)
            _work(address)
            console = [*foqs, "console", "--address", address, "--config", config, "--port", "0"]
            with subprocess.Popen(console, stdout=subprocess.PIPE, text=True) as serving:
                assert serving.stdout is not None
                url = serving.stdout.readline().split()[-1]
                for name, (path, width, height, colours) in PICTURES.items():
                    _picture(f"{url}{path}", folder / f"console-{name}.png", width, height, colours)
                serving.terminate()
        finally:
            cluster.terminate()


def _cluster(cluster: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the addresses of the hosts, and the file of the configuration."""
    address = ""
    assert cluster.stdout is not None
    for line in cluster.stdout:
        if found := re.search(r"FOQS_ADDRESS=(\S+)", line):
            address = found[1]
        if found := re.search(r"--config (\S+)", line):
            return address, found[1]
    raise SystemExit("the cluster did not start")


def _work(address: str) -> None:
    """Let producers and consumers work for a while."""
    rng = random.Random(5)
    with Client(address, NAMESPACE) as client:
        client.put_settings({key: json.dumps(value) for key, value in SETTINGS.items()})
        until_s = time.monotonic() + WORK_S
        while time.monotonic() < until_s:
            client.enqueue_many([_spec(rng) for _ in range(rng.randrange(40, 60))])
            for topic in ("mail", "resize", "export"):
                worker = f"worker-{rng.randrange(4)}:{topic}"
                for item in client.dequeue(topic, count=14, worker=worker, lease_ms=600_000):
                    chance = rng.random()
                    if chance < 0.8:
                        client.ack(item)
                    elif chance < 0.95:
                        reason = rng.choice(REASONS)
                        lost = reason.startswith("KeyError") or rng.random() < 0.2
                        client.nack(item, failed=not lost, reject=lost, reason=reason)
            time.sleep(0.5)


def _spec(rng: random.Random) -> ItemSpec:
    topic = rng.choice(["mail", "mail", "resize", "export", "newsletter"])
    return ItemSpec(
        topic,
        json.dumps({"order": rng.randrange(10_000)}).encode(),
        priority=rng.choice([-5, 0, 0, 0, 5]),
        headers={"kind": rng.choice(["welcome", "invoice", "reminder"])},
        fairness_key=rng.choice(["acme", "globex", "initech"]),
        throttle_keys={"mail": ["smtp"], "export": ["gpu"]}.get(topic),
        delay_ms=1_800_000 if rng.random() < 0.1 else None,
    )


def _picture(url: str, file: Path, width: int, height: int, colours: str) -> None:
    with tempfile.TemporaryDirectory() as profile:
        options = [
            "--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", f"--user-data-dir={profile}",
            f"--window-size={width},{height}", f"--screenshot={file}",
            *(["--blink-settings=preferredColorScheme=0"] if colours == "dark" else []),
        ]  # fmt: skip
        separator = "&" if "?" in url else "?"
        subprocess.run(
            ["chromium", *options, f"{url}{separator}ns={NAMESPACE}"], check=True, capture_output=True, timeout=60
        )
    print(file)


if __name__ == "__main__":
    main()
