"""What TranLogs costs, beside the floor of this machine, taken in pairs with the arms in turns: `make bench`.

    steps       a logged training step over a plain one: PyTorch loops, a GAN; in steady state
    trainers    the same in Hugging Face Trainer and Lightning
    keras       the same in Keras' fit: TensorFlow (graph, XLA), torch, JAX
    replay      a redone step over the bare optimizer step
    recovery    recovery over 100,000 small steps; `tranlogs status` and `tranlogs log --step` on that run
    disk        bytes on disk of a young and of a closed run
    checkpoint  stall of the training thread over a memcpy of the state; extra memory

`bench.py PART ...` takes some parts anew. Results go to experiments/results/bench.json.
"""

from __future__ import annotations

import json
import time
from importlib import import_module

from harness import Circumstances, command_line, write_results

MODULES = {
    "steps": "bench_steps",
    "trainers": "bench_trainers",
    "keras": "bench_trainers",
    "replay": "bench_recovery",
    "recovery": "bench_recovery",
    "disk": "bench_space",
    "checkpoint": "bench_space",
}


def main() -> None:
    parser = command_line(__doc__, "bench")
    parser.add_argument("parts", nargs="*", choices=[[], *MODULES], help="which parts (default: all)")
    arguments = parser.parse_args()
    begun = Circumstances()
    is_anew = arguments.parts and arguments.out.exists()
    results = json.loads(arguments.out.read_text()) if is_anew else {}
    for part in arguments.parts or MODULES:
        print(f"== {part}", flush=True)
        start, alone = time.monotonic(), Circumstances()
        results[part] = getattr(import_module(MODULES[part]), part)(quick=arguments.quick)
        if "circumstances" in results:
            results[part]["circumstances"] = alone.as_dict()
        print(f"   {time.monotonic() - start:.0f} s", flush=True)
        write_results(arguments.out, results, begun)


if __name__ == "__main__":
    main()
