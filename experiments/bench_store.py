"""What stores cost, and what they are worth: Alluxio by write type, and a folder for comparison.

    python experiments/bench_store.py [PART...] [--url alluxio://HOST:39999] [--quick] [--out FILE]

    objects     putting an object of some size, getting it back, and until it is durable; rates are those of one thread
    training    several models: what shipping costs a step, when the log is there, how fast it comes back, recovery
    lag         steps between committed and archived, and persisted, while a model trains

Without --url a cluster is started on this machine (JDK 17 and Maven). The machine's load is written down beside each part.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from bench_store_picture import draw
from bench_store_training import WRITE_TYPES, measure_lag, measure_training
from harness import Circumstances, command_line, measured_folder, write_results
from measuring import quartiles, seconds

from tranlogs.stores import Content, Store, open_store
from tranlogs.stores.alluxio import AlluxioStore

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
ROOT = Path(__file__).resolve().parent.parent


PARTS = ("objects", "training", "lag")


def measure(parts: Sequence[str], url: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    """The results by part, and the machine's load at the beginning of each."""
    does = {"objects": measure_objects, "training": measure_training, "lag": measure_lag}
    found: dict[str, Any] = {"cpus": os.cpu_count(), "load": {}}
    for part in parts:
        found["load"][part] = os.getloadavg()
        print(f"== {part} (load {found['load'][part][0]:.1f})", flush=True)
        found[part] = does[part](url, folder, quick=quick)
    return found


def measure_objects(url: str, folder: Path, *, quick: bool) -> list[dict[str, Any]]:
    """A row for each store and size."""
    rows = []
    for name, make in stores(url, folder):
        with make() as store:
            _turns(store, SIZES[3], 2 if quick else 12)  # servers that compile as they run
            for nbytes in SIZES:
                rows.append({"store": name, "bytes": nbytes, **_turns(store, nbytes, 2 if quick else _count(nbytes))})
                print(_line(rows[-1]), flush=True)
    return rows


def stores(url: str, folder: Path) -> Iterator[tuple[str, Callable[[], Store]]]:
    """What is compared."""
    yield "folder", lambda: open_store(folder / "objects")
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
        taken["put"].append(seconds(lambda name=name: store.put(name, Content.of(content))))
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
    return (
        f"  {row['store']:32s} {nbytes / MIB:8.2f} MiB   put {put * 1000:8.1f} ms {nbytes / MIB / put:7.1f} MiB/s   "
        f"get {get * 1000:8.1f} ms {nbytes / MIB / get:7.1f} MiB/s   durable {durable * 1000:8.0f} ms"
    )


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
    parser = command_line(__doc__, "few rounds: checks the script, not the claim", out="store")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which parts (default: all)")
    parser.add_argument("--url", help="of a cluster that runs")
    arguments = parser.parse_args()
    begun = Circumstances()
    parts = arguments.parts or PARTS
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    place = measured_folder()
    with place as folder, nullcontext(arguments.url) if arguments.url else cluster() as url:
        results = measure(parts, url, Path(folder), quick=arguments.quick)
    if arguments.out.exists():  # parts that were not taken now stay, with the load they were taken under
        before = json.loads(arguments.out.read_text())
        results = {**before, **results, "load": {**before["load"], **results["load"]}}
        results.pop("circumstances")
    write_results(arguments.out, results, begun)
    if "training" in parts and "lag" in parts and not arguments.quick:
        draw(arguments.out.with_suffix(".png"), results)


if __name__ == "__main__":
    main()
