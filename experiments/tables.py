"""What the JSON of each experiment says, as Markdown: what a user needs of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paired_timing import AUTO, FLOOR, MACHINE, PLAIN
from peer.adapters import PEERS
from peer.cost import ways_of
from pictures import TALK

Lines = list[str]

_FAILURE_HOURS = 1  # from a failure to the next
_EVERY = "10"  # steps between the saves of the systems that are compared


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Lines:
    """A Markdown table, with an empty line behind it."""
    return [_row(head), "|".join(["---"] * len(head)), *map(_row, rows), ""]


def prose(text: str) -> Lines:
    """A paragraph, with an empty line behind it."""
    return [textwrap.fill(" ".join(text.split()), 128, break_long_words=False, break_on_hyphens=False), ""]


def _row(cells: Sequence[object]) -> str:
    return " | ".join(map(str, cells)).rstrip()


def _quartiles(found: Sequence[float] | Mapping[str, float]) -> str:
    """Return a value and its quartiles."""
    numbers = [found[key] for key in ("median", "q25", "q75")] if isinstance(found, Mapping) else found
    value, low, high = (f"{number:.2f}" for number in numbers)
    return f"{value} [{low}-{high}]"


def policies(results: dict[str, Any]) -> Lines:
    """Waste of each policy at some sizes, and how far the default is from the best."""
    wasted, nodes = results["wasted"], results["nodes"]
    columns = [
        (name, i) for name in wasted for i in (0, len(nodes) // 2, len(nodes) - 1) if name == "exponential, computed again"
    ]
    ours, best = (next(name for name in next(iter(wasted.values())) if word in name) for word in ("auto", "best"))
    behind = max(mine - least for found in wasted.values() for mine, least in zip(found[ours], found[best], strict=True))
    gain = max(
        mine - min(others) for found in wasted.values() for mine, *others in zip(found[ours], *found.values(), strict=True)
    )
    lines = prose(f"""
        A simulation: percent of time lost to failures and checkpoints in a job of 30 days (mean of {results["jobs"]}), at
        failure rates that Meta has published, with a checkpoint of {results["cost"]:.0f} s and a restart of
        {results["restart"]:.0f} s. The default is at most {100 * behind:.1f} points behind Young/Daly with the mean known
        beforehand; fitted probabilities and learning gain at most {100 * gain:.1f} over it, and lose more elsewhere. The
        table has exponential times between failures and work that is computed again; the picture has others, too.""")
    head = ["policy", *(f"{nodes[i]:,} machine{'s' * (nodes[i] > 1)}" for _, i in columns)]
    policies = next(iter(wasted.values()))
    rows = [[policy, *(f"{100 * wasted[name][policy][i]:.2f}" for name, i in columns)] for policy in policies]
    return lines + table(head, rows)


def reduced(results: dict[str, Any]) -> Lines:
    """What rounding does to training, and what it costs and saves."""
    lines = prose("""
        Loss on data held back, mean of three seeds; spread is the deviation of the seeds without rounding. The log leaves out
        zeros of float32: 86 % of the gradients of the small tensors are.""")
    models = [
        [name, *(f"{mean:.4f}" for mean in found["verdict"]["means"].values()), f"{found['verdict']['spread']:.4f}"]
        for name, found in results["models"].items()
    ]
    lines += table(("model", "gradients", "bf16", "int8", "spread"), models)
    rows = [
        [
            f"{one['case']}, {one['threads']} thread{'s' * (one['threads'] > 1)}",
            *(f"{found[0]:.2f}" for found in one["over_gradients"].values()),
            *(f"{found / one['bytes']['gradients']:.2f}" for found in list(one["bytes"].values())[1:]),
        ]
        for one in results["times"]
        if one["threads"] == 2
    ]
    return lines + table(("over gradients", "step, bf16", "step, int8", "bytes, bf16", "bytes, int8"), rows)


# The talk.


def step_time(results: dict[str, Any]) -> Lines:
    """Phases of a step; what replay saves."""
    lines = prose(f"""
        What redoing a step from the log (reading, checksums, the update, the fingerprint) saves of a computed one, among
        {results["logged"]} that are redone together; beside it the share of a step that is not the optimizer's own arithmetic.
        Processor time. The state was compared bit for bit.""")
    rows: list[Sequence[object]] = [["the talk (its model is not known)", "", *(f"{100 * TALK[log]:.0f} %" for log in TALK)]]
    for name, found in results["models"].items():
        saved = [f"{100 * found['logs'][log]['saved'][0]:.0f} %" for log in TALK]
        whole = f"{100 * found['others'][0]:.0f} %"
        rows.append([f"{name}, {found['parameters'] / 1e6:.2f} M", whole, *saved])
    head = ["model", "all but the optimizer", *(f"saved, logged by {log}" for log in TALK)]
    return lines + table(head, rows)


def recovered_quality(results: dict[str, Any]) -> Lines:
    """Quality after recovery: a row for each model and interval."""
    interval, models = results["interval"], results["models"]
    steps = " and ".join(f"{number * interval} to {(number + 1) * interval - 1}" for number in results["intervals"])
    crashes = sum(len(found["points"]) for found in models.values())
    lines = prose(f"""
        {crashes} processes died by SIGKILL after steps {steps}; a checkpoint every {interval} steps. Loss (nats) on data held
        back, right after recovery. TranLogs brought back the uninterrupted run each time, bit for bit. Worst crash: the one
        that costs the checkpoint most. The talk has up to 24 %.""")
    rows = []
    for name, found in models.items():
        better = [1 - point["tranlogs"]["loss"] / point["checkpoint"]["loss"] for point in found["points"]]
        worst = found["points"][better.index(max(better))]
        losses = [f"{worst[way]['loss']:.3f}" for way in ("checkpoint", "tranlogs")]
        rows.append([name, *losses, f"{100 * min(better):.0f} to {100 * max(better):.0f} %"])
    head = ["model", "worst crash: checkpoint", "TranLogs", "loss better by, all crashes"]
    return lines + table(head, rows)


def store(results: dict[str, Any]) -> Lines:
    """Puts and gets of one object, and recovery, by place."""
    lines = prose("""
        With ASYNC_THROUGH a put ends when the object is in the memory of Alluxio's workers; durable is the time from then until
        the store calls it so. Medians for an object of 16 MiB; all processes on one machine.""")
    rows = (
        [row["store"], *(f"{row[what]['median'] * 1e3:.0f}" for what in ("put", "get", "durable"))]
        for row in results["objects"]
        if row["bytes"] == 16 << 20
    )
    lines += table(["store", "put, ms", "get, ms", "durable, ms"], rows)
    lines += _by_model(results, "stores", "Step time over that without a store, which ships from a thread of the trainer:")
    return lines + _by_model(results, "recovery", "Recovery of a killed run, over that from the local disk:")


def _by_model(results: dict[str, Any], part: str, about: str) -> Lines:
    found = results["training"]
    measured = dict.fromkeys(name for one in found.values() for name in one[part])
    places = [name for name in measured if not name.startswith(("no store", "local disk"))]
    rows = ([model, *(_quartiles(one[part][place]["ratio"]) for place in places)] for model, one in found.items())
    return prose(about) + table(["model", *places], rows)


# Other systems.


def peers(results: dict[str, Any]) -> Lines:
    """Costs, crashes, faults, T_wasted."""
    found = [peer for name, peer in results["peers"].items() if name in PEERS]
    lines = prose(f"""
        An MLP of {results["parameters"] / 1e6:.1f} M parameters, AdamW, a schedule, shuffled batches, one thread: its steps
        are short for its size, which is hard for a log. All systems are handed weights, optimizer, schedule, random numbers
        and the place in the data, as their documentation says; a save every {_EVERY} steps. With `log="auto"`, the default,
        TranLogs goes on without tensors here. Step time: mean (99th percentile) over no saving. Steps lost, or computed again
        with `log="inputs"`: the mean of kills at random moments, and how often what came back was exact. Back: seconds from
        the start of the script's own work until it is behind the crash step. Wasted: percent of time at a failure an hour,
        T_wasted = t_ckpt + 1/(2f) + t_rtvl (Gemini, SOSP'23), at the best interval of 1, 10 and 100 steps where nothing wrong
        came back. [How each system is used](../experiments/README.md).""")
    rows = ([peer["title"], *_costs(peer), *_kills(peer), *_faults(peer), _wasted(peer)] for peer in found if "cost" in peer)
    costs = ["step time", "MB a step", "steps lost", "back, s"]
    return lines + table(["system", *costs, "a bit of the newest save flips", "disk full", "wasted"], rows)


def _wasted(peer: dict[str, Any]) -> str:
    ways = ways_of(peer)
    return f"{100 * min(way.share(3600 * _FAILURE_HOURS) for way in ways):.1f}" if ways else ""


def _at(peer: dict[str, Any], part: str) -> dict[str, Any] | None:
    """Return what a peer has at the interval: one that logs each step has the same at all."""
    by_interval: dict[str, Any] = peer.get(part, {})
    return by_interval.get(_EVERY, next(iter(by_interval.values())) if peer["logs_steps"] and by_interval else None)


def _costs(peer: dict[str, Any]) -> list[str]:
    one = _at(peer, "cost")
    return ["", ""] if one is None else [f"{one['mean']:.2f} ({one['p99']:.2f})", f"{one['written_per_step'] / 1e6:.1f}"]


def _kills(peer: dict[str, Any]) -> list[str]:
    kills, crash = _at(peer, "kills"), _at(peer, "crash")
    said = ""
    if kills is not None and kills["lost"]:
        exact, tries = kills["verdicts"].get("exact", 0), sum(kills["verdicts"].values())
        said = f"{sum(kills['lost']) / len(kills['lost']):.1f}; {exact} of {tries}"
    return [said, f"{crash['seconds']:.2f}" if crash is not None and "seconds" in crash else ""]


def _faults(peer: dict[str, Any]) -> list[str]:
    return [_worst(peer.get("faults", {}).get(name, [])) for name in ("flip", "full")]


def _worst(tries: list[dict[str, Any]]) -> str:
    """Of several tries of a fault, the worst outcome."""
    if not tries:
        return ""
    order = ("exact", "nothing on disk", "did not start", "hung", "refused", "wrong")
    row = max(tries, key=lambda one: (order.index(one["verdict"]), one.get("lost", 0)))
    lost = f", {row['lost']} lost" if "lost" in row else ""
    return f"{row['verdict']}{lost}{', training stops' if any('died' in one for one in tries) else ''}"


def keras_own(results: dict[str, Any]) -> Lines:
    """One kill under Keras' own checkpoints, and under TranLogs."""
    lines = prose("""
        60 steps of `fit`, a save every ten, SIGKILL as step 38 begins; then the same script again. Exact: in the end all bits
        are those of a run that was never killed.""")
    titles = {"its own checkpoints": "BackupAndRestore", "TranLogs": "TranLogs"}
    rows = (
        [titles[row["by"]], row["finished_steps_lost"], "yes" if row["exact"] else "no"]
        for row in results["rows"]
        if row["trainer"] == "keras"
    )
    return lines + table(["saved by", "finished steps lost", "exact"], rows)


# What TranLogs costs.


def bench(results: dict[str, Any]) -> Lines:
    """Steps, redone steps, recovery, disk, checkpoints."""
    lines = prose("""
        A step with `log="gradients"` over a plain one, in steady state: median [quartiles over the rounds], mean.
        Floor: gradients are written and hashed, parameters are hashed, and nothing else is done: no log of
        gradients can cost less here. Auto: `log="auto"`.""")
    rows: list[Sequence[object]] = []
    for case in results.get("steps", {}).get("cases", ()):
        threads = f"{case['threads']} thread{'s' * (case['threads'] > 1)}"
        rows.append(_step(f"{case['case']}, {threads}", case["steady"]))
    for part in ("trainers", "keras"):
        rows += [_step(case["case"], case["arms"]) for case in results.get(part, {}).get("cases", ())]
    head = ["case", "plain, ms", "logged", "mean", "floor", "auto", "its mean"]
    if not any(row[-1] for row in rows):  # measured before that arm was there
        head, rows = head[:-2], [row[:-2] for row in rows]
    lines += table(head, rows)
    tell = {"replay": _replay, "recovery": _recovery, "disk": _disk, "checkpoint": _checkpoint}
    return lines + [line for part, told in tell.items() if part in results for line in told(results[part])]


def _step(case: str, arms: dict[str, Any]) -> Sequence[object]:
    logged, floor, auto = arms[MACHINE], arms.get(FLOOR), arms.get(AUTO)
    return [
        case,
        f"{arms[PLAIN]['ms']:.2f}",
        _quartiles(logged["median"]),
        f"{logged['mean'][0]:.2f}",
        f"{floor['median'][0]:.2f}" if floor else "",
        *(f"{auto[key][0]:.2f}" if auto else "" for key in ("median", "mean")),
    ]


def _replay(found: dict[str, Any]) -> Lines:
    lines = prose("A step that recovery redoes from the log, over the optimizer's step alone and over the computed step:")
    ratios = ("over_bare", "over_computed")
    rows = (
        [f"{one['case']}, {one['form']} AdamW", f"{one['redone_ms']:.1f}", *(f"{one[key][0]:.2f}" for key in ratios)]
        for one in found["replays"]
    )
    return lines + table(["model", "redone, ms", "over the optimizer's step", "over the computed step"], rows)


def _recovery(found: dict[str, Any]) -> Lines:
    one = found["recoveries"][0]
    commands = {name: sorted(seconds)[len(seconds) // 2] for name, seconds in found["commands"].items()}
    told = "; ".join(f"`{name}` {seconds:.2f} s" for name, seconds in commands.items() if name.startswith("tranlogs"))
    return prose(f"""
        A killed run of {found["steps"]:,} steps of 1,218 parameters, {found["run_bytes"] / 1e6:.0f} MB, is recovered in
        {one["seconds"]:.1f} s, of which opening takes {one["open"]:.1f} s. On this run: {told}. Python with what a command
        imports starts in {next(iter(commands.values())):.2f} s.""")


def _disk(found: dict[str, Any]) -> Lines:
    rows = (
        [f"{one['case']}, {one['steps']:,} steps", *(f"{one[key] / (1 << 20):.2f}" for key in ("payload", "young", "closed"))]
        for one in found["young"]
    )
    lines = prose("What a run takes on the disk, without its checkpoints, in MiB:")
    return lines + table(["run", "payload", "while it trains", "after `close()`"], rows)


def _checkpoint(found: dict[str, Any]) -> Lines:
    memory = found["memory"]
    return prose(f"""
        A checkpoint of {found["state_bytes"] / 1e6:.0f} MB stalls the training thread by {found["stall_ms"]:.0f} ms,
        {found["over_memcpy"]["median"]:.1f} times a memcpy of the state. Logging and checkpoints take
        {(memory["logged_bytes"] - memory["plain_bytes"]) / 1e6:.0f} MB more memory at the peak.""")


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
        was never killed, bit for bit. Do steps come out the same twice? {kernels}. A checkpoint stalls a step by
        {min(checkpoint["stall_ms"]):.0f} to {max(checkpoint["stall_ms"]):.0f} ms. A recovery over {recovery["replayed"]} steps
        took {recovery["took"]:.1f} s, {1e3 * recovery["seconds_replay"] / recovery["replayed"]:.0f} ms a redone step. The tests
        on CUDA: {results["tests"]["summary"]}.""")
    lines += prose("""
        Step time over plain training, median [quartiles]. With 124 M parameters training waits for the disk.""")
    cost = {tuple(name.split(": ")): found for name, found in results["cost"].items() if ": " in name and "ms" in found}
    models, logs = dict.fromkeys(model for model, _ in cost), dict.fromkeys(log for _, log in cost)
    rows = (
        [log, *(f"{_quartiles(found['median'])}, +{found['added_ms'][0]:.0f} ms" for found in (cost[m, log] for m in models))]
        for log in logs
    )
    return lines + table(["log, durability", *models], rows)


def bench_monitor(results: dict[str, Any]) -> Lines:
    """Beside a training run, beside nothing, and under three budgets."""
    rows = [
        [f"step time of a {model}, {name}", _quartiles(ratio)]
        for model, found in results["slowdown"].items()
        for name, ratio in found.items()
        if "noise" not in name
    ]
    for interval, found in results["idle"].items():
        hour, memory = found["cpu_seconds_an_hour"], found["memory_bytes"] / 1e6
        rows.append([f"idle, --interval {interval}", f"{hour:.1f} CPU seconds an hour, {memory:.0f} MB"])
    budgets = (
        [budget, *(f"{found[key] / (1 << 20):.1f}" for key in ("most_bytes", "last_bytes"))]
        for budget, found in results["storage"].items()
        if budget != "circumstances"
    )
    lines = table(["the monitor", "measured"], rows)
    lines += prose("A toy that logs 1 MB a second, beside a monitor with `--interval 0.5s`:")
    return lines + table(["budget", "on disk at most, MiB", "in the end"], budgets)
