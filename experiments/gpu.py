"""The GPU kit: is a run on a GPU brought back exactly, and what does its log cost there? One command of ten minutes.

    make gpu-wheels                                       where there is a network: fetches what a bare machine lacks
    pip install --no-index --no-deps --target SITE gpu-wheels/*.whl
    PYTHONPATH=SITE:.:integrations:monitor python experiments/gpu.py --out gpu.json

The machine needs a GPU, Python 3.12, torch, numpy and xxhash. The parts run one after the other, and the JSON is written after
each, so that a run that is cut off has what was measured until then:

    resume      a GPT-2 of 124 M is killed by SIGKILL at three steps and must end with the bits of a run that was never killed
    repeats     the same steps twice, and a resume, without deterministic kernels: does the arithmetic here repeat itself?
    cost        step time of each kind of log beside plain training, arms in turns in one process: median, mean, p99
    checkpoint  the stall of a step that takes a checkpoint, and the time until the checkpoint is published
    recovery    seconds of a recovery, by part, and a redone step over the optimizer's bare step
    tests       tests/torch/test_cuda.py

`--cpu --quick` tries the kit itself on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products; read when CUDA starts

import numpy as np
import torch
from paired_timing import PLAIN, Block, compare, take_turns
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs.base.errors import UsageError
from tranlogs_demo.training import GPT, GPTConfig, read_topics
from tranlogs_torch import LoggedOptimizer

ROOT = Path(__file__).resolve().parent.parent
MODELS = {
    "GPT-2, 124 M": (GPTConfig(layers=12, heads=12, width=768, block=512), 50257, 8),
    "GPT, 11 M": (GPTConfig(layers=6, heads=6, width=384, block=256), 256, 64),
    "tiny GPT": (GPTConfig(layers=2, heads=2, width=32, block=32), 256, 4),
}
"""By name: the model, the size of its alphabet, and a batch's samples."""
LARGE, MIDDLE, TINY = MODELS
_SECONDS_MAX = {"resume": 110.0, "repeats": 50.0, "cost": 100.0, "checkpoint": 40.0, "recovery": 50.0, "tests": 100.0}
_CHECKPOINT_SECONDS_MAX = 30.0
AGAIN = "plain once more"
_NEVER = 10**9
_BLOCK_BYTES = 3 << 30  # of gradients that a block of steps logs: what a log leaves must find room
# The kinds of log that are measured, by the setting `log`. What this version does not know is said to be unknown.
RUNGS = ("gradients", "weights", "inputs", "auto")


