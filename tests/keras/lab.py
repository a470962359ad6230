"""Jobs in fresh processes with Keras on one backend; see `server`."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.keras.server import address_of

ROOT = Path(__file__).resolve().parents[2]
_SECONDS_MAX = 500.0
THREADS = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}  # of every job


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
        shared: folder of the server, of twins, and of what JAX has compiled, for all processes of the tests.
        keras: folder of another Keras than that of the environment.
    """

    def __init__(self, backend: str, folder: Path, shared: Path, keras: Path | None = None) -> None:
        self.backend, self._folder, self._numbers = backend, folder, itertools.count()
        self._connection = socket.socket(socket.AF_UNIX)
        name = backend if keras is None else f"{backend}-{keras.name}"
        self._twins = shared / f"{name}-twins"
        address = f"tranlogs/{hashlib.sha256(str(shared).encode()).hexdigest()[:16]}/{name}"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the first process of the tests starts the server
            try:
                self._connection.connect(address_of(address))
            except ConnectionRefusedError:
                _start_server(address, shared / name, _environment(backend, shared, keras))
                self._connection.connect(address_of(address))

    def start(self, function: str, **arguments: Any) -> Job:
        """Begin a job: the name of a function in `scenario`, or of another module and a function in it, and its arguments."""
        return self._start(self._folder / f"job-{next(self._numbers)}", function, arguments)

    def start_twin(self, function: str, **arguments: Any) -> Job:
        """Begin a job of which nothing is wanted but its result, or return the one with these arguments that began before.

        Its run, which nobody kills, is in a folder of its own. Tests that compare with the same twin share it.
        """
        about = json.dumps([function, arguments, _settings()], sort_keys=True)
        folder = self._twins / hashlib.sha256(about.encode()).hexdigest()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            job = Job(folder / "job")
        else:
            job = self._start(folder / "job", function, {"run": str(folder / "run"), **arguments})
        return self._waited_for(job)

    def _start(self, result: Path, function: str, arguments: dict[str, Any]) -> Job:
        name = function if "." in function else f"scenario.{function}"
        name = name if name.startswith("tests.") else f"tests.keras.{name}"
        job = {"function": name, "arguments": arguments, "result": str(result), "environment": _settings()}
        self._connection.sendall(json.dumps(job).encode() + b"\n")
        return Job(result)

    def start_first(self, function: str, **arguments: Any) -> Job:
        """Begin a job that others of the same code follow; on JAX wait for its end, since they need not compile anew then."""
        return self._waited_for(self.start(function, **arguments))

    def _waited_for(self, job: Job) -> Job:
        if self.backend == "jax":
            job.wait()
        return job

    def run(self, function: str, **arguments: Any) -> Ended:
        """A job, to its end."""
        return self.start(function, **arguments).wait()

    def value(self, function: str, **arguments: Any) -> Any:
        """What a job returns; it must not fail."""
        ended = self.run(function, **arguments)
        assert ended.code == 0, ended.output[-6000:]
        return ended.value

    def twin(self, function: str, **arguments: Any) -> Any:
        """What the twin with these arguments returns; it must not fail."""
        ended = self.start_twin(function, **arguments).wait()
        assert ended.code == 0, ended.output[-6000:]
        return ended.value

    def close(self) -> None:
        """No more jobs."""
        with contextlib.suppress(BrokenPipeError):  # the server has failed
            self._connection.sendall(b"\n")
        self._connection.close()


def _settings() -> dict[str, str]:
    """Return what the present test sets."""
    return {name: value for name, value in os.environ.items() if name.startswith("TRANLOGS_")}


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
        command = [sys.executable, "-m", "tests.keras.server", address, f"{path}.lock"]
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


def differences(right: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What of two outcomes differs, to the bit."""
    return [key for key in right.keys() | found.keys() if key not in right or key not in found or right[key] != found[key]]
