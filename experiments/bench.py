"""The figures that the project is judged by, each a ratio taken in one run on the same work: `make bench`.

    overhead    a training step with logging over one without, beside torch.save and DCP async_save at every step
    append      bandwidth of the log over a memcpy of the same bytes
    replay      a redone step over a computed one, and over the bare optimizer step
    checkpoint  stall of the training thread over a memcpy of the state; extra memory
    recovery    time and memory of recovery over the length of the log; what a small model's step costs, part by part

Each part also runs alone (`python experiments/bench_overhead.py`). Results go to experiments/results/bench.json.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import bench_append
import bench_checkpoint
import bench_overhead
import bench_recovery
import bench_replay
import torch
from circumstances import Circumstances, write_results

PARTS = {
    "overhead": bench_overhead.measure,
    "append": bench_append.measure,
    "replay": bench_replay.measure,
    "checkpoint": bench_checkpoint.measure,
    "recovery": bench_recovery.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which parts (default: all)")
    parser.add_argument("--quick", action="store_true", help="a small model and few rounds: checks the script, not the claim")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "bench.json")
    arguments = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    begun = Circumstances()
    results: dict[str, Any] = {}
    for part in arguments.parts or PARTS:
        print(f"== {part}", flush=True)
        results[part] = PARTS[part](quick=arguments.quick)
    write_results(arguments.out, results, begun)


if __name__ == "__main__":
    main()
