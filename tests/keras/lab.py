"""Jobs in fresh processes with Keras on one backend; see `server`."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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
from contextlib import redirect_stderr, redirect_stdout
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
        settings = {name: value for name, value in os.environ.items() if name.startswith("TRANLOGS_")}  # of the present test
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
