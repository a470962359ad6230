"""What TranLogs costs, beside the floor of this machine, taken in pairs with the arms in turns: `make bench`.

    steps       a logged training step over a plain one: PyTorch loops, a GAN; in steady state
    trainers    the same in Hugging Face Trainer and Lightning
    keras       the same in Keras' fit: TensorFlow (graph, XLA), torch, JAX
    replay      a redone step over the bare optimizer step
    recovery    recovery over 100,000 small steps; `tranlogs status` and `tranlogs log --step` on that run
    disk        bytes on disk of a young and of a closed run
    checkpoint  stall of the training thread over a memcpy of the state; extra memory

Each part also runs alone (`python experiments/bench_steps.py`). Results go to experiments/results/bench.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from harness import Circumstances, command_line, write_results

PARTS = ("steps", "trainers", "keras", "replay", "recovery", "disk", "checkpoint")


def main() -> None:
    parser = command_line(__doc__, "small models and few rounds: checks the scripts, not the claims", out="bench")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which parts (default: all)")
    arguments = parser.parse_args()
    begun = Circumstances()
    results = read_others(arguments.out) if arguments.parts else {}
    for part in arguments.parts or PARTS:
        print(f"== {part}", flush=True)
        start, alone = time.monotonic(), Circumstances()
        measure: Callable[..., dict[str, Any]] = import_module(f"bench_{part}").measure
        results[part] = measure(quick=arguments.quick) | {"seconds": round(time.monotonic() - start, 1)}
        if "circumstances" in results:
            results[part]["circumstances"] = alone.as_dict()
        print(f"   {results[part]['seconds']:.0f} s", flush=True)
        write_results(arguments.out, results, begun)


def read_others(path: Path) -> dict[str, Any]:
    """Return the results of an earlier run, of which some parts are taken anew; a part then has circumstances of its own."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


if __name__ == "__main__":
    main()