class Training:
    """A GPT on real text, on one device.

    Args:
        device: "cuda" or "cpu".
        name: of the model.
        deterministic: whether kernels must repeat themselves.
    """

    def __init__(self, device: str, name: str, *, deterministic: bool = True) -> None:
        config, alphabet, batch = MODELS[name]
        torch.use_deterministic_algorithms(deterministic)
        torch.manual_seed(0)
        self.device = torch.device(device)
        self.model = GPT(config, alphabet).to(self.device)
        fused = device == "cuda"
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=fused)
        text = torch.from_numpy(np.frombuffer(read_topics().encode(), np.uint8)[: 400_000 if name == TINY else None].copy())
        windows = text[: len(text) // (config.block + 1) * (config.block + 1)].reshape(-1, config.block + 1)
        self.loader = DataLoader(TensorDataset(windows), batch_size=batch, shuffle=True, drop_last=True)
        self._endless = self._batches()

    def _batches(self) -> Iterator[Tensor]:
        while True:
            for (batch,) in self.loader:
                yield batch

    def compute(self, batch: Tensor, optimizer: Any) -> Tensor:
        """Take one step on a batch; return its loss, which is not waited for."""
        tokens = batch.to(self.device, torch.long, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16):
            scores = self.model(tokens[:, :-1])
        loss: Tensor = nn.functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def step(self, optimizer: Any) -> None:
        """Take one step on the next batch, and wait for the device."""
        self.compute(next(self._endless), optimizer)
        self.wait()

    def wait(self) -> None:
        """Wait until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def digest(self) -> str:
        """Return a digest of all weights and of the optimizer's state."""
        found = hashlib.blake2b(digest_size=16)
        state = [self.optimizer.state[p] for p in self.model.parameters()]
        for tensor in [*self.model.parameters(), *(value for one in state for value in one.values())]:
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


# A process of its own that trains and may be killed.


def train(job: dict[str, Any]) -> None:
    """Train to the end of a job, and print the losses, the report and a digest of the state, a JSON object a line."""
    training = Training(job["device"], job["model"], deterministic=job["deterministic"])
    steps = job["steps"]

    def say(**what: Any) -> None:
        print(json.dumps(what), flush=True)

    if job["run"] is None:
        losses = []
        for number in range(steps):
            losses.append(training.compute(next(training._endless), training.optimizer).item())
            say(done=number)
        say(digest=training.digest(), losses=losses)
        return
    logged = LoggedOptimizer(
        training.optimizer, job["run"], training.model, log="gradients", checkpoint_every=job["checkpoint_every"]
    )
    state = logged.remember(losses=[])
    start = time.perf_counter()
    report = logged.track(loader=training.loader).recover()
    took = time.perf_counter() - start
    say(report=str(report), step=report.step, replayed=report.replayed, seconds_replay=report.seconds_replay, took=took)
    for number, (batch,) in logged.batches(training.loader, until=steps, enumerate=True):
        state.losses.append(training.compute(batch, logged).item())
        say(done=number)
    notes = [str(note) for note in logged.report.notes]
    say(digest=training.digest(), losses=state.losses, exact=logged.report.exact, notes=notes)
    logged.close()


def lead(job: dict[str, Any], kill_behind: int | None = None) -> dict[str, Any]:
    """Run a job in a process of its own; kill it once it has said that a step is done. Return all that it said."""
    process = subprocess.Popen([sys.executable, __file__, "--job", json.dumps(job)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found: dict[str, Any] = {}
    for line in process.stdout:
        found |= json.loads(line) if line.startswith("{") else {}
        if kill_behind is not None and found.get("done", -1) >= kill_behind:
            process.send_signal(signal.SIGKILL)
            break
    status = process.wait()
    wanted = 0 if kill_behind is None else -signal.SIGKILL
    if status != wanted:
        raise RuntimeError(f"the process was to end with status {wanted} and ended with {status}")
    return found


# The parts


class Kit:
    """The parts, on one device.

    Args:
        device: "cuda" or "cpu".
        is_quick: tiny sizes.
        folder: for runs.
    """

    def __init__(self, device: str, *, is_quick: bool, folder: Path) -> None:
        self.device, self.is_quick, self.folder = device, is_quick, folder
        self.model = TINY if is_quick else LARGE

    def machine(self) -> dict[str, Any]:
        """Return what is measured on."""
        probe, block = self.folder / "probe", np.ones(64 << 20, np.uint8)
        start = time.perf_counter()
        with open(probe, "wb") as file:
            for _ in range(1 if self.is_quick else 8):
                file.write(block.data)
            os.fdatasync(file.fileno())
        seconds = time.perf_counter() - start
        nbytes = probe.stat().st_size
        probe.unlink()
        return {
            "device": torch.cuda.get_device_name() if self.device == "cuda" else platform.processor() or "cpu",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "disk_mb_per_s": nbytes / seconds / 1e6,
            "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        }

    def _job(self, run: Path | None, steps: int, **changes: Any) -> dict[str, Any]:
        job = {"device": self.device, "model": self.model, "deterministic": True, "steps": steps, "checkpoint_every": 15}
        return job | {"run": None if run is None else str(run)} | changes

    def resume(self) -> dict[str, Any]:
        """Kill a run three times, and compare its end with that of a plain one."""
        steps, chance = 40, random.Random(5)
        plain = lead(self._job(None, steps))
        run = self.folder / "resume"
        kills = sorted(chance.sample(range(3, steps - 2), 3))
        lives = [lead(self._job(run, steps), kill) for kill in kills]
        last = lead(self._job(run, steps))
        return {
            "is_equal": last["digest"] == plain["digest"],
            "losses_equal": last["losses"] == plain["losses"],
            "exact": last["exact"],
            "notes": last["notes"],
            "killed_behind": kills,
            "landed": [life["step"] for life in [*lives[1:], last]],
            "recover_seconds": [life["took"] for life in [*lives[1:], last]],
            "report": last["report"],
        }

    def repeats(self) -> dict[str, Any]:
        """Return whether the same steps come out the same, with deterministic kernels and without, and what a resume says."""
        found: dict[str, Any] = {}
        for deterministic in (True, False):
            digests = {lead(self._job(None, 6, deterministic=deterministic))["digest"] for _ in range(2)}
            found["deterministic kernels" if deterministic else "default kernels"] = len(digests) == 1
        run = self.folder / "repeats"
        lead(self._job(run, 12, deterministic=False), kill_behind=5)
        last = lead(self._job(run, 12, deterministic=False))
        return found | {f"resumed with default kernels: {key}": last[key] for key in ("step", "exact", "notes")}

    def cost(self) -> dict[str, Any]:
        """Return step times of each kind of log beside plain: one log at a time, in turns with plain training, by model."""
        found: dict[str, Any] = {}
        for model in (TINY,) if self.is_quick else (LARGE, MIDDLE):
            training = Training(self.device, model)
            parameters = sum(p.numel() for p in training.model.parameters())
            steps = max(min(20, _BLOCK_BYTES // (4 * parameters)), 3)
            plain = self._plain(training, steps)
            found[model] = {"parameters": parameters}
            for rung in RUNGS:
                for durability in ("machine", "process"):
                    name = f"{rung}, {durability}"
                    try:
                        found[f"{model}: {name}"] = self._cost_of(rung, durability, model, plain, steps)
                    except (UsageError, ValueError) as error:
                        found[f"{model}: {name}"] = {"unknown": str(error)[:200]}
                        break
        return found

    def _cost_of(self, rung: str, durability: str, model: str, plain: Block, steps: int) -> dict[str, Any]:
        own, run = Training(self.device, model), self.folder / "cost"
        options: dict[str, Any] = {"log": rung, "durability": durability, "checkpoint_every": _NEVER, "on_signal": None}
        optimizer = LoggedOptimizer(own.optimizer, run, own.model, **options)
        try:
            optimizer.recover()
            arms = {PLAIN: plain, AGAIN: plain, rung: self._in_loop(own, optimizer, steps)}
            times = take_turns(arms, 6, seconds_max=_SECONDS_MAX["cost"] / 8, rounds_min=3)
        finally:
            optimizer.close()
            shutil.rmtree(run)
        return compare(times, rung) | {"noise": compare(times, AGAIN)["median"]}

    @staticmethod
    def _plain(training: Training, steps: int) -> Block:
        def block() -> list[float]:
            training.step(training.optimizer)
            seconds = []
            for _ in range(steps):
                start = time.perf_counter()
                training.step(training.optimizer)
                seconds.append(time.perf_counter() - start)
            return seconds

        return block

    def _in_loop(self, training: Training, optimizer: LoggedOptimizer, steps: int) -> Block:
        turns = optimizer.steps(until=_NEVER, stateless=True)

        def block() -> list[float]:
            next(turns)
            training.step(optimizer)
            seconds = []
            for _ in range(steps):
                start = time.perf_counter()
                next(turns)  # commits the step before
                training.step(optimizer)
                seconds.append(time.perf_counter() - start)
            return seconds

        return block

    def checkpoint(self) -> dict[str, Any]:
        """Return the stall of steps that take a checkpoint, beside the median step."""
        training = Training(self.device, self.model)
        every, count = 8, 4
        run = self.folder / "checkpoint"
        optimizer = LoggedOptimizer(
            training.optimizer, run, training.model, log="gradients", checkpoint_every=every, on_signal=None
        )
        optimizer.recover()
        with_checkpoint: list[float] = []
        without: list[float] = []
        until_published = []
        start = 0.0
        for number in optimizer.steps(until=every * count + 1, stateless=True):
            if number:
                is_due = number % every == 0
                (with_checkpoint if is_due else without).append(time.perf_counter() - start)
                if is_due:
                    until_published.append(self._wait_for_checkpoint(run, number))
            start = time.perf_counter()
            training.step(optimizer)
        optimizer.close()
        middle = float(np.median(without))
        return {
            "median_step_ms": middle * 1e3,
            "stall_ms": [1e3 * (seconds - middle) for seconds in with_checkpoint],
            "published_after_seconds": until_published,
        }

    @staticmethod
    def _wait_for_checkpoint(run: Path, step: int) -> float:
        start = time.perf_counter()
        while not list((run / "rank0" / "checkpoints").glob(f"step-{step:010}-*")):
            if time.perf_counter() - start > _CHECKPOINT_SECONDS_MAX:
                raise RuntimeError(f"the checkpoint of step {step} was not published within {_CHECKPOINT_SECONDS_MAX:g} s")
            time.sleep(0.002)
        return time.perf_counter() - start

    def recovery(self) -> dict[str, Any]:
        """Return the seconds of a recovery by part, and a redone step over the bare step of the optimizer."""
        run, steps = self.folder / "recovery", 12 if self.is_quick else 30
        lead(self._job(run, _NEVER, checkpoint_every=_NEVER), kill_behind=steps)
        training = Training(self.device, self.model)
        training.step(training.optimizer)
        bare = []
        for _ in range(20):
            training.wait()
            start = time.perf_counter()
            training.optimizer.step()
            training.wait()
            bare.append(time.perf_counter() - start)
        last = lead(self._job(run, steps + 2))
        replayed, seconds = last["replayed"], last["seconds_replay"]
        return {
            "took": last["took"],
            "seconds_replay": seconds,
            "replayed": replayed,
            "redone_over_bare_step": seconds / replayed / float(np.median(bare)),
            "exact": last["exact"],
        }

    def tests(self) -> dict[str, Any]:
        """Run the tests that need a GPU."""
        if self.device != "cuda":
            return {"summary": "not run", "left out": "they need a CUDA GPU"}
        plugins = ["-p", "no:cacheprovider", "-p", "no:benchmark"]
        command = [sys.executable, "-m", "pytest", "-q", "-n", "8", *plugins, "tests/torch/test_cuda.py"]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS_MAX["tests"])
        except subprocess.TimeoutExpired as error:
            return {"summary": "timed out", "output": str(error.stdout or b"")[-2000:]}
        said = done.stdout.strip()
        return {"status": done.returncode, "summary": said.rpartition("\n")[2], "output": said[-8000:]}


PARTS = ("machine", *_SECONDS_MAX)


def show(name: str, found: dict[str, Any]) -> None:
    """Print a part's figures."""
    print(f"== {name}")
    for key, value in found.items():
        if isinstance(value, dict) and "median" in value:
            text = ", ".join(f"{what} {value[what][0]:.3f}" for what in ("median", "mean", "p99", "added_ms"))
            print(f"  {key:24} {text} ({value['ms']:.2f} ms, {value['rounds']} rounds)")
        else:
            print(f"  {key:24} {value}")
    sys.stdout.flush()


def main() -> None:
    """Run the parts, print a table of each, and write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="JSON file with the figures")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--folder", type=Path, help="folder on the disk to be measured (default: a temporary one)")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        train(json.loads(given.job))
        return
    if not given.cpu and not torch.cuda.is_available():
        parser.error("no CUDA GPU was found; --cpu --quick tries the kit without one")
    folder = Path(tempfile.mkdtemp(prefix="tranlogs-gpu-", dir=given.folder))
    kit = Kit("cpu" if given.cpu else "cuda", is_quick=given.quick, folder=folder)
    results: dict[str, Any] = {}
    failed = False
    try:
        for name in given.parts:
            start = time.perf_counter()
            try:
                found = getattr(kit, name)()
            except Exception as error:  # the parts that follow are worth the machine's time all the same
                found, failed = {"failed": repr(error)}, True
            for left in folder.iterdir():  # a gigabyte every other step
                shutil.rmtree(left)
            results[name] = found | {"part_seconds": time.perf_counter() - start}
            show(name, results[name])
            given.out.write_text(json.dumps(results, indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    is_wrong = not results.get("resume", {"is_equal": True}).get("is_equal")
    sys.exit(1 if failed or is_wrong or results.get("tests", {}).get("status", 0) else 0)


if __name__ == "__main__":
    main()
