"""Ctrl-C at each moment of what `close` does: the run is closed all the same, or is when `close` is called again."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.support.toy import ToyTrainer
from tests.support.toy_steps import state_at


def was_interrupted(work: Callable[[], None], moment: int) -> bool:
    """KeyboardInterrupt at the given one (from 0) of the moments at which CPython looks for one: a function is entered, or one
    of C has returned. False if the work has fewer."""
    passed = itertools.count()

    def profile(_: FrameType, event: str, __: Any) -> None:
        if event in ("call", "c_return") and next(passed) == moment:
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("writer", ["direct", "thread"])
def test_an_interrupted_close_can_be_called_again(toy: Callable[..., ToyTrainer], writer: str) -> None:
    step = 0
    for moment in itertools.count():
        trainer = toy(writer=writer)
        assert trainer.recover().step == step, f"an interrupt at {moment - 1}"
        step += 1
        trainer.train(step)
        if not was_interrupted(trainer.journal.close, moment):
            break
        trainer.journal.close()
    assert moment > 30
    last = toy()
    assert last.recover().step == step
    assert last.state.everything() == state_at(step)
