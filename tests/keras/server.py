"""A process that has Keras imported and forks for every job, so that each is a fresh process in a second, not in ten.

Keras computes nothing here: neither TensorFlow's nor JAX's runtime has begun when a job is forked off.
Jobs come as lines of JSON on stdin: {"function", "arguments", "result", "environment"}; how each ended is written to
`result`. An empty line is the end: that of stdin might never come, since whatever the tests fork holds a copy of its other
side.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any


def serve() -> None:
    """Fork for each line of stdin."""
    backend = os.environ["KERAS_BACKEND"]
    # Keras imports TensorFlow whatever it runs on, to seed it; its LLVM and Triton's get on in one order only.
    first = {"torch": ("torch", "torch._dynamo"), "jax": ("jax",)}.get(backend, ())
    for module in (*first, "tensorflow", "tests.keras.scenario"):
        importlib.import_module(module)
    gc.freeze()  # jobs would look through half a million objects that are not theirs, and copy the pages where these lie
    print("ready", flush=True)
    for line in sys.stdin:
        if not line.strip():
            return
        job = json.loads(line)
        if os.fork() == 0:  # waits for the job, so that the server need not
            os.setsid()
            _wait_for(job)
            os._exit(0)
        while True:  # those that are done
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


def _wait_for(job: dict[str, Any]) -> None:
    result = Path(job["result"])
    pid = os.fork()
    if pid == 0:
        _run(job, result)
    _, status = os.waitpid(pid, 0)
    temporary = result.with_suffix(".part")
    temporary.write_text(str(os.waitstatus_to_exitcode(status)))
    temporary.rename(result)


def _run(job: dict[str, Any], result: Path) -> None:
    output = os.open(result.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(job["environment"])
    code = 1
    try:
        module, _, name = job["function"].rpartition(".")
        value = getattr(importlib.import_module(module), name)(**job["arguments"])
        result.with_suffix(".pickle").write_bytes(pickle.dumps(value))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
