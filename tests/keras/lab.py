"""Jobs in fresh processes with Keras on one backend; see `server`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SECONDS_MAX = 500.0
_SECONDS_TO_END = 20.0
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
        keras: folder of another Keras than that of the environment.
        compiled: folder for what JAX has compiled; other labs may use it, too.
    """

    def __init__(self, backend: str, folder: Path, keras: Path | None = None, compiled: Path | None = None) -> None:
        self.backend, self._folder, self._numbers = backend, folder, itertools.count()
        path = [str(keras)] if keras is not None else []
        path += [str(ROOT), str(ROOT / "integrations"), str(ROOT / "monitor")]
        environment = os.environ | THREADS
        environment |= {
            "KERAS_BACKEND": backend,
            "PYTHONPATH": os.pathsep.join(path),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "KERAS_HOME": str(folder),
            # What one job has compiled, the next one need not.
            "JAX_COMPILATION_CACHE_DIR": str(compiled or folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
        self._errors = (folder / "server.txt").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.keras.server"],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self.close()
            raise AssertionError((folder / "server.txt").read_text()[-3000:])

    def start(self, function: str, **arguments: Any) -> Job:
        """Begin a job: the name of a function in `scenario`, or of another module and a function in it, and its arguments."""
        result = self._folder / f"job-{next(self._numbers)}"
        name = function if "." in function else f"scenario.{function}"
        name = name if name.startswith("tests.") else f"tests.keras.{name}"
        settings = {name: value for name, value in os.environ.items() if name.startswith("TRANLOGS_")}  # of the present test
        job = {"function": name, "arguments": arguments, "result": str(result), "environment": settings}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Job(result)

    def start_first(self, function: str, **arguments: Any) -> Job:
        """Begin a job that others of the same code follow; on JAX wait for its end, since they need not compile anew then."""
        job = self.start(function, **arguments)
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

    def close(self) -> None:
        """No more jobs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it never came up
            self._process.stdin.write("\n")
            self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


class Labs:
    """Labs of all backends. Each is made when it is asked for first: that takes several seconds.

    Args:
        folder: for what their jobs print and return.
        compiled: see `Lab`.
    """

    def __init__(self, folder: Path, compiled: Path | None = None) -> None:
        self._folder, self._compiled, self._made = folder, compiled, dict[str, Lab]()

    def of(self, backend: str, keras: Path | None = None) -> Lab:
        """Return the lab of a backend, with the Keras of the environment or with that of a folder."""
        name = backend if keras is None else f"{backend}-{keras.name}"
        if name not in self._made:
            (self._folder / name).mkdir()
            self._made[name] = Lab(backend, self._folder / name, keras, self._compiled)
        return self._made[name]

    def close(self) -> None:
        """No more jobs."""
        for made in self._made.values():
            made.close()


def differences(right: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What of two outcomes differs, to the bit."""
    return [key for key in right.keys() | found.keys() if key not in right or key not in found or right[key] != found[key]]
