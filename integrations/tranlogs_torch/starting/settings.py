"""How a run starts from something that is no run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StartFrom:
    """What a fresh run starts from, for `recover(start_from=...)`. Nothing is loaded in part without being asked for here.

    Attributes:
        path: a .pt or .safetensors file, or a folder of torch.distributed.checkpoint.
        model: key of the model's weights in it, where that cannot be told.
        missing: patterns (`head.*`) of what the model has and the source may lack; it stays as it was built.
        unexpected: patterns of what the source has and the model does not want.
        cast: whether weights of another dtype are converted to the model's.
        only_weights: whether the states of optimizers, schedulers and so on are left out.
        trust: whether a folder of torch.distributed.checkpoint may run the code that its pickles name.
    """

    path: str | Path
    _: KW_ONLY
    model: str | None = None
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    cast: bool = False
    only_weights: bool = False
    trust: bool = False
