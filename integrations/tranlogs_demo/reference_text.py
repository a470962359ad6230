"""Real text that every Python brings along: the language reference behind `help()`, `pydoc_data.topics`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

Batch = list[Tensor]  # text and following, each (batch, block)


def read_topics() -> str:
    """Return all topics in the order of their names: about 465,000 characters, some 100 different ones."""
    from pydoc_data.topics import topics

    return "\n\n\n".join(topics[name] for name in sorted(topics))


class TextWindows(Dataset[tuple[Tensor, Tensor]]):
    """A text cut into windows of `block` characters; a sample is a window and the same moved on by one character.

    Attributes:
        alphabet: the characters that occur, in order; a character's number is its place here.
    """

    def __init__(self, text: str, block: int) -> None:
        self.alphabet, self.block = "".join(sorted(set(text))), block
        number = {character: i for i, character in enumerate(self.alphabet)}
        self._numbers = torch.tensor([number[character] for character in text])

    def __len__(self) -> int:
        return (len(self._numbers) - 1) // self.block

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.block
        window = self._numbers[start : start + self.block + 1]
        return window[:-1], window[1:]


def shuffled(windows: TextWindows, batch: int) -> DataLoader[Batch]:
    """Return a plain shuffled loader; its order comes from torch's global random state."""
    return DataLoader[Any](windows, batch_size=batch, shuffle=True)  # Any: collation makes Batch of samples
