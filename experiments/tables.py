"""What the JSON of each experiment says, as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from pictures import TALK

Lines = list[str]
_TALK_BYTES = {"gradients": "1.82 GB", "weights": "1.85 GB"}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Lines:
    """A Markdown table, with an empty line behind it."""
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows), ""]


def prose(text: str) -> Lines:
    """A paragraph, with an empty line behind it."""
    return [textwrap.fill(" ".join(text.split()), 128, break_long_words=False, break_on_hyphens=False), ""]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _percent(found: Sequence[float]) -> str:
    """A share with its interval."""
    middle, low, high = (f"{100 * share:.1f}" for share in found)
    return f"{middle} % [{low}, {high}]"


def _spread(found: dict[str, Any], digits: int = 2) -> str:
    """Median and quartiles of a ratio."""
    return f"{found['median']:.{digits}f} [{found['q25']:.{digits}f}-{found['q75']:.{digits}f}]"


# The talk.


def step_time(results: dict[str, Any]) -> Lines:
    """Phases of a step; what replay saves."""
    models, phases = results["models"], results["phases"]
    lines = prose(f"""
        Processor time of one thread, {results["rounds"]} rounds of {results["steps"]} steps each, the models in turn; [95 %
        intervals of a bootstrap over the rounds]. AdamW in fp32. Forward includes the loss, optimizer `zero_grad`. The last
        column is what a free replay of gradients would save: all but the optimizer's own arithmetic.""")
    lines += table(
        ["model", "data", "parameters, batch", "ms a step", *phases, "all but the optimizer"],
        (
            [
                name,
                found["data"],
                f"{found['parameters'] / 1e6:.2f} M, {found['batch']}",
                f"{found['seconds'][0] * 1e3:.1f}",
                *(_percent([bound[i] for bound in found["shares"]]) for i in range(len(phases))),
                _percent(found["without_optimizer"]),
            ]
            for name, found in models.items()
        ),
    )
    lines += prose(f"""
        What redoing a step from the log saves of it, by TranLogs' own recovery: `seconds_replay`, which is reading the log
        and its checksums, the update, and comparing the fingerprint, against the computed steps of the same round. Alone: a
        recovery that redoes one step. Among others: one that redoes {results["logged"]}, a step of them (weights: the last
        record holds all, those before it are passed over). Each recovery was compared bit for bit; without optimizer state
        the weights are exact and the optimizer's state is the checkpoint's, so that what follows is another training.
        Reading costs by the byte, and the optimizer's share stays: a model that computes little for each parameter gains
        least.""")
    rows: list[Sequence[object]] = [
        ["the talk (its model and machine are not known)", log, _TALK_BYTES[log], "", f"{100 * share:.2f} %", ""]
        for log, share in TALK.items()
    ]
    for name, found in models.items():
        for log, about in found["logs"].items():
            nbytes = about["bytes_per_step"]
            rows.append(
                [
                    name,
                    log,
                    f"{nbytes / 1e6:.2f} MB",
                    f"{nbytes / found['parameters']:.1f}",
                    _percent(about["saved"]["one"]),
                    _percent(about["saved"]["many"]),
                ]
            )
    head = ["model", "logged", "bytes a step", "bytes a parameter", "saved of a step, alone", "among others"]
    return lines + table(head, rows)


