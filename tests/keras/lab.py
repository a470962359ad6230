"""Jobs in fresh processes with Keras on one backend, each forked off a server that has Keras imported: in a second, not in ten.

Keras computes nothing in the server: neither TensorFlow's nor JAX's runtime has begun when a job is forked off.

    python -m tests.keras.lab ADDRESS LOCK

It listens at an abstract Unix socket, from when this command has ended with status 0. All processes of the tests connect to
it. Jobs are lines of JSON: {"function", "arguments", "result", "environment"}; how each ended is written to `result`. An empty
line is the end of a connection: that of the stream might never come, since whatever the tests fork holds a copy of its other
side. The server ends with its last connection. Who connects holds the lock, so that nobody connects to a server that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import importlib
import io
import itertools
import json
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from tests.support.huge_pages import collapse_memory

ROOT = Path(__file__).resolve().parents[2]
_SECONDS_MAX = 500.0
THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}  # of every job
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


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended.

    Attributes:
        code: its exit status; the negative of the signal that killed it.
        value: what the function returned.
        output: what it printed.
    """

    code: int
    value: Any
    output: str

    @property
    def was_killed(self) -> bool:
        """By SIGKILL."""
        return self.code == -signal.SIGKILL


class Job:
    """A job that runs."""

    def __init__(self, result: Path) -> None:
        self._result = result

    def wait(self) -> Ended:
        """Until it has ended."""
        deadline = time.monotonic() + _SECONDS_MAX
        while not self._result.exists():
            assert time.monotonic() < deadline, f"no end in {_SECONDS_MAX} s: {self._output()[-3000:]}"
            time.sleep(0.01)
        value = self._result.with_suffix(".pickle")
        return Ended(
            int(self._result.read_text()), pickle.loads(value.read_bytes()) if value.exists() else None, self._output()
        )

    def _output(self) -> str:
        path = self._result.with_suffix(".txt")
        return path.read_text(errors="replace") if path.exists() else ""


class Lab:
    """Processes with Keras on a backend.

    Args:
        backend: of Keras.
        folder: for what jobs print and return.
        shared: folder of the server, and of what JAX has compiled, for all processes of the tests.
        keras: folder of another Keras than that of the environment.
    """

    def __init__(self, backend: str, folder: Path, shared: Path, keras: Path | None = None) -> None:
        self.backend, self._folder, self._numbers = backend, folder, itertools.count()
        self._connection = socket.socket(socket.AF_UNIX)
        self.name = name = backend if keras is None else f"{backend}-{keras.name}"
        address = f"tranlogs/{hashlib.sha256(str(shared).encode()).hexdigest()[:16]}/{name}"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the first process of the tests starts the server
            try:
                self._connection.connect(address_of(address))
            except ConnectionRefusedError:
                _start_server(address, shared / name, _environment(backend, shared, keras))
                self._connection.connect(address_of(address))

    def start(self, function: str, **arguments: Any) -> Job:
        """Begin a job: the name of a module of tests.keras and of a function in it, and its arguments."""
        result = self._folder / f"job-{next(self._numbers)}"
        name = function if function.startswith("tests.") else f"tests.keras.{function}"
        # Of the present test:
        settings = {name: value for name, value in os.environ.items() if name.startswith(("TRANLOGS_", "XLA_"))}
        job = {"function": name, "arguments": arguments, "result": str(result), "environment": settings}
        self._connection.sendall(json.dumps(job).encode() + b"\n")
        return Job(result)

    def run(self, function: str, **arguments: Any) -> Ended:
        """A job, to its end."""
        return self.start(function, **arguments).wait()

    def value(self, function: str, **arguments: Any) -> Any:
        """What a job returns; it must not fail."""
        ended = self.run(function, **arguments)
        assert ended.code == 0, ended.output[-6000:]
        return ended.value

    def call(self, *arguments: object) -> tuple[int, str, str]:
        """Return the exit code of `tranlogs` with these arguments, and what it printed on stdout and on stderr.

        It runs in a job: Keras is imported there already, which takes a process of its own several seconds.
        """
        code, out, err = self.value("lab.run_tranlogs", words=[str(argument) for argument in arguments])
        return code, out, err

    def ask(self, *arguments: object) -> dict[str, Any]:
        """Return what `tranlogs ... --json` says; it must not fail."""
        code, out, err = self.call(*arguments, "--json")
        assert code == 0, err[-3000:]
        found: dict[str, Any] = json.loads(out)
        return found

    def close(self) -> None:
        """No more jobs."""
        with contextlib.suppress(BrokenPipeError):  # the server has failed
            self._connection.sendall(b"\n")
        self._connection.close()


def _environment(backend: str, shared: Path, keras: Path | None) -> dict[str, str]:
    path = [str(keras)] if keras is not None else []
    path += [str(ROOT), str(ROOT / "integrations"), str(ROOT / "monitor")]
    return (
        os.environ
        | THREADS
        | {
            "KERAS_BACKEND": backend,
            "PYTHONPATH": os.pathsep.join(path),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "KERAS_HOME": str(shared),
            # What one job has compiled, the next one need not.
            "JAX_COMPILATION_CACHE_DIR": str(shared / "compiled-by-jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
    )


def _start_server(address: str, path: Path, environment: dict[str, str]) -> None:
    output = path.with_name(f"{path.name}.txt")
    with output.open("w") as file:
        command = [sys.executable, "-m", "tests.keras.lab", address, f"{path}.lock"]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    assert done.returncode == 0, output.read_text()[-3000:]


class Labs:
    """Labs of all backends. Each is made when it is asked for first; a server takes several seconds to start.

    Args:
        folder: for what their jobs print and return.
        shared: see `Lab`.
    """

    def __init__(self, folder: Path, shared: Path) -> None:
        self._folder, self.shared, self._made = folder, shared, dict[str, Lab]()

    def of(self, backend: str, keras: Path | None = None) -> Lab:
        """Return the lab of a backend, with the Keras of the environment or with that of a folder."""
        name = backend if keras is None else f"{backend}-{keras.name}"
        if name not in self._made:
            (self._folder / name).mkdir()
            self._made[name] = Lab(backend, self._folder / name, self.shared, keras)
        return self._made[name]

    def close(self) -> None:
        """No more jobs."""
        for made in self._made.values():
            made.close()


def run_tranlogs(words: list[str]) -> tuple[int, str, str]:
    """Run `tranlogs` in this process."""
    from tranlogs.cli import main

    code: int | str | None = 0
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            main(words)
        except SystemExit as end:
            code = end.code
    return int(code or 0), out.getvalue(), err.getvalue()


def run_script(file: str) -> None:
    """Run a script in its own folder, as `python FILE` does."""
    os.chdir(Path(file).parent)
    runpy.run_path(file, run_name="__main__")


# The server.


def serve(address: str, lock: str) -> None:
    """Begin to listen, and go on in a process of its own."""
    backend = os.environ["KERAS_BACKEND"]
    left_out = dict.fromkeys({*_LEFT_OUT} - {backend})
    sys.modules.update(left_out)  # type: ignore[arg-type]  # as if they were not installed
    for module in (*_MODULES[backend], f"tranlogs_keras.backends.{backend}", *_MODULES_OF_TESTS):
        importlib.import_module(module)
    for name in left_out:  # a job can have them
        del sys.modules[name]
    if backend == "torch":
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
    importlib.import_module("tests.keras.lab").serve(*sys.argv[1:])  # by its name, so that it is known as no script's
