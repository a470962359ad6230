"""Tiny data that ships in a package: images of digits."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch


def digits(count: int, *, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of digits (8 x 8, from 0 to 1) and their labels. The file is scikit-learn's, which is not imported."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations
    with gzip.open(Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32, skiprows=first, max_rows=count)
    return torch.from_numpy(rows[:, :-1] / 16).reshape(-1, 8, 8), torch.from_numpy(rows[:, -1]).long()
