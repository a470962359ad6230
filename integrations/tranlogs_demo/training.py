"""The training script of the demo, and its model: a small GPT on the Python documentation, with TranLogs or in plain torch.

It runs in a process of its own, which the demo kills. Its events go to stdout, a line of JSON each; what was written before
SIGKILL is in the pipe.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from tranlogs_torch import LoggedOptimizer

Batch = list[Tensor]  # text and following, each (batch, block)
THREADS = 1  # with two, matrix products may round otherwise from process to process, and a run would differ from itself
_BATCHES_MIN = 12  # however slow the machine is


@dataclass(frozen=True, slots=True)
class Job:
    """Training of one process.

    Attributes:
        name: of the process; its files are called so.
        folder: of the demo.
        config, batch, until: the model, sequences a batch, batches in all.
        schedule: steps that the learning rate is planned for.
        seed: of the first weights and of all random numbers. What is recovered does not depend on it.
        seconds_max: stop earlier after so many seconds of training; None for never.
        run: folder of the run; None trains without TranLogs.
        checkpoint_every: steps.
    """

    name: str
    folder: str
    config: GPTConfig
    batch: int
    until: int
    schedule: int
    seed: int
    seconds_max: float | None = None
    run: str | None = None
    checkpoint_every: int = 0

    def to_json(self) -> str:
        """Return the job as text, for the command line of its process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that `to_json` has written."""
        fields = json.loads(text)
        return cls(**{**fields, "config": GPTConfig(**fields["config"])})

    @property
    def state(self) -> Path:
        """Path of the final state, in the format of `torch.save`."""
        return Path(self.folder, f"{self.name}.pt")

    @property
    def log(self) -> Path:
        """Path of what the process wrote to stderr."""
        return Path(self.folder, f"{self.name}.log")


def read_topics() -> str:
    """Return the language reference behind `help()`, which every Python brings along: about 465,000 characters."""
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


def say(event: str, **fields: Any) -> None:
    """Send an event to the demo."""
    print(json.dumps({"event": event, **fields}), flush=True)


def train(job: Job) -> None:
    """Train, and save all that could differ afterwards."""
    torch.set_num_threads(THREADS)
    random.seed(job.seed)
    np.random.seed(job.seed)
    text = read_topics()
    windows = TextWindows(text, job.config.block)
    model = build_gpt(job.config, len(windows.alphabet), job.seed)
    loader = DataLoader[Any](windows, batch_size=job.batch, shuffle=True)
    say("built", parameters=model.size, characters=len(text))

    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    logged: LoggedOptimizer | None = None
    if job.run is not None:  # keep=1: a demo should not fill the disk
        logged = optimizer = LoggedOptimizer(
            optimizer, job.run, model, log="gradients", checkpoint_every=job.checkpoint_every, keep=1
        )
    scheduler = OneCycleLR(optimizer, max_lr=1e-3, total_steps=job.schedule)  # lr and betas change at every step
    if logged is not None:
        logged.track(scheduler=scheduler, loader=loader)
        say("recovered", **logged.recover().as_dict())

    losses: list[float] = []
    start = time.monotonic()
    for batch in logged.batches(loader, job.until) if logged is not None else plain_batches(loader, job.until):
        digest = xxhash.xxh3_64_hexdigest(b"".join(tensor.numpy().tobytes() for tensor in batch))
        say("batch", digest=digest, at=time.monotonic(), loss=losses[-1] if losses else None)
        say("phase", phase="in its forward pass")
        loss = model.loss(*batch)
        say("phase", phase="in its backward pass")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        say("phase", phase="in the optimizer's step")
        optimizer.step()
        say("phase", phase="after the optimizer's step")
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if logged is not None:
            logged.log_scalars(loss=losses[-1])
        say("phase", phase="at its end, when the next batch was asked for")
        if job.seconds_max is not None and len(losses) >= _BATCHES_MIN and time.monotonic() - start > job.seconds_max:
            break

    # A run that was killed after its last batch has nothing left to train: its losses are those of the process before.
    curve = dict(enumerate(losses, 1)) if logged is None else dict(zip(*logged.scalars["loss"], strict=True))
    log_bytes = 0 if logged is None else logged.training_run.journal.log_bytes
    say("finished", loss=curve[max(curve)], log_bytes=log_bytes, report=None if logged is None else logged.report.as_dict())
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    ends = {"weights": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save({**ends, "random": _storable(states), "loss": curve}, job.state)
    if logged is not None:
        logged.close()


def plain_batches(loader: DataLoader[Batch], until: int) -> Iterator[Batch]:
    """Yield batches over as many epochs as it takes."""
    taken = 0
    while taken < until:
        for batch in loader:
            yield batch
            taken += 1
            if taken == until:
                return


def _storable(value: Any) -> Any:
    """Replace arrays, which `torch.load(weights_only=True)` does not read: numpy's random state has one."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.astype(np.int64))
    if isinstance(value, dict):
        return {key: _storable(v) for key, v in value.items()}
    return tuple(_storable(v) for v in value) if isinstance(value, tuple) else value


# The model


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes of a GPT.

    Attributes:
        layers: blocks of attention and feed-forward.
        heads: attention heads in each.
        width: numbers that stand for a character.
        block: characters that the model looks back on.
        dropout: share of activations that a training step drops at random.
    """

    layers: int
    heads: int
    width: int
    block: int
    dropout: float = 0.1


GPT_TINY = GPTConfig(layers=2, heads=4, width=64, block=64)  # 0.1 M parameters: tests
GPT_SMALL = GPTConfig(layers=4, heads=4, width=128, block=64)  # 0.8 M: the quick demo
GPT_10M = GPTConfig(layers=6, heads=6, width=384, block=96)  # 10.7 M: the demo, the benchmarks


class GPT(nn.Module):
    """Decoder-only transformer, pre-norm; the output layer shares its weights with the embedding."""

    def __init__(self, config: GPTConfig, alphabet: int) -> None:
        super().__init__()
        self.character = nn.Embedding(alphabet, config.width)
        self.position = nn.Embedding(config.block, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, alphabet, bias=False)
        self.head.weight = self.character.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:  # what adds to the residual stream starts smaller, the more layers add to it
                std = 0.02 / (2 * config.layers) ** 0.5 if name.endswith("out.weight") else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of the next character at each place: (batch, length) -> (batch, length, alphabet)."""
        x = self.character(text) + self.position.weight[: text.size(1)]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x))
        return scores

    def loss(self, text: Tensor, following: Tensor) -> Tensor:
        """Mean cross entropy, in nats a character."""
        return F.cross_entropy(self(text).flatten(0, 1), following.flatten())

    @property
    def size(self) -> int:
        """Number of parameters; shared ones count once."""
        return sum(p.numel() for p in self.parameters())


class Block(nn.Module):
    """Attention, then feed-forward, each added to what came in."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.width
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, config.heads)
        self.feed_norm, self.feed = nn.LayerNorm(width), FeedForward(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.dropout(self.attention(self.attention_norm(x)))
        fed: Tensor = self.dropout(self.feed(self.feed_norm(mixed)))
        return mixed + fed


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(F.gelu(self.wide(x), approximate="tanh"))
        return result


def build_gpt(config: GPTConfig, alphabet: int, seed: int) -> GPT:
    """Build a GPT whose first weights depend on the seed alone. This sets torch's global random state."""
    torch.manual_seed(seed)
    return GPT(config, alphabet)


if __name__ == "__main__":
    train(Job.from_json(sys.argv[1]))
