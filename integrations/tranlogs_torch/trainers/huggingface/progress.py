"""Progress of a Trainer: TrainerState, the state of other callbacks, and the sums behind the losses that it logs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
from transformers import Trainer

from ..changed_attributes import Appended, ChangedAttributes
from . import transformers_internals
from .transformers_internals import trainer_names


def subclass_state(trainer: Trainer) -> ChangedAttributes:
    """Return the attributes of a trainer that its subclass has added, and that change from now on."""
    return ChangedAttributes(trainer, trainer_names())


# Of the script, or made anew by each start: the rest of TrainerState is progress.
_GIVEN = {
    "max_steps",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "train_batch_size",
    "num_train_epochs",
    "is_local_process_zero",
    "is_world_process_zero",
    "is_hyper_param_search",
    "trial_name",
    "trial_params",
    "stateful_callbacks",
    "log_history",
}


class Progress:
    """Tracked with the run (see the module), and set back as a whole.

    Attributes:
        epoch: in which training is.
        batches: of it that were trained on.
        is_stopped: whether a callback has ended the training.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._logged = Appended()
        self._subclass = subclass_state(trainer)
        self._loaded: dict[str, Any] | None = None
        self.epoch = self.batches = 0
        self.is_stopped = False

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as it is now."""
        state = self._trainer.state
        fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state) if field.name not in _GIVEN}
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "is_stopped": self.is_stopped,
            "state": json.dumps(fields),
            "logged": self._logged.packed(state.log_history),
            "callbacks": [[type(callback).__name__, json.dumps(callback.state()["attributes"])] for callback in self._others()],
            "sums": {name: _plain(getattr(self._trainer, name, None)) for name in transformers_internals.PROGRESS},
            "subclass": self._subclass.read(),
        }

    @property
    def lost(self) -> set[str]:
        """Names of attributes of a subclass that have changed and cannot be stored."""
        return self._subclass.lost

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the place, and what the trainer has not made anew since."""
        self._loaded = state
        self.epoch, self.batches, self.is_stopped = state["epoch"], state["batches"], state["is_stopped"]
        self.set_back()

    def set_back(self) -> None:
        """Set it again: the trainer makes some of it anew as it begins, and an evaluation at the start writes to it."""
        if self._loaded is None:
            return
        state = self._trainer.state
        for name, value in json.loads(self._loaded["state"]).items():
            setattr(state, name, value)
        state.log_history[:] = self._logged.unpacked(self._loaded["logged"])
        for name, value in self._loaded["sums"].items():
            if value is not None:
                setattr(self._trainer, name, value.clone() if isinstance(value, torch.Tensor) else value)
        self._subclass.write(self._loaded["subclass"])
        waiting = list(self._others())
        for kind, attributes in self._loaded["callbacks"]:
            callback = next((one for one in waiting if type(one).__name__ == kind), None)
            if callback is not None:
                waiting.remove(callback)
                for name, value in json.loads(attributes).items():
                    setattr(callback, name, value)

    def go_on(self) -> None:
        """Discard the restored state: training has resumed."""
        self._subclass.settle()
        self._loaded = None

    def _others(self) -> list[Any]:
        return [
            one for one in self._trainer.callback_handler.callbacks if isinstance(one, transformers_internals.ExportableState)
        ]


def _plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