def recovered_quality(results: dict[str, Any]) -> Lines:
    """Quality after recovery: a row for each model and interval."""
    interval, models = results["interval"], results["models"]
    crashes = sum(len(found["points"]) for found in models.values())
    lines = prose(f"""
        {crashes} processes died by SIGKILL, {", ".join(results["places"][:-1])} or {results["places"][-1]} of the batch
        after the step in question, in turn. A checkpoint every {interval} steps, in both ways by the same process. Loss
        (nats) and accuracy are those on data that was held back, right after recovery and before any batch is computed
        again. **At each of these points TranLogs brought back the uninterrupted run, bit for bit** (weights, buffers, and so
        loss and accuracy); the script fails otherwise. Better: how much lower the loss is than the checkpoint's, and by how
        many points of a hundred the accuracy is higher; the talk has up to 24 % and 6 %.""")
    rows = []
    for name, found in models.items():
        for number in results["intervals"]:
            points = [point for point in found["points"] if point["step"] // interval == number]
            rows.append([name, f"{number * interval} to {(number + 1) * interval - 1}", len(points), *_better(points)])
    head = [
        "model",
        "crash after step",
        "crashes",
        "worst crash for the checkpoint",
        "its loss",
        "TranLogs",
        "its accuracy",
        "TranLogs",
        "loss better by, all crashes",
        "accuracy better by",
    ]
    return lines + table(head, rows)


def _better(points: list[dict[str, Any]]) -> list[str]:
    """The crash that costs a checkpoint's loss most, and the ranges over all."""
    loss = [1 - point["tranlogs"]["loss"] / point["checkpoint"]["loss"] for point in points]
    accuracy = [100 * (point["tranlogs"]["accuracy"] - point["checkpoint"]["accuracy"]) for point in points]
    worst = points[loss.index(max(loss))]
    ours, theirs = worst["tranlogs"], worst["checkpoint"]
    return [
        f"{worst['step'] - theirs['step']} steps behind it",
        f"{theirs['loss']:.3f}",
        f"{ours['loss']:.3f}",
        f"{theirs['accuracy']:.1%}",
        f"{ours['accuracy']:.1%}",
        f"{100 * min(loss):.1f} to {100 * max(loss):.1f} %",
        f"{min(accuracy):.1f} to {max(accuracy):.1f}",
    ]


def storage(results: dict[str, Any]) -> Lines:
    """Bytes under three budgets."""
    lines = prose("""
        A toy that logs 100 KB a step, ten steps a second, with a daemon beside it that looks once in half a second. Between two
        looks a run lies above its budget by what it logs meanwhile; a look takes at most a twentieth of the time, so they
        become rare where it waits long for a processor or a disk.""")
    rows = (
        [
            budget,
            *(f"{found[key] / (1 << 20):.1f} MiB" for key in ("most_bytes", "last_bytes")),
            found["looks"],
            f"{max(found['seconds_between_looks'], default=0):.1f} s",
        ]
        for budget, found in _without_circumstances(results).items()
    )
    return lines + table(["budget", "on disk at most", "in the end", "looks", "longest between two"], rows)


def store(results: dict[str, Any]) -> Lines:
    """Puts and gets."""
    tell = {"objects": _objects, "training": _shipped, "lag": _lag}
    return [line for part, told in tell.items() if part in results for line in told(results[part])]


def _objects(rows: list[dict[str, Any]]) -> Lines:
    lines = prose("""
        Asynchronous persistence is the write type ASYNC_THROUGH: a put ends when the object is in the memory of workers;
        durable is what it then takes until the store calls it so. Medians, one thread, all processes on one machine.""")
    return lines + table(
        ["store", "MiB", "put, ms", "get, ms", "durable, ms"],
        (
            [
                row["store"],
                f"{row['bytes'] / (1 << 20):g}",
                *(f"{row[what]['median'] * 1e3:.1f}" for what in ("put", "get", "durable")),
            ]
            for row in rows
        ),
    )


def _shipped(found: dict[str, Any]) -> Lines:
    head = [
        "model",
        "shipped to",
        "step time over that without",
        "sent, MB/s",
        "archived after, s",
        "persisted after, s",
        "read back, MB/s",
    ]
    rows = [
        [
            f"{structure}, {about['parameters'] / 1e6:.2f} M",
            name,
            _spread(one["ratio"]),
            f"{one['bytes_per_second']['median'] / 1e6:.1f}",
            f"{one['archived_seconds']['median']:.2f}",
            f"{one['persisted_seconds']['median']:.2f}",
            f"{one['read']['bytes_per_second']['median'] / 1e6:.1f}" if "read" in one else "",
        ]
        for structure, about in found.items()
        for name, one in about["stores"].items()
    ]
    recovered = (
        [structure, name, f"{one['seconds']['median']:.2f}", _spread(one["ratio"], 1)]
        for structure, about in found.items()
        for name, one in about["recovery"].items()
    )
    again = [one["ratio"]["median"] for about in found.values() for name, one in about["stores"].items() if "noise" in name]
    noise = (
        prose(f"""
        Two trainings without a store, one over the other, came out at {min(again):.2f} to {max(again):.2f}: step times within
        that range say nothing.""")
        if again
        else []
    )
    return table(head, rows) + noise + table(["model", "recovered from", "seconds", "over local"], recovered)


def _lag(found: dict[str, Any]) -> Lines:
    return table(
        ["while a GPT trains, shipped to", "steps not archived", "steps not persisted"],
        ([name, _spread(one["archived_steps"], 1), _spread(one["persisted_steps"], 1)] for name, one in found.items()),
    )


# TranLogs's own costs.


def keras_recovery(results: dict[str, Any]) -> Lines:
    """Redone steps by backend; kills."""
    lines = prose("""
        Redone: a step in recovery over a computed one. Where that is near 1 or above, a model computes so little for each of
        its parameters that redoing a step is not faster than computing it: what the log saves there is the steps themselves,
        bit for bit, and no time.""")
    rows = []
    for backend, cases in _without_circumstances(results).items():
        for name, case in cases.items() if backend != "kills" else ():
            ratio, milliseconds = f"{case['redone_over_computed']:.2f}", f"{case['computed'] * 1e3:.1f}"
            rows.append([backend, f"{name}, {case['parameters'] / 1e6:.2f} M", milliseconds, ratio])
    lines += table(["backend", "model", "computed, ms", "redone over computed"], rows)
    if "kills" in results:
        lines += prose("Batches that are trained again after a SIGKILL under TensorFlow, the one that was running among them:")
        kills = (
            [
                way,
                *(
                    ", ".join(map(str, several))
                    for several in (told["killed_after"], told["lost"], [round(seconds, 1) for seconds in told["seconds"]])
                ),
            ]
            for way, told in results["kills"].items()
        )
        lines += table(["saved by", "killed after batch", "batches again", "seconds to the first new batch"], kills)
    return lines


def distributed(results: dict[str, Any]) -> Lines:
    """By number of processes."""
    lines = prose("""
        The log of a step is divided among the processes; copies: how many of them hold each share. From SIGKILL: what goes
        by until the first new step under torchrun.""")
    lines += table(
        ["processes", "copies", "MB a rank and step", "ms a step", "with the log"],
        (
            [
                row["world"],
                row["copies"],
                f"{row['bytes'] / 1e6:.2f}",
                f"{row['seconds plain'] * 1e3:.1f}",
                f"{row['seconds logged'] / row['seconds plain']:.2f} times",
            ]
            for row in results["steady"]
        ),
    )
    parts = ("agent", "start", "load", "replay", "first step")
    return lines + table(
        ["processes", "copies", *(f"{part}, s" for part in parts), "steps lost", "exact"],
        (
            [row["world"], row["copies"], *(f"{row[part]:.2f}" for part in parts), row["steps lost"], row["exact"]]
            for row in results["killed"]
        ),
    )


def bench_monitor(results: dict[str, Any]) -> Lines:
    """Its parts."""
    lines: Lines = []
    rows = [
        [model, name, _spread(ratio), f"{ratio['seconds'] * 1e3:.0f}", _digits(ratio["cpu_share"])]
        for model, found in results.get("slowdown", {}).items()
        for name, ratio in found.items()
    ]
    if rows:
        lines += table(["model", "beside it", "step time over that without", "ms a step", "processors that it takes"], rows)
    rows = [
        [
            f"idle, --interval {interval}",
            f"{found['cpu_seconds_an_hour']:.1f} CPU seconds an hour, {found['memory_bytes'] / 1e6:.0f} MB",
        ]
        for interval, found in results.get("idle", {}).items()
    ]
    if "evaluation" in results:
        found = results["evaluation"]
        low, middle, high = found["following"]["seconds"]
        rows.append(
            [
                f"an evaluation of {found['segments']:,} segments",
                f"{middle:.2f} s [{low:.2f}-{high:.2f}]; the first {found['first']['seconds']:.1f} s",
            ]
        )
    if "pruning" in results:
        low, middle, high = (rate / 1e6 for rate in results["pruning"]["bytes_a_second"])
        rows.append(["pruning", f"{middle:.0f} MB a second [{low:.0f}-{high:.0f}]"])
    return lines + (table(["the daemon", "measured"], rows) if rows else [])


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _without_circumstances(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key != "circumstances"}


def gpu(results: dict[str, Any]) -> Lines:
    """What the GPU kit found."""
    machine, resume, checkpoint, recovery = (results[part] for part in ("machine", "resume", "checkpoint", "recovery"))
    kernels = ", ".join(
        f"{'yes' if same is True else 'no'} with {name}" for name, same in results["repeats"].items() if "kernels" in name
    )
    verdict = "equal" if resume["is_equal"] and resume["losses_equal"] else "differ from"
    lines = prose(f"""
        {machine["device"]}, {machine["cores"]} processors, a disk that takes {machine["disk_mb_per_s"] / 1e3:.1f} GB/s, torch
        {machine["torch"]}, {machine["at"]} UTC. A GPT-2 of 124 M in bf16, fused AdamW, killed by SIGKILL after steps
        {", ".join(map(str, resume["killed_behind"]))}: weights, optimizer and losses of its end {verdict} those of a run that
        was never killed, bit for bit. Do six steps come out the same twice? {kernels}. A checkpoint stalls a step by
        {min(checkpoint["stall_ms"]):.0f} to {max(checkpoint["stall_ms"]):.0f} ms and is published after
        {max(checkpoint["published_after_seconds"]):.1f} s. A recovery over {recovery["replayed"]} steps took
        {recovery["took"]:.1f} s, {1e3 * recovery["seconds_replay"] / recovery["replayed"]:.0f} ms a redone step, for each of
        which half a gigabyte is read. The tests on CUDA: {results["tests"]["summary"]}.""")
    lines += prose("""
        Step time over plain training, medians in turns [quartiles over the rounds]. A step of this GPU takes less time than the
        disk needs for the gradients of 124 M parameters, so that training waits for the disk.""")
    models = [name for name in results["cost"] if f"{name}: {_RUNGS[0]}" in results["cost"]]
    return lines + table(
        ["log, durability", *models],
        ([rung, *(_cost(results["cost"].get(f"{model}: {rung}", {})) for model in models)] for rung in _RUNGS),
    )


_RUNGS = tuple(f"{rung}, {durability}" for rung in ("gradients", "weights") for durability in ("machine", "process"))


def _cost(found: dict[str, Any]) -> str:
    if "median" not in found:
        return "not taken"
    middle, low, high = found["median"]
    return f"{middle:.2f} [{low:.2f}-{high:.2f}], +{found['added_ms'][0]:.0f} ms"
