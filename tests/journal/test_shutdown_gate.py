"""The gate between the training thread and a thread that ends the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from tests.support.waiting import wait_until
from tranlogs.journal.shutdown_gate import ShutdownGate, gated


class Gated:
    def __init__(self) -> None:
        self.gate = ShutdownGate()

    @gated
    def pass_through(self, do: Callable[[], object] = lambda: None) -> object:
        return do()


def in_thread(do: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    return thread


def test_who_shuts_waits_for_the_call_inside_and_nobody_enters_afterwards() -> None:
    thing, may_go, has_left = Gated(), threading.Event(), threading.Event()

    def train() -> None:
        thing.pass_through(may_go.wait)
        has_left.set()
        thing.pass_through()  # waits forever

    thread = in_thread(train)
    wait_until(lambda: thing.gate.depth, "inside")
    assert not thing.gate.shut(0.05)
    thing.pass_through()  # The thread that has shut it may enter.
    may_go.set()
    assert thing.gate.shut(10)
    assert has_left.wait(10)
    thread.join(0.2)
    assert thread.is_alive()
    assert thing.gate.depth == 0


def test_a_nested_call_goes_on_after_the_gate_was_shut() -> None:
    thing, inside, may_go, nested = Gated(), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        inside.set()
        may_go.wait()
        thing.pass_through(nested.set)

    in_thread(lambda: thing.pass_through(work))
    assert inside.wait(10)
    assert not thing.gate.shut(0.05)
    may_go.set()
    assert nested.wait(10)
    assert thing.gate.shut(10)


def test_an_interrupt_while_entering_a_shut_gate_leaves_the_count_right(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Gated()
    in_thread(lambda: thing.gate.shut(1)).join()

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(thing.gate._changed, "notify_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thing.pass_through()
    assert thing.gate.depth == 0


def test_a_forked_child_passes_a_shut_gate_of_which_a_thread_held_the_lock() -> None:
    thing, may_go = Gated(), threading.Event()
    in_thread(lambda: thing.gate.shut(1)).join()

    def hold() -> None:
        with thing.gate._changed:
            may_go.wait()

    in_thread(hold)
    wait_until(lambda: "owner=0" not in repr(thing.gate._changed), "held")
    pid = os.fork()
    if pid == 0:
        thing.pass_through()
        os._exit(0)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG) != (0, 0), "ended")
    may_go.set()
