"""Trainings with Hugging Face's Trainer: a tiny GPT on real text."""

from __future__ import annotations

import logging
import random
import warnings
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from tests.trainers.common import Killer, plain, randomness, rank, tensors, text

WIDTH = 16
SAMPLES = 25  # seven batches of four an epoch, the last one of one


class Windows(torch.utils.data.Dataset[Any]):
    """Windows of the text."""

    def __init__(self, first: int, count: int) -> None:
        self._text = text()[first * WIDTH :].unfold(0, WIDTH, WIDTH)[:count]

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._text[index], "labels": self._text[index]}


def noisy(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Collate, with random numbers of all three generators."""
    batch = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
    shape = batch["input_ids"].shape
    noise = torch.randint(0, 128, shape)
    noise[:, 0], noise[:, 1] = random.randrange(128), int(np.random.randint(128))
    batch["input_ids"] = torch.where(torch.rand(shape) < 0.1, noise, batch["input_ids"])
    return batch


class CountingTrainer(Trainer):
    """Counts tokens and collects metrics until the next log on attributes of its own, as trl's SFTTrainer does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._metrics: dict[str, defaultdict[str, list[float]]] = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._tokens_seen = 0
        self._newest: deque[torch.Tensor] = deque(maxlen=3)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        mode = "train" if model.training else "eval"
        if mode == "train":
            self._tokens_seen += inputs["input_ids"].numel()
            self._newest.append(loss.detach())
        self._metrics[mode]["num_tokens"] = [float(self._tokens_seen)]
        self._metrics[mode]["entropy"].append(torch.distributions.Categorical(logits=outputs.logits).entropy().mean().item())
        self._metrics[mode]["newest"] = [torch.stack(list(self._newest)).sum().item()] if self._newest else [0.0]
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        mode = "train" if self.model.training else "eval"
        super().log(logs | {key: sum(values) / len(values) for key, values in self._metrics[mode].items()}, start_time)
        self._metrics[mode].clear()


class ForgetfulTrainer(Trainer):
    """Keeps an object that cannot be stored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.newest_batch: Any = None

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        self.newest_batch = iter(inputs)
        return super().compute_loss(model, inputs, return_outputs, **kwargs)


class Watch(TrainerCallback):
    """Kills, draws random numbers where callbacks may, and keeps a count that it can tell."""

    def __init__(self, killer: Killer) -> None:
        self._killer = killer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._killer.at("step", state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._killer.at("step end", state.global_step)
        random.random()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._killer.at("evaluation", state.global_step)
        np.random.rand()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._killer.at("save", state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.rand(1)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._killer.at("epoch end", round(state.epoch))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._killer.at("end", 0)


class Lengths(TrainerCallback):
    """Counts and collects in attributes of its own."""

    def __init__(self) -> None:
        self.ended, self.lengths = 0, list[int]()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ended += 1
        self.lengths.append(state.global_step)


class KeptLengths(Lengths, ExportableState):
    """The same with a state."""

    def __init__(self, ended: int = 0, lengths: list[int] | None = None) -> None:
        self.ended, self.lengths = ended, lengths or []

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"ended": self.ended, "lengths": self.lengths}}


def made(
    folder: str,
    killer: Killer,
    run: str | None,
    *,
    patience: int = 0,
    kind: str = "Trainer",
    counts: str = "",
    **arguments: Any,
) -> tuple[Trainer, Any]:
    """A trainer, and the callback that logs it."""
    warnings.simplefilter("ignore")
    transformers.set_seed(1)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=128, n_positions=WIDTH, bos_token_id=0, eos_token_id=0)
    args = TrainingArguments(
        folder,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        warmup_steps=4,
        log_level="error",
        **(
            {
                "num_train_epochs": 3,
                "per_device_train_batch_size": 4,
                "save_strategy": "no",
                "logging_steps": 2,
                "learning_rate": 3e-3,
            }
            | arguments
        ),
    )
    callback: Any = None
    callbacks: list[Any] = [Watch(killer)]
    if patience:
        callbacks.append(EarlyStoppingCallback(patience))
    if counts:
        callbacks.append(globals()[counts]())
    if run is not None:
        from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback

        options = {"checkpoint_every": 5, "durability": "process", "segment_bytes": 1 << 20}
        callback = TranLogsTrainerCallback(run, **options)
        callbacks.append(callback)
    trainer = globals()[kind](
        GPT2LMHeadModel(config),
        args,
        train_dataset=Windows(0, SAMPLES),
        eval_dataset=Windows(SAMPLES, 9),
        callbacks=callbacks,
        data_collator=noisy,
    )
    return trainer, callback


def train(attempt: int, run: str | None, folder: str, kills: list[Any] | None = None, **arguments: Any) -> dict[str, Any]:
    """Train to the end; what came out."""
    trainer, callback = made(folder, Killer(kills, attempt), run, **arguments)
    said = trainer.train()
    state = trainer.state
    timed = ("runtime", "per_second")
    history = [{key: value for key, value in entry.items() if not key.endswith(timed)} for entry in state.log_history]
    counters = [
        c.early_stopping_patience_counter for c in trainer.callback_handler.callbacks if isinstance(c, EarlyStoppingCallback)
    ]
    found = {
        "weights and state": tensors(trainer.model, trainer.optimizer.optimizer),
        "rng": randomness(),
        "scheduler": plain(trainer.lr_scheduler.state_dict()),
        "global_step": state.global_step,
        "epoch": state.epoch,
        "history": history,
        "best": [state.best_metric, state.best_global_step],
        "counters": counters,
        "total_flos": state.total_flos,
        "loss": said.training_loss,
    }
    if callback is not None:
        report = callback.report
        found["report"] = {"step": report.step, "exact": report.exact, "notes": report.notes, "epoch": report.epoch}
        found["report"] |= {"recheck": report.recheck, "rechecked": report.rechecked, "end": report.end}
        seconds = said.metrics["train_runtime"]
        found["report"]["trained"] = [said.metrics[f"train_{what}_per_second"] * seconds for what in ("steps", "samples")]
    return found


def refusals(attempt: int, folder: str) -> dict[str, str]:
    """What is refused, and in which words."""
    from tranlogs.base.errors import TranLogsError
    from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback

    logging.disable(logging.WARNING)
    found = {}

    def said(name: str, call: Any) -> None:
        try:
            call()
            found[name] = ""
        except TranLogsError as error:
            found[name] = str(error)

    def trainer(name: str, **arguments: Any) -> Trainer:
        return made(folder, Killer(None, 0), f"{folder}/{name}", max_steps=2, **arguments)[0]

    def added() -> None:
        late = made(folder, Killer(None, 0), None, max_steps=2)[0]
        late.add_callback(TranLogsTrainerCallback(f"{folder}/added"))
        late.train()

    def attached() -> None:
        late = made(folder, Killer(None, 0), None, max_steps=2)[0]
        callback = TranLogsTrainerCallback(f"{folder}/attached", checkpoint_every=5).attach(late)
        late.train()
        assert callback.report.checkpoint_step is None
        assert callback.optimizer.watermarks["committed"] == 2

    def checkpoint() -> None:
        folder_ = Path(folder) / "hf"
        first = made(str(folder_), Killer(None, 0), None, max_steps=2, save_strategy="steps", save_steps=2)[0]
        first.train()
        trainer("fresh").train(resume_from_checkpoint=str(folder_ / "checkpoint-2"))

    twice = trainer("twice")
    said("two", lambda: TranLogsTrainerCallback(f"{folder}/other").attach(twice))
    said("added late", added)
    said("attached", attached)
    said("skip", lambda: trainer("skip", ignore_data_skip=True).train())
    said("batch size", lambda: trainer("batch", auto_find_batch_size=True).train())
    said("checkpoint", checkpoint)
    said("nothing yet", lambda: twice.callback_handler.callbacks[-2].report)
    assert rank() == 0
    return found
