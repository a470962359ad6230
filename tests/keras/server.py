"""A process that has Keras imported and forks for every job, so that each is a fresh process in a second, not in ten.

Keras computes nothing here: neither TensorFlow's nor JAX's runtime has begun when a job is forked off.

    python -m tests.keras.server ADDRESS LOCK

It listens at an abstract Unix socket, from when this command has ended with status 0. All processes of the tests connect to
it. Jobs are lines of JSON: {"function", "arguments", "result", "environment"}; how each ended is written to `result`. An empty
line is the end of a connection: that of the stream might never come, since whatever the tests fork holds a copy of its other
side. The server ends with its last connection. Who connects holds the lock, so that nobody connects to a server that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import pickle
import socket
import sys
import traceback
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from tests.support.huge_pages import collapse_memory

_SECONDS_WITHOUT_CONNECTION = 60.0
# What jobs come to need in any case. Keras imports TensorFlow whatever it runs on, to seed it; its LLVM and Triton's get on in
# one order only.
_MODULES = {
    "tensorflow": (
        "tensorflow",
        "tensorflow.python.data.ops.concatenate_op",
        "tensorflow.python.data.ops.flat_map_op",
        "tensorflow.python.data.ops.from_tensors_op",
        "tensorflow.python.data.ops.range_op",
        "tensorflow.python.data.ops.zip_op",
    ),
    "torch": ("torch", "torch._dynamo", "tensorflow", "keras.src.backend.torch.optimizers.torch_parallel_optimizer"),
    "jax": ("jax", "tensorflow", "jaxlib.mlir.dialects.mhlo"),
}
# What Keras and TensorFlow import where it is installed, and no job needs: half of the time that a server takes to start.
_LEFT_OUT = ("jax", "matplotlib", "sklearn")
_MODULES_OF_TESTS = ("tests.keras.fits", "tests.keras.inside", "tests.kills.keras")


def serve(address: str, lock: str) -> None:
    """Begin to listen, and go on in a process of its own."""
    backend = os.environ["KERAS_BACKEND"]
    left_out = dict.fromkeys({*_LEFT_OUT} - {backend})
    sys.modules.update(left_out)  # type: ignore[arg-type]  # as if they were not installed
    for module in (*_MODULES[backend], f"tranlogs_keras.backends.{backend}", *_MODULES_OF_TESTS):
        importlib.import_module(module)
    for name in left_out:  # a job can have them
        del sys.modules[name]
    if backend == "tensorflow":
        importlib.import_module("sklearn.datasets")  # of the examples
    importlib.import_module("tests.keras.data").digits()  # read once
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address_of(address))
    listener.listen(64)
    if os.fork() == 0:
        os.setsid()
        gc.freeze()  # jobs would look through half a million objects that are not theirs, and copy the pages where these lie
        collapse_memory()
        _Server(listener, Path(lock)).run()
    os._exit(0)


def address_of(name: str) -> str:
    """Return an address that is no file: it is free again when its process ends, and has no place that could be too long."""
    return f"\0{name}"


class _Server:
    def __init__(self, listener: socket.socket, lock: Path) -> None:
        self._listener, self._lock, self._selector = listener, lock, DefaultSelector()
        self._connections: dict[socket.socket, bytes] = {}  # and what came of a line that is not complete
        self._jobs: dict[int, tuple[int, Path]] = {}  # by descriptor of the process: its id, and the file of its end

    def run(self) -> None:
        self._selector.register(self._listener, EVENT_READ, self._accept)
        seconds: float | None = _SECONDS_WITHOUT_CONNECTION
        while ready := self._selector.select(seconds):
            for key, _ in ready:
                key.data(key.fileobj)
            if self._connections:
                seconds = None
            elif seconds is None and self._ends():
                return

    def _ends(self) -> bool:
        with self._lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._selector.select(0):
                return False
            self._listener.close()
            return True

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._connections[connection] = b""
        self._selector.register(connection, EVENT_READ, self._read)

    def _read(self, connection: socket.socket) -> None:
        received = b""
        with contextlib.suppress(ConnectionResetError):  # its process was killed
            received = connection.recv(1 << 16)
        *lines, rest = (self._connections[connection] + received).split(b"\n")
        self._connections[connection] = rest
        for line in lines:
            if line:
                self._start(json.loads(line))
        if not received or b"" in lines:
            self._selector.unregister(connection)
            del self._connections[connection]
            connection.close()

    def _start(self, job: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            self._selector.close()
            for held in (self._listener, *self._connections):
                held.close()
            for descriptor in self._jobs:
                os.close(descriptor)
            _run(job, Path(job["result"]))
        descriptor = os.pidfd_open(pid)
        self._jobs[descriptor] = pid, Path(job["result"])
        self._selector.register(descriptor, EVENT_READ, self._note_end)

    def _note_end(self, descriptor: int) -> None:
        pid, result = self._jobs.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
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
    importlib.import_module("tests.keras.server").serve(*sys.argv[1:])  # by its name, so that it is known as no script's
