"""Run it, kill it (Ctrl-C, kill -9), run it again: the Trainer goes on at the step where it stopped.

    python examples/huggingface_trainer.py

A tiny GPT learns to write like the Python documentation, byte by byte. Needs transformers and accelerate; nothing
is downloaded.
"""

from pydoc_data.topics import topics

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback

EPOCHS = 3


class Windows(Dataset):
    def __init__(self, text: bytes, width: int = 32) -> None:
        self.windows = torch.tensor(list(text)).unfold(0, width, width)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.windows[i], "labels": self.windows[i]}


set_seed(0)
text = "".join(topics.values()).encode("ascii", "replace")[:36_000]
config = GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=32, vocab_size=128, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    "runs/huggingface-output",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    warmup_steps=50,
    logging_steps=20,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
trainer = Trainer(
    GPT2LMHeadModel(config),
    arguments,
    train_dataset=Windows(text[5_280:]),
    eval_dataset=Windows(text[:5_280]),
    callbacks=[TranLogsTrainerCallback("runs/huggingface", checkpoint_every=50)],
)
trainer.train()

losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
told = ", ".join(f"{loss:.3f}" for loss in losses)
print(f"done: {trainer.state.global_step} steps, evaluations {told}, however often it was killed")
