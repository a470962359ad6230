"""What is not as it was: with another number of processes, without a journal that is gone; in words."""

from __future__ import annotations

from .agreement import Agreement


def told_of_change(step: int, before: int, now: int) -> list[str]:
    """What is not as it would have been, one sentence each.

    Args:
        step: where all landed.
        before: how many processes recorded the run.
        now: how many go on.
    """
    told = [
        f"{_count(before)} recorded the run, and {_count(now)} {_verb(now)} on from step {step}: weights, optimizer state and "
        "what is tracked are those of the run there; what follows is not what the others would have computed, as gradients "
        "are averaged over other batches and summed in another order"
    ]
    kept = f"{_ranks(0, min(before, now))} on with what was their own"
    if now < before:
        told.append(f"random numbers and buffers: {kept}; those of {_named(now, before)} end")
    else:
        told.append(f"random numbers and buffers: {kept}; {_ranks(before, now)} on with the buffers of rank 0, and with new "
                    "random numbers, made of the run's id, the step and the rank")  # fmt: skip
    return told


def told_of_layout(step: int) -> list[str]:
    """What is not as it would have been, where as many processes hold other parts of the parameters; one sentence each."""
    return [f"the parameters lie otherwise over the processes from step {step} on than they did: weights, optimizer state and "
            "what is tracked are those of the run there; what follows may be summed in another order"]  # fmt: skip


def told_of_loss(agreement: Agreement, world: int) -> list[str]:
    """What became of the ranks whose journals are gone, or end early, one sentence each."""
    told = []
    for rank in agreement.lost:
        fate = f"the journal of rank {rank} {_fate(rank, agreement)}"
        if rank in agreement.beside:
            told.append(f"{fate}: its shares, and what was its own, are taken from the copies of rank {(rank - 1) % world}, so "
                        "that no step is lost; its curves are that rank's")  # fmt: skip
        elif rank in agreement.alike:
            told.append(f"{fate}: the others have all that it logged, so that no step is lost")
        elif agreement.step and agreement.is_whole:
            told.append(f"{fate}, and the states of the others differ: all ranks go back to the checkpoint of step "
                        f"{agreement.step}")  # fmt: skip
        elif agreement.step:
            told.append(f"{fate}, and with it a share of every step: all ranks go back to the checkpoint of step "
                        f"{agreement.step}")  # fmt: skip
    for rank, end in agreement.short:
        told.append(f"the journal of rank {rank} ends at step {end}, and those of others go on to step {agreement.end}: all "
                    f"ranks go back to step {agreement.step}")  # fmt: skip
    return told


def told_of_likeness(agreement: Agreement, rank: int, donor: int) -> list[str]:
    """What is not as it was on a rank whose journal is gone, and which goes on with what another has; one sentence."""
    return [f"rank {rank} goes on from step {agreement.step} with weights, optimizer state and place in the data of rank "
            f"{donor}, which are taken to be its own, as those of all ranks were the same when they were last compared; what "
            f"was its own alone is gone: it has the buffers of rank {donor}, and new random numbers"]  # fmt: skip


def _fate(rank: int, agreement: Agreement) -> str:
    if rank in agreement.damaged:
        return "is damaged, and counts as gone"
    return "ends before that of the others" if rank in agreement.behind else "is gone"


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _verb(count: int) -> str:
    return "goes" if count == 1 else "go"


def _named(first: int, end: int) -> str:
    return f"rank {first}" if end - first == 1 else f"ranks {first} to {end - 1}"


def _ranks(first: int, end: int) -> str:
    return f"{_named(first, end)} {_verb(end - first)}"
