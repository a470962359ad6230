"""Real training processes under SIGKILL at random moments: every loop ends with the bits of a run that nobody killed."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.crash.torch_child import BATCHES, KILLS, LOOPS, train
from tests.support import campaign

pytestmark = pytest.mark.crash

OPTIONS: list[dict[str, Any]] = [{}, {"durability": "machine"}, {"writer": "thread"}, {"checkpoint_every": 1000}]
_context = multiprocessing.get_context("forkserver")  # imports torch once; each child is forked from there
_context.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.optim.swa_utils", "tranlogs_torch", "tests.crash.torch_child"]
)


class Child:
    """A process that trains; it is gone at the end of the block."""

    def __init__(self, name: str, run: Path | None, hurries_for: int = BATCHES, **options: Any) -> None:
        self.said: list[tuple[str, Any]] = []
        self._pipe, theirs = _context.Pipe(duplex=False)
        self.process = _context.Process(target=train, args=(theirs, name, run, options, hurries_for))
        self.process.start()
        theirs.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._pipe.close()

    def hear(self, kind: str, count: int = 1) -> None:
        """Listen until it has said so many things of a kind, or ends."""
        try:
            while len(self.all(kind)) < count:
                self.said.append(self._pipe.recv())
        except (EOFError, ConnectionResetError):
            self.process.join()

    def kill(self) -> None:
        """SIGKILL, and hear what was still on its way."""
        self.process.kill()
        self.process.join()
        self.hear("nothing more")

    def all(self, kind: str) -> list[Any]:
        """What it has said of a kind."""
        return [content for said, content in self.said if said == kind]


def trained(name: str, run: Path | None, **options: Any) -> Child:
    """A child that trained to the end."""
    with Child(name, run, **options) as child:
        child.hear("done")
        child.process.join()
        assert child.process.exitcode == 0, f"the child ended with {child.process.exitcode}"
    return child


def assert_nothing_is_lost(child: Child, begun: int, lost_at_most: int) -> None:
    """It took the run up behind all batches that were done when another had begun, on verified bits."""
    for report in child.all("recovered"):
        assert report.exact is not False, report
        assert report.batch or report.step >= begun - lost_at_most, f"batch {begun} had begun; recovery landed on {report}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LOOPS)
def test_killed_run_ends_with_the_bits_of_one_that_was_not(name: str, tmp_path: Path) -> None:
    chance, run, begun, kills = campaign.dice(name), tmp_path / "run", 0, 0
    options = chance.choice(OPTIONS)
    lost_at_most = 1000 if "writer" in options else LOOPS[name][2]  # a queue dies with its process
    print(options)
    for _ in range(KILLS):
        heard = chance.randrange(1, 10)
        with Child(name, run, hurries_for=heard + 2, **options) as child:
            if chance.random() < 0.2:  # in its start, in recovery, or in the first batches
                child.process.join(chance.random() * 0.3)
            else:
                child.hear("recovered")
                child.hear("batch", heard)
                child.process.join(chance.random() * 0.005)
            child.kill()
        kills += child.process.exitcode == -signal.SIGKILL
        assert_nothing_is_lost(child, begun, lost_at_most)
        begun = max([begun, *child.all("batch")])
    last, right = trained(name, run, **options), trained(name, None)
    assert_nothing_is_lost(last, begun, lost_at_most)
    (state, _), (right_state, right_batches) = last.all("done")[0], right.all("done")[0]
    assert [path for path in right_state if state.get(path) != right_state[path]] == []
    for line in Path(f"{run}.seen").read_text().splitlines():
        number, _, digest = line.partition(" ")
        assert not digest or right_batches[int(number)] == int(digest), f"batch {number} differs"
    assert kills >= KILLS // 2, "most children ended before they were killed: train longer"
    print(kills, "kills")
