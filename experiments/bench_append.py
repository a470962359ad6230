"""Bandwidth of appending records to the log, over a memcpy of the same bytes, on fresh and on recycled segments."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from measuring import quartiles, shown, timed

from tranlogs import KeepLatest
from tranlogs.checkpoint import Snapshot
from tranlogs.config import JournalConfig
from tranlogs.journal import Journal
from tranlogs.log.layout import Payload
from tranlogs.types import dense


def measure(*, quick: bool = False) -> dict[str, Any]:
    """memcpy seconds over append seconds (1 = as fast as a memcpy), by durability and kind of file."""
    tensors = [np.random.default_rng(i).standard_normal(150_000).astype(np.float32) for i in range(8 if quick else 72)]
    found: dict[str, Any] = {"bytes_per_record": sum(t.nbytes for t in tensors)}
    for durability in ("process", "machine"):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR")) as folder:
            found[durability] = _run(Path(folder), tensors, durability, records=24 if quick else 96)
        for kind, values in found[durability].items():
            print(f"  {durability:8s} {kind:9s} append bandwidth over memcpy {values['shown']}")
    return found


def _run(folder: Path, tensors: list[Any], durability: Literal["process", "machine"], records: int) -> dict[str, Any]:
    config = JournalConfig(durability=durability, segment_bytes=64 << 20)
    journal = Journal.open(folder / "run", framework="none", config=config, retention=KeepLatest(1))
    target, arrays = [np.empty_like(t) for t in tensors], [dense(t) for t in tensors]
    ratios: dict[str, list[float]] = {"fresh": [], "recycled": []}
    for i in range(records):
        copy: list[float] = []
        append: list[float] = []
        with timed(copy):
            for a, b in zip(target, tensors, strict=True):
                np.copyto(a, b)
        with timed(append):
            journal.commit_step(journal.begin_step(Payload.of((f"grad/{k}", array) for k, array in enumerate(arrays))), {})
            journal.boundary({}, lambda: Snapshot({}, {}), checkpoint=i % 12 == 11)
        if i >= 2:
            ratios["fresh" if i < records // 3 else "recycled"].append(copy[0] / append[0])
        journal.wait_checkpoint()
    journal.close()
    return {
        kind: {
            "median": quartiles(values)[1],
            "q25": quartiles(values)[0],
            "q75": quartiles(values)[2],
            "shown": shown(values, 2),
        }
        for kind, values in ratios.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    measure(quick=parser.parse_args().quick)
