"""What torchrun does, again and again in one process: its agent starts functions, forked from a server that has imported torch.

    python -m tests.support.torchrun MODULE ...     # modules that the server imports

A line of JSON on stdin is a job: {"world", "restarts", "function", "arguments"}; the answer on stdout says how it ended.
torchrun's agent starts the processes, and starts all of them again when one has died. The environment is the one that
docs/many-processes.md asks for.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import uuid
from typing import Any

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_PRELOADED = ["torch", "torch._dynamo"]


def call(function: str, arguments: dict[str, Any]) -> None:
    """Call a function in a process of its own, with the number of this start."""
    import torch

    torch.set_num_threads(1)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    module, _, name = function.rpartition(".")
    getattr(importlib.import_module(module), name)(attempt=attempt, **arguments)


def together(job: dict[str, Any]) -> str:
    """Run a job in processes that torchrun's agent starts; says what went wrong."""
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
        elastic_launch(config, call)(job["function"], job["arguments"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(modules: list[str]) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the processes print goes where their errors go
    multiprocessing.get_context("forkserver").set_forkserver_preload([*_PRELOADED, *modules])
    for line in sys.stdin:
        job = json.loads(line)
        failure = together(job)
        print(json.dumps({"failure": failure}), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
