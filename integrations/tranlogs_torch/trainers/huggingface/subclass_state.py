"""State that a subclass of Trainer keeps on itself while it trains, such as the sums behind the metrics that it logs.

trl's SFTTrainer counts the tokens that it has seen and collects entropies until the next log: neither is in TrainerState.
"""

from __future__ import annotations

from transformers import Trainer

from ..changed_attributes import ChangedAttributes
from .transformers_internals import trainer_names


def subclass_state(trainer: Trainer) -> ChangedAttributes:
    """Return the attributes of a trainer that its subclass has added, and that change from now on."""
    return ChangedAttributes(trainer, trainer_names())
