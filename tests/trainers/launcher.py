"""Trains with a trainer again and again: processes are forked from a server that has imported what the first job names.

A line of JSON on stdin is a job: {"world", "restarts", "function", "arguments", "out"}; the answer on stdout says how it
ended. One process alone is started again by hand; several are started, and started again, by torchrun's agent.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_PRELOADED = {
    "huggingface": ["torch", "torch._dynamo", "transformers", "transformers.models.gpt2.modeling_gpt2", "accelerate"],
    "accelerate": ["torch", "torch._dynamo", "accelerate"],
    "lightning": ["torch", "torch._dynamo", "lightning.pytorch"],
}


def entry(function: str, attempt: int | None, arguments: dict[str, Any], out: str) -> None:
    """A process that trains; what it came to is written down, by rank."""
    import torch

    torch.set_num_threads(1)
    if attempt is None:
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    module, _, name = function.rpartition(".")
    found = getattr(importlib.import_module(module), name)(attempt=attempt, **arguments)
    Path(f"{out}.{os.environ.get('RANK', '0')}").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def alone(job: dict[str, Any]) -> str:
    """Run a job in one process, and again as often as it is killed; says what went wrong."""
    for attempt in range(job["restarts"] + 1):
        process = multiprocessing.get_context("forkserver").Process(
            target=entry, args=(job["function"], attempt, job["arguments"], job["out"])
        )
        process.start()
        process.join()
        if process.exitcode == 0:
            return "" if attempt == job["restarts"] else f"killed {attempt} times, not {job['restarts']}"
        if process.exitcode != -signal.SIGKILL:
            return f"exit code {process.exitcode}"
    return "killed once too often"


def coordinator(job: dict[str, Any]) -> str:
    """Run a job in several processes, as torchrun does; says what went wrong."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job["world"],
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=job["restarts"],
        monitor_interval=0.05,
        start_method="forkserver",
    )
    try:
        elastic_launch(config, entry)(job["function"], None, job["arguments"], job["out"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(framework: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the processes print goes where their errors go
    child = f"tests.trainers.{framework}_child"
    multiprocessing.get_context("forkserver").set_forkserver_preload([*_PRELOADED[framework], child])
    for line in sys.stdin:
        job = json.loads(line)
        failure = alone(job) if job["world"] == 1 else coordinator(job)
        print(json.dumps({"failure": failure}), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
