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

from tests.kills.pytorch import Job
from tests.trainers.common import said_of, tell, text
from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback

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
    """Comes to the places where a life may end, and draws random numbers where callbacks may."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._job.at(f"step {state.global_step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._job.at(f"step end {state.global_step}")
        random.random()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._job.at(f"evaluation {state.global_step}")
        np.random.rand()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._job.at(f"save {state.global_step}")

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.rand(1)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._job.at(f"epoch end {round(state.epoch)}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._job.at("end")


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
    folder: Path | str,
    *callbacks: TrainerCallback,
    kind: type[Trainer] = Trainer,
    patience: int = 0,
    counts: type[TrainerCallback] | None = None,
    **arguments: Any,
) -> Trainer:
    """A trainer."""
    warnings.simplefilter("ignore")
    transformers.set_seed(1)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=128, n_positions=WIDTH, bos_token_id=0, eos_token_id=0)
    settings: dict[str, Any] = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "warmup_steps": 4, "log_level": "error"}
    settings |= {"num_train_epochs": 3, "per_device_train_batch_size": 4, "save_strategy": "no", "logging_steps": 2}
    beside = [EarlyStoppingCallback(patience)] if patience else []
    return kind(
        GPT2LMHeadModel(config),
        TrainingArguments(str(folder), **settings | {"learning_rate": 3e-3} | arguments),
        train_dataset=Windows(0, SAMPLES),
        eval_dataset=Windows(SAMPLES, 9),
        callbacks=[*callbacks, *beside, *([counts()] if counts else [])],
        data_collator=noisy,
    )


def train(job: Job, **arguments: Any) -> None:
    """Train to the end."""
    callback = None if job.run is None else TranLogsTrainerCallback(str(job.run), **job.settings)
    trainer = made(job.folder / "output", Watch(job), *([callback] if callback else []), **arguments)
    if callback is not None:
        job.watch(lambda: callback.report)
    said = trainer.train()
    state = trainer.state
    timed = ("runtime", "per_second")
    history = [{key: value for key, value in entry.items() if not key.endswith(timed)} for entry in state.log_history]
    others = trainer.callback_handler.callbacks
    counters = [one.early_stopping_patience_counter for one in others if isinstance(one, EarlyStoppingCallback)]
    job.keep(model=trainer.model, optimizer=trainer.optimizer.optimizer, scheduler=trainer.lr_scheduler, history=history)
    job.keep(global_step=state.global_step, epoch=state.epoch, best=[state.best_metric, state.best_global_step])
    job.keep(counters=counters, total_flos=state.total_flos, loss=said.training_loss)
    if callback is not None:
        seconds, report = said.metrics["train_runtime"], callback.report
        trained = [said.metrics[f"train_{what}_per_second"] * seconds for what in ("steps", "samples")]
        tell(job, rechecked=report.rechecked, end=report.end, trained=trained, history=history)


def refusals(job: Job) -> None:
    """What is refused, and in which words."""
    logging.disable(logging.WARNING)
    folder = job.files

    def trainer(name: str, **arguments: Any) -> Trainer:
        return made(folder, TranLogsTrainerCallback(f"{folder}/{name}"), max_steps=2, **arguments)

    def added() -> None:
        late = made(folder, max_steps=2)
        late.add_callback(TranLogsTrainerCallback(f"{folder}/added"))
        late.train()

    def attached() -> None:
        late = made(folder, max_steps=2)
        callback = TranLogsTrainerCallback(f"{folder}/attached", checkpoint_every=5).attach(late)
        late.train()
        assert callback.report.checkpoint_step is None
        assert callback.optimizer.watermarks["committed"] == 2

    def checkpoint() -> None:
        made(f"{folder}/hf", max_steps=2, save_strategy="steps", save_steps=2).train()
        trainer("fresh").train(resume_from_checkpoint=f"{folder}/hf/checkpoint-2")

    twice = trainer("twice")
    acts = {
        "two": lambda: TranLogsTrainerCallback(f"{folder}/other").attach(twice),
        "added late": added,
        "attached": attached,
        "skip": lambda: trainer("skip", ignore_data_skip=True).train(),
        "batch size": lambda: trainer("batch", auto_find_batch_size=True).train(),
        "checkpoint": checkpoint,
        "nothing yet": lambda: (
            next(one for one in twice.callback_handler.callbacks if isinstance(one, TranLogsTrainerCallback)).report
        ),
    }
    tell(job, **{name: said_of(act) for name, act in acts.items()})
