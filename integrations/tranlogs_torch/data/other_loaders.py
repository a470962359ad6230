"""Loaders that are not torch's: fastai's DataLoader, timm's PrefetchLoader, and what scripts write themselves."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader


def advice_for_other_loader(thing: Any) -> str | None:
    """Return what to write in place of a loader that is no torch DataLoader; None for what is no loader."""
    kind = f"{type(thing).__module__.partition('.')[0]}'s {type(thing).__name__}"
    attributes = vars(thing) if hasattr(thing, "__dict__") else {}
    inner = next((name for name, value in attributes.items() if isinstance(value, DataLoader)), None)
    if inner is not None:
        return (
            f"expected a torch DataLoader, got {kind}. It iterates over the one in its attribute {inner!r}: take the "
            f"batches from that loader, optimizer.batches(loader.{inner}, until=N), and prepare them in the body of the "
            "loop"
        )
    if hasattr(thing, "__iter__") and ("dataset" in attributes or "Loader" in type(thing).__name__):
        return (
            f"expected a torch DataLoader, got {kind}, whose position cannot be recovered. Make a "
            "torch.utils.data.DataLoader of its dataset for optimizer.batches(loader, until=N); or take the steps from "
            "optimizer.steps(until=N, stateless=True), and track an object whose state_dict and load_state_dict hold the "
            "position in the data"
        )
    return None
