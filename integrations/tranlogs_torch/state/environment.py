"""The environment that the rounding of a run depends on: recorded with the run, set back where possible, and compared."""

from __future__ import annotations

import platform
from typing import Any

import torch

import tranlogs
from tranlogs.base.notes import Note
from tranlogs.training import compare_environments

_COMPARED = {
    "torch": "torch version",
    "machine": "processor architecture",
    "cpu_capability": "vector instructions",
    "devices": "device types",
    "gpu": "GPU model",
    "cuda": "CUDA version",
    "mkldnn": "oneDNN in use",
    "backend": "backend of the process group",
    "reducers": "settings of DistributedDataParallel",
    "fsdp": "mixed precision of FSDP",
}
_OF_GROUP = ("backend", "reducers", "fsdp")  # a single process that replays has none of these, and redo does not depend on them
_CUDNN = ("deterministic", "benchmark", "allow_tf32")  # flags of torch.backends.cudnn


def describe(optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, Any]:
    """Return the environment as plain values."""
    devices = sorted({p.device.type for o in optimizers.values() for g in o.param_groups for p in g["params"]})
    about: dict[str, Any] = {
        "tranlogs": tranlogs.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled),
        "devices": devices,
        "optimizers": {name: class_name(o) for name, o in optimizers.items()},
    }
    if "cuda" in devices:
        about["gpu"] = torch.cuda.get_device_name()
        about["cuda"] = torch.version.cuda
        about["cudnn"] = {name: bool(getattr(torch.backends.cudnn, name)) for name in _CUDNN}
    return about


def class_name(optimizer: torch.optim.Optimizer) -> str:
    """Module and name of an optimizer's class."""
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def set_back(recorded: dict[str, Any]) -> list[str]:
    """Set the thread count and flags to the run's; returns what was changed, one sentence each."""
    notes = []
    threads = recorded.get("threads")
    if isinstance(threads, int) and threads > 0 and threads != torch.get_num_threads():
        notes.append(f"thread count set back from {torch.get_num_threads()} to the run's {threads}")
        torch.set_num_threads(threads)
    wanted = recorded.get("deterministic")
    warn_only = bool(recorded.get("warn_only", False))
    now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if isinstance(wanted, bool) and (wanted, warn_only) != now:
        notes.append(f"torch.use_deterministic_algorithms set back to {wanted}" + (", warn_only" if warn_only else ""))
        torch.use_deterministic_algorithms(wanted, warn_only=warn_only)
    if isinstance(recorded.get("mkldnn"), bool) and recorded["mkldnn"] != bool(torch.backends.mkldnn.enabled):
        notes.append(f"torch.backends.mkldnn.enabled set back to {recorded['mkldnn']}")
        torch.backends.mkldnn.enabled = recorded["mkldnn"]
    for name, flag in recorded.get("cudnn", {}).items():
        if name in _CUDNN and flag != getattr(torch.backends.cudnn, name):
            notes.append(f"torch.backends.cudnn.{name} set back to {flag}")
            setattr(torch.backends.cudnn, name, bool(flag))
    precision = recorded.get("matmul_precision")
    if isinstance(precision, str) and precision != torch.get_float32_matmul_precision():
        notes.append(f"matmul precision set back to {precision!r}")
        torch.set_float32_matmul_precision(precision)
    return notes


def compare(recorded: dict[str, Any], now: dict[str, Any]) -> list[Note]:
    """Return the differences that can change rounding."""
    labels = {key: label for key, label in _COMPARED.items() if key not in _OF_GROUP or "world" in now}
    return compare_environments(recorded, now, labels)
