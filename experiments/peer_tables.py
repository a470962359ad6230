"""What the experiments on other systems found, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from peer.waste import HOURS, Large, ways_of
from tables import Lines, prose, table

_OURS = "tranlogs"
_SEED = 7
_EVERY = ("1", "10", "100")
_HOURS = (0.1, 1, 24)  # between failures
_STOPPING = ("full", "shm")  # scenarios that may end a training before it is killed
_COMPARED = (  # part, key, in words, unit
    ("cost", "mean", "mean step time", ""),
    ("cost", "p99", "99th percentile of step time", ""),
    ("cost", "written_per_step", "MB written a step", "MB"),
    ("crash", "lost", "steps lost", ""),
    ("crash", "seconds", "seconds back to the crash step", "s"),
)


def peers(results: dict[str, Any]) -> Lines:
    """Costs, crashes, faults, where a peer is ahead, the large job."""
    found = results["peers"]
    lines = prose(f"""
        An MLP of {results["parameters"] / 1e6:.1f} M parameters with dropout and batch statistics, AdamW, a schedule,
        shuffled batches; one thread, one process. All peers are handed weights, optimizer, schedule, torch's random numbers
        and the place in the data, in the way that their documentation says; where a careful script needs code of its own for
        that, it has it. Two saves are kept. TranLogs logs each step, by gradients, with `durability="machine"` (synced)
        unless it says otherwise; its checkpoints are taken at the interval of the others' saves, in this first part every 100
        steps. Flash Checkpoint runs stand-alone, with its saver in a process beside the trainer, and once under its agent,
        which saves then, and starts a dead trainer again.""")
    if results["missing"]:
        lines += prose("Left out: " + "; ".join(f"{title} ({why})" for title, why in results["missing"].items()) + ".")
    if results["late"]:
        lines += prose(f"""
            The time was up before {len(results["late"])} measurements, whose places are empty; the JSON names them.
            `make experiments EXPERIMENTS="peers"` takes all anew.""")
    if results.get("failed"):
        lines += prose("These measurements failed, which is the script's fault: " + "; ".join(results["failed"]) + ".")
    lines += _costs(found, results["parameters"]) + _crashes(found) + _kills(found) + _outruns(found, results.get("outrun", {}))
    lines += _faults(found, results["scenarios"]) + _ahead(found, results["scenarios"])
    return lines + _large()


def _at(peer: dict[str, Any], part: str, every: str) -> dict[str, Any] | None:
    """What a peer has at an interval: one that logs each step has the same at all."""
    by_interval: dict[str, Any] = peer.get(part, {})
    one = by_interval.get(every, next(iter(by_interval.values())) if peer.get("logs_steps") and by_interval else None)
    return None if one is None or (part == "cost" and "error" in one) else one


def _costs(found: dict[str, Any], parameters: int) -> Lines:
    lines = prose("""
        **What saving costs a step**: mean (median; 99th percentile) of its time over one without saving, in turns within one
        process; percentiles over the median without. MB a step: pages that the process and its helpers dirtied for a disk. A
        new log file of TranLogs is written when it is made ready, and again when it is filled; one that is used again once. Two
        of those that a checkpoint frees are kept for that.""")

    def cells(peer: dict[str, Any]) -> Iterator[str]:
        for every in _EVERY:
            one = _at(peer, "cost", every)
            yield f"{one['mean']:.2f} ({one['median']:.2f}; {one['p99']:.2f})" if one else ""
        for every in _EVERY:
            one = _at(peer, "cost", every)
            yield f"{one['written_per_step'] / 1e6:.1f}" if one else ""

    if not any("cost" in peer for peer in found.values()):
        return []
    head = ["system", "version", *(f"every {every}" for every in _EVERY), *(f"MB a step, every {every}" for every in _EVERY)]
    lines += table(head, ([p["title"], p["version"], *cells(p)] for p in found.values() if "cost" in p))
    plain = [one for p in found.values() for one in p.get("cost", {}).values() if "error" not in one]
    if plain:
        steps = sorted(one["plain_ms"] for one in plain)
        noise = sorted(one["p99_plain"] for one in plain)
        lines += prose(f"""
        A step without saving took {steps[0]:.1f} to {steps[-1]:.1f} ms (medians of these processes), and its own 99th
        percentile was {noise[0]:.2f} to {noise[-1]:.2f} times that: the machine's noise. It computes little for each of its
        parameters, whose gradients are {4 * parameters / 1e6:.1f} MB, so that a log shows more than it does where a step takes
        longer (a GPT: What TranLogs costs, below).""")
    failed = [
        f"{peer['title']}, every {every}: `{one['error'][-200:]}`"
        for peer in found.values()
        for every, one in peer.get("cost", {}).items()
        if "error" in one
    ]
    return lines + (prose("Failed: " + "; ".join(failed)) if failed else [])


def _crashes(found: dict[str, Any]) -> Lines:
    lines = prose("""
        **A SIGKILL at a random moment** of one step, the same for all peers with an interval (TranLogs: the one of interval
        100). Seconds are those from the start of the restarted script's own work (imports are done) until it is behind the
        crash step again, with the steps that it has to compute again; in brackets until the newest save is back.""")

    def cell(one: dict[str, Any] | None) -> str:
        if one is None:
            return ""
        if "seconds" not in one:
            return _verdict(one)
        return f"{one['lost']} of {one['finished']}; {one['seconds']:.2f} s ({one['seconds_back']:.2f}); {one['verdict']}"

    rows = ([p["title"], *(cell(_at(p, "crash", every)) for every in _EVERY)] for p in found.values() if "crash" in p)
    return lines + table(["system", *(f"steps lost, every {every}" for every in _EVERY)], rows)


def _kills(found: dict[str, Any]) -> Lines:
    if not any("kills" in peer for peer in found.values()):
        return []
    lines = prose("""
        **A SIGKILL at random moments of random steps**, of a smaller network, the same steps for all peers with an interval:
        steps lost in the mean, the most in brackets, and how often what came back was exact.""")

    def cell(one: dict[str, Any] | None) -> str:
        if one is None:
            return ""
        tries, lost = sum(one["verdicts"].values()), one["lost"]
        said = f"{sum(lost) / len(lost):.1f} ({max(lost)})" if lost else "all"
        return f"{said}; {one['verdicts'].get('exact', 0)} of {tries} exact"

    rows = ([p["title"], *(cell(_at(p, "kills", every)) for every in _EVERY)] for p in found.values() if "kills" in p)
    return lines + table(["system", *(f"steps lost, every {every}" for every in _EVERY)], rows)


def _outruns(found: dict[str, Any], job: dict[str, Any]) -> Lines:
    if not any("outrun" in peer for peer in found.values()):
        return []
    lines = prose(f"""
        **A saver slower than the trainer**: the large network with batches of {job["batch"]}, whose steps take
        {1e3 * job["step_seconds"]:.1f} ms without saving, saved at each step, and killed after 150.""")

    def cells(row: dict[str, Any]) -> list[str]:
        cost = f"{row['step_seconds'] / job['step_seconds']:.2f}" if "step_seconds" in row else ""
        return [cost, _verdict(row) + (", stops" if "died" in row else ""), f"{row.get('memory', 0) / 1e6:.0f}"]

    head = ["system", "step time over no saving", "what comes back", "memory of it and its helpers, MB"]
    return lines + table(head, ([p["title"], *cells(p["outrun"])] for p in found.values() if "outrun" in p))


def _verdict(row: dict[str, Any]) -> str:
    if "lost" in row:
        return f"{row['verdict']}, {row['lost']} lost"
    return str(row["verdict"])


def _faults(found: dict[str, Any], scenarios: dict[str, str]) -> Lines:
    lines = prose("""
        **Faults, scored the same way for all**: a save (TranLogs: a checkpoint, beside its log) every 4 steps, the trainer
        dead after 14. *exact*: the state that comes back and the training after it are the uninterrupted run's, bit for bit;
        *wrong*: they are not, and nothing was said; *refused*: an error in words, and somebody has to take an older save by
        hand. Several numbers: several tries, or kinds of files (checkpoint; log). *stops*: the fault ended the training
        itself, too. A disk that is full is full until the restart. Another number of processes: see
        below, these are single ones.""")
    rows = []
    for peer in found.values():
        if "faults" in peer:
            rows.append(
                [peer["title"], *(_cell(peer["faults"].get(name, []), name) for name in scenarios), _orphans(peer["faults"])]
            )
    return lines + table(["system", *scenarios.values(), "orphans after SIGKILL"], rows)


def _cell(tries: list[dict[str, Any]], name: str = "") -> str:
    if not tries:
        return ""
    if name not in _STOPPING and (untried := sum("died" in row for row in tries)):
        return f"{untried} of {len(tries)} not tried: an error before the kill"
    told = [_verdict(row) + (", stops" if "died" in row else "") for row in tries]
    if len(set(told)) == 1:
        return told[0] if len(told) == 1 else f"{len(told)} x {told[0]}"
    verdicts = [row["verdict"] for row in tries]
    if len(set(verdicts)) == 1 and all("lost" in row and "died" not in row for row in tries) and len(tries) > 2:
        lost = [row["lost"] for row in tries]
        return f"{len(tries)} x {verdicts[0]}, {min(lost)} to {max(lost)} lost"
    return "; ".join(told)


def _orphans(faults: dict[str, Any]) -> str:
    return str(max((row.get("orphans", 0) for rows in faults.values() for row in rows), default=0))


def _ahead(found: dict[str, Any], scenarios: dict[str, str]) -> Lines:
    """Every place where a peer is better than TranLogs, from the figures above."""
    ours = found.get(_OURS)
    if ours is None:
        return []
    others = [peer for name, peer in found.items() if not name.startswith(_OURS)]
    told = []
    for every in _EVERY:
        for part, key, what, unit in _COMPARED:
            told += _better(others, ours, what, every, _reader(part, key, unit, every))
        told += _better(others, ours, "steps lost by random kills, in the mean", every, partial(_mean_lost, every))
    told += _better(others, ours, "mean step time where steps are shorter than a save takes", "1", _outrun_seconds)
    for name, title in scenarios.items():
        mine = ours.get("faults", {}).get(name, [])
        told += [
            f"{title}: {peer['title']} ({_cell(tries, name)}; TranLogs {_cell(mine, name)})"
            for peer in others
            if mine
            and (tries := peer.get("faults", {}).get(name))
            and _worst(tries) < _worst(mine)
            and (name in _STOPPING or not any("died" in row for row in tries))
        ]
    told += (wasted := list(_less_wasted(others, ours)))
    if not told:
        return prose("**Where a peer is ahead of TranLogs**, by these figures: nowhere.")
    lines = ["**Where a peer is ahead of TranLogs**, by these figures alone:", "", *(f"- {line}." for line in told), ""]
    if wasted:
        step = next(iter(ours["cost"].values()))["plain_ms"]
        lines += prose(f"""
            By T_wasted rare saves are the better ones for a job like this: a hundred lost steps of {step:.0f} ms cost
            {step / 10:.1f} s. A log pays where a step is dear (the simulation below), and where what comes back has to be the
            run itself, to the step.""")
    return lines


def _less_wasted(others: list[dict[str, Any]], ours: dict[str, Any]) -> Iterator[str]:
    for hours in _HOURS:
        shares = {
            peer["title"]: 100 * min(way.share(3600 * hours) for way in ways)
            for peer in (ours, *others)
            if (ways := ways_of(peer))
        }
        mine = shares.pop(ours["title"], 0.0)
        if better := [f"{title} {share:.2f} %" for title, share in shares.items() if share < mine]:
            yield f"time lost (T_wasted), a failure in {hours} h: {', '.join(better)}; TranLogs {mine:.2f} %"


def _mean_lost(every: str, peer: dict[str, Any]) -> float | None:
    """None where not all that came back was right."""
    one = _at(peer, "kills", every)
    return None if one is None or set(one["verdicts"]) != {"exact"} else float(sum(one["lost"]) / len(one["lost"]))


def _outrun_seconds(peer: dict[str, Any]) -> float | None:
    row = peer.get("outrun", {})
    return row["step_seconds"] if row.get("verdict") == "exact" and "died" not in row else None


def _reader(part: str, key: str, unit: str, every: str) -> Callable[[dict[str, Any]], float | None]:
    def read(peer: dict[str, Any]) -> float | None:
        one = _at(peer, part, every)
        value = None if one is None or one.get("verdict", "exact") != "exact" else one.get(key)
        return None if value is None else float(value) / (1e6 if unit == "MB" else 1)

    return read


def _better(
    others: list[dict[str, Any]], ours: dict[str, Any], what: str, every: str, read: Callable[[dict[str, Any]], float | None]
) -> list[str]:
    mine = read(ours)
    better = [
        f"{peer['title']} {value:.2f}"
        for peer in others
        if mine is not None and (value := read(peer)) is not None and value < 0.995 * mine
    ]
    return [f"{what}, saved every {every}: {', '.join(better)}; TranLogs {mine:.2f}"] if better else []


def _worst(tries: list[dict[str, Any]]) -> tuple[int, int, int]:
    """Of several tries: what is worse is greater."""
    order = {"exact": 0, "nothing on disk": 1, "refused": 1, "did not start": 1, "hung": 1, "wrong": 2}
    return max(((order[row["verdict"]], row.get("lost", 0), "died" in row) for row in tries), default=(0, 0, False))


def _large() -> Lines:
    about = asdict(Large())
    lost = {hours: Large().simulate(3600 * hours, _SEED) for hours in HOURS}
    lines = prose("""
        **T_wasted = t_ckpt + 1/(2f) + t_rtvl** (Gemini, SOSP'23), at the measured values: the picture, each system at the
        interval of the three that is best for it at that rate of failures. Restarting processes is not in it; it is the same
        for all. An interval at which something wrong came back, in the kills above, is not in it either. What a step costs
        more at a long interval, a hundredth or two, is within the machine's noise, and so are differences of such shares.""")
    lines += prose(f"""
        The same for {about["parameters"] / 1e9:.0f} B parameters on {about["devices"]:,} GPUs, a **simulation** of
        {about["days"]} days, nothing of it measured: {about["state_bytes"]} bytes of state a parameter,
        {about["gradient_bytes"]} of gradients; a step of {about["step"]:.1f} s; {about["store"] / 1e9:.0f} GB/s to the shared
        store in all, {about["disk"] / 1e9:g} GB/s to a node's disk, {about["host"] / 1e9:.0f} GB/s to host memory and
        {about["network"] / 1e9:g} GB/s to another node's for each GPU; a step redone from the log takes
        {about["optimizer"]:g} s beside reading; {about["restart"]:.0f} s until processes run again; with
        {about["node_lost"]:.0%} of failures a node's memory and disk are lost, with none those of two. Traffic to other nodes
        and second copies hide behind training. Intervals are Young's. Share of time that does not go into new steps, by hours
        between failures:""")
    return lines + table(
        ["saved", *(f"{hours} h" for hours in lost)],
        ([name, *(f"{100 * shares[name]:.2f} %" for shares in lost.values())] for name in lost[HOURS[0]]),
    )


def other_world(results: dict[str, Any]) -> Lines:
    """One SIGKILL, and another number of processes after it."""
    lines = prose(f"""
        A network of {results["parameters"] / 1e6:.1f} M parameters under `fully_shard`, over Gloo on this machine. After
        {results["crash"]} steps one process dies by SIGKILL; what saves does so every {results["every"]} steps. Then another
        number of processes goes on. Exact: weights and optimizer, gathered whole, are bit for bit those that the first
        number of processes had at that step. (What they compute from there on is rounded as their number makes it.)""")
    head = ["processes", "saved by", "state that comes back", "steps lost", "loaded in, s"]
    rows = (
        [f"{row['from']}, then {row['to']}", row["way"], row["verdict"], row.get("lost", ""), row.get("seconds", "")]
        for row in results["rows"]
    )
    slower = [
        f"{row['from']} to {row['to']}"
        for row in results["rows"]
        if row["way"] == "TranLogs"
        and any(
            other.get("seconds", 1e9) < row.get("seconds", 0)
            for other in results["rows"]
            if (other["from"], other["to"]) == (row["from"], row["to"])
        )
    ]
    said = f"Loaded faster than by TranLogs, which also redoes steps, in: {', '.join(slower)}." if slower else ""
    return lines + table(head, rows) + (prose(said) if said else [])


def trainers(results: dict[str, Any]) -> Lines:
    """One kill under each trainer's own checkpoints, and under TranLogs."""
    lines = prose("""
        60 steps, a checkpoint every ten, SIGKILL as step 38 begins; then the same script again, as the trainer's
        documentation says. Exact: all bits of weights and optimizer in the end are those of a run that was never killed.""")
    rows = ([row["trainer"], row["by"], row["finished_steps_lost"], "yes" if row["exact"] else "no"] for row in results["rows"])
    return lines + table(["trainer", "saved by", "finished steps lost", "exact"], rows)


def torchft(results: dict[str, Any]) -> Lines:
    """Two replicas; one dies; both die."""
    lines = prose(f"""
        torchft {results["version"]}, two replicas of the same network over Gloo on this machine. Its job is another one than a
        log's: a replica that dies is healed from one that lives, and nothing is on disk. SIGKILL after {results["crash"]}
        steps; started again at once, and {results["after"]} steps more when both train together. The batches of a replica
        that is not there are not trained, so what follows is another training, the same one on both.""")
    head = ["what dies", "steps lost", "equal in the end", "slowest step of the first replica, s", "healed after, s"]
    rows = (
        [row["what"], row["lost"], "yes" if row["equal"] else "no", row["slowest"], row["healed"]] for row in results["rows"]
    )
    lines += table(head, rows)
    one = next((row for row in results["rows"] if row["what"] == "one replica"), None)
    if one is not None:
        lines += prose(f"""
            **torchft is ahead** where one of two dies: the other goes on after {one["slowest"]:.1f} s without being started
            again, and nothing is redone; TranLogs ends the group, starts it anew and redoes the log (Many processes, below).
            Where both die nothing is left of it but what something else has saved.""")
    return lines
