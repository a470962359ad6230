"""What it takes to put objects into a store and to get them back: Alluxio by write type, and a folder for comparison.

    python experiments/bench_store.py [--url alluxio://HOST:39999] [--quick] [--out FILE]

Without --url a cluster is started on this machine (JDK 17 and Maven). Rates are those of one thread. `durable` is the time from
the end of a put until the store calls the object durable.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from measuring import quartiles, seconds

from tranlogs.store import Store, open_store
from tranlogs.store.alluxio import AlluxioStore

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
WRITE_TYPES = ("ASYNC_THROUGH", "CACHE_THROUGH", "THROUGH")
ROOT = Path(__file__).resolve().parent.parent


def measure(url: str, folder: str, *, quick: bool = False) -> list[dict[str, Any]]:
    """A row for each store and size."""
    rows = []
    for name, make in stores(url, folder):
        with make() as store:
            _turns(store, SIZES[3], 2 if quick else 12)  # servers that compile as they run
            for nbytes in SIZES:
                rows.append({"store": name, "bytes": nbytes, **_turns(store, nbytes, 2 if quick else _count(nbytes))})
                print(_line(rows[-1]), flush=True)
    return rows


def stores(url: str, folder: str) -> Iterator[tuple[str, Callable[[], Store]]]:
    """What is compared."""
    yield "folder", lambda: open_store(folder)
    parts = urlsplit(url)
    host, port, root = parts.hostname or "", parts.port or 0, f"{parts.path}/bench-{secrets.token_hex(4)}"
    for kind in WRITE_TYPES:
        yield f"alluxio {kind}", lambda kind=kind: AlluxioStore(host, port, root, write_type=kind)
    yield "alluxio ASYNC_THROUGH, 2 copies", lambda: AlluxioStore(host, port, root, copies=2)


def _count(nbytes: int) -> int:
    return max(6, min(30, 256 * MIB // nbytes))


def _turns(store: Store, nbytes: int, count: int) -> dict[str, Any]:
    content = os.urandom(nbytes)
    taken: dict[str, list[float]] = {"put": [], "get": [], "durable": []}
    for _ in range(count):
        name = f"{secrets.token_hex(8)}"
        taken["put"].append(seconds(lambda name=name: store.put(name, io.BytesIO(content), nbytes)))
        taken["durable"].append(seconds(lambda name=name: _wait_durable(store, name)))
        into = io.BytesIO()
        taken["get"].append(seconds(lambda name=name, into=into: store.get(name, into)))
        assert into.getvalue() == content
        store.delete(name)
    return {name: dict(zip(("q25", "median", "q75"), quartiles(values), strict=True)) for name, values in taken.items()}


def _wait_durable(store: Store, name: str) -> None:
    while True:
        status = store.stat(name)
        assert status is not None
        if status.is_durable:
            return
        time.sleep(0.02)


def _line(row: dict[str, Any]) -> str:
    nbytes, (put, get, durable) = row["bytes"], (row[name]["median"] for name in ("put", "get", "durable"))
    return (f"  {row['store']:32s} {nbytes / MIB:8.2f} MiB   put {put * 1000:8.1f} ms {nbytes / MIB / put:7.1f} MiB/s   "
            f"get {get * 1000:8.1f} ms {nbytes / MIB / get:7.1f} MiB/s   durable {durable * 1000:8.0f} ms")  # fmt: skip


@contextmanager
def cluster() -> Iterator[str]:
    """A cluster of this script's own; its URL."""
    command = [sys.executable, "-m", "tests.alluxio.cluster", "--free-ports"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a cluster that runs")
    parser.add_argument("--quick", action="store_true", help="few rounds: checks the script, not the claim")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "store.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR")) as folder:
        if arguments.url:
            rows = measure(arguments.url, folder, quick=arguments.quick)
        else:
            with cluster() as url:
                rows = measure(url, folder, quick=arguments.quick)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"cpus": os.cpu_count(), "rows": rows}, indent=1))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
