"""Sentences about what recovery could not keep: after a change of the number of processes, or without a lost journal."""

from __future__ import annotations

from .agreement import Agreement


def describe_resize(step: int, before: int, now: int) -> list[str]:
    """Return what differs after the number of processes has changed, one sentence each.

    Args:
        step: the step at which all ranks resume.
        before: the number of processes that recorded the run.
        now: the number of processes that continue it.
    """
    continued = (
        f"{_count_processes(before)} recorded the run, and {_count_processes(now)} {_continues(now)} it from step {step}: "
        "weights, optimizer state and tracked objects are those of the run at that step; later steps differ from those of the "
        "earlier processes, since gradients are averaged over other batches and summed in another order"
    )
    last = min(before, now)
    kept = f"{_name_ranks(0, last)} {_continues(last)} with {'its' if last == 1 else 'their'} own"
    if now < before:
        return [continued, f"random numbers and buffers: {kept}; those of {_name_ranks(now, before)} end"]
    new = (
        f"{_name_ranks(before, now)} {_continues(now - before)} with the buffers of rank 0, and with new random numbers that "
        "derive from the run's id, the step and the rank"
    )
    return [continued, f"random numbers and buffers: {kept}; {new}"]


def describe_resharding(step: int) -> list[str]:
    """Return what differs where as many processes as before hold other parts of the parameters, one sentence each."""
    return [
        f"parameters are sharded in another way from step {step} on: weights, optimizer state and tracked objects are those of "
        "the run at that step; later steps may be summed in another order"
    ]


def describe_lost_journals(agreement: Agreement, world: int) -> list[str]:
    """Return what became of the ranks whose journals are lost or end early, one sentence each."""
    notes = []
    for rank in agreement.lost:
        fate = f"the journal of rank {rank} {_describe_fate(rank, agreement)}"
        if rank in agreement.lost_with_copies:
            notes.append(
                f"{fate}: its gradient shards and its own state are restored from the copies of rank {(rank - 1) % world}, so "
                "that no step is lost; its curves are those of that rank"
            )
        elif rank in agreement.lost_with_equals:
            notes.append(f"{fate}: the other ranks logged the same, so that no step is lost")
        elif agreement.step and agreement.has_full_records:
            notes.append(
                f"{fate}, and the states of the other ranks differ: all ranks go back to the checkpoint of step "
                f"{agreement.step}"
            )
        elif agreement.step:
            notes.append(
                f"{fate}, and with it a gradient shard of every step: all ranks go back to the checkpoint of step "
                f"{agreement.step}"
            )
    for rank, end in agreement.short_journals:
        notes.append(
            f"the journal of rank {rank} ends at step {end}, and those of other ranks reach step {agreement.last_step}: all "
            f"ranks go back to step {agreement.step}"
        )
    return notes


def describe_substitution(agreement: Agreement, rank: int, donor: int) -> list[str]:
    """Return what differs on a rank whose journal is lost and which redoes the journal of another rank, one sentence."""
    return [
        f"rank {rank} continues from step {agreement.step} with the weights, optimizer state and data position of rank "
        f"{donor}: all ranks had the same ones when they were last compared. State that only this rank had is lost: it "
        f"continues with the buffers of rank {donor} and with new random numbers"
    ]


def _describe_fate(rank: int, agreement: Agreement) -> str:
    if rank in agreement.lost_damaged:
        return "is damaged, and counts as lost"
    return "ends before those of the other ranks" if rank in agreement.lost_behind else "is gone"


def _count_processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _continues(count: int) -> str:
    return "continues" if count == 1 else "continue"


def _name_ranks(first: int, end: int) -> str:
    return f"rank {first}" if end - first == 1 else f"ranks {first} to {end - 1}"
