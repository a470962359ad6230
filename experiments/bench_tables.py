"""What `make bench` measured, as Markdown: figures beside their goals, then each part in detail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from figures import goal_rows
from paired_timing import PLAIN
from tables import Lines, prose, table

_STATISTICS = ("median", "mean", "p99")
_HEAD = (*_STATISTICS, "added, ms")


def bench(results: dict[str, Any]) -> Lines:
    """All figures, whether they met their goals, and the parts that were measured."""
    figures = [figure for part in results.values() for figure in part.get("figures", [])]
    lines = prose("""
        Figures and goals. Smaller is better; "beyond" is a stricter goal. A median, mean or 99th percentile is over that of the
        plain arm of the same rounds. Brackets are quartiles: over the rounds for medians, of a bootstrap over the rounds for
        means and percentiles, over the trials where whole processes were timed. Steady state: log files are used again.""")
    lines += table(["case", "figure", "measured", "goal", "", "beyond", ""], goal_rows(figures))
    for part, tell in _PARTS.items():
        if part in results:
            lines += tell(results[part])
    return lines


def recheck(found: dict[str, Any]) -> Lines:
    """The unit that is computed again after a crash, over the unit."""
    lines = prose("""
        After a crash the script's loop computes the newest unit again, once, and what comes of it is compared with the log.
        "Compared": the time that the training thread was in the comparison, added to the unit that is computed. "Processor
        time": with all else that TranLogs does in the first unit of a process. One torch thread, medians over pairs.""")
    return lines + table(["case", "figure", "measured", "goal", "", "beyond", ""], goal_rows(found["figures"]))


def _steps(found: dict[str, Any]) -> Lines:
    lines = prose("""
        Training steps of PyTorch, AdamW, over plain ones. "Fresh": the first seconds of a run, on new log files. Steps that
        take a checkpoint lie between the blocks and do not count.""")
    if any(arm.startswith("floor") for case in found["cases"] for arm in case["steady"]):
        lines += prose("""
            "Floor": gradients are hashed and written to a file that is used again, parameters are hashed, and nothing else is
            done, so that nothing could be recovered: the least that any log of gradients costs on this machine. Where a goal
            lies below it, no log can meet the goal here.""")
    rows = []
    for case in found["cases"]:
        for state in ("steady", "fresh"):
            for arm, one in case[state].items():
                if arm != PLAIN:
                    rows.append(
                        [
                            case["case"],
                            case["threads"],
                            f"{case[state][PLAIN]['ms']:.2f}",
                            state,
                            arm,
                            *_ratios(one),
                            _spread(one["added_ms"], 3),
                        ]
                    )
    return lines + table(["case", "threads", "plain, ms", "files", "arm", *_HEAD], rows)


def _fits(title: str, found: dict[str, Any]) -> Lines:
    rows = [
        [case["case"], f"{case['arms'][PLAIN]['ms']:.2f}", arm, *_ratios(one), _spread(one["added_ms"], 3)]
        for case in found["cases"]
        for arm, one in case["arms"].items()
        if arm != PLAIN
    ]
    return prose(title) + table(["case", "plain, ms", "arm", *_HEAD], rows)


def _trainers(found: dict[str, Any]) -> Lines:
    return _fits('Steps of trainers, whole fits in turns, one thread. "Floor": as above, on used files from the start.', found)


def _keras(found: dict[str, Any]) -> Lines:
    return _fits(
        """
        Steps of Keras' `fit`, whole fits in turns. "Floor" is less than what a log needs: bytes of the size of the gradients
        are hashed and written behind each step, and as many as the variables have are hashed, but no step is waited for, and
        nothing is taken out of it.""",
        found,
    )


def _append(found: dict[str, Any]) -> Lines:
    lines = prose(f"""
        An append of {found["bytes_per_record"] / 1e6:.1f} MB, 10 ms apart, over the median memcpy of the same bytes. Steps that
        take a checkpoint do not count. "Plain file": the same bytes written to a file by this script, first when its blocks are
        allocated and no more, then again. What the first writing costs more is memory for the page cache: a virtual machine
        that gives free memory back to its host pays for each page that it takes, and so does every log on fresh files.""")
    rows = [
        [
            *(one[key] for key in ("durability", "files", "count")),
            f"{one['memcpy_ms']:.2f}",
            *(_spread(one[key], 2) for key in _STATISTICS),
        ]
        for one in found["appends"]
    ]
    return lines + table(["durability", "log files", "appends", "memcpy, ms", *_STATISTICS], rows)


def _replay(found: dict[str, Any]) -> Lines:
    rows = [
        [
            one["case"],
            one["form"],
            *(f"{one[key]:.2f}" for key in ("computed_ms", "bare_ms", "redone_ms")),
            _spread(one["over_bare"], 2),
            _spread(one["over_computed"], 3),
        ]
        for one in found["replays"]
    ]
    return table(
        [
            "model",
            "AdamW",
            "computed, ms",
            "optimizer alone, ms",
            "redone, ms",
            "redone over optimizer alone",
            "redone over computed",
        ],
        rows,
    )


def _recovery(found: dict[str, Any]) -> Lines:
    lines = prose(f"""
        Recovery of a killed run of {found["steps"]:,} steps of 1,218 parameters, {found["run_bytes"] / 1e6:.0f} MB on disk;
        each on a copy, in a process of its own.""")
    rows = [
        [f"{one[key]:.2f}" for key in ("seconds", "open", "replay", "rest")] + [f"{one['more_memory_bytes'] / 1e6:.0f}"]
        for one in found["recoveries"]
    ]
    return lines + table(["seconds", "opening", "redoing steps", "rest", "more memory, MB"], rows)


def _disk(found: dict[str, Any]) -> Lines:
    mib = 1 << 20
    rows = [
        [
            one["case"],
            f"{one['steps']:,}",
            *(f"{one[key] / mib:.2f}" for key in ("payload", "segment_bytes", "young", "closed")),
            ", ".join(f"{name} {size / mib:.2f}" for size, _, name in one["largest_files_closed"][:3]),
        ]
        for one in found["young"]
    ]
    lines = table(
        ["run", "steps", "payload, MiB", "segment, MiB", "on disk, MiB", "after close, MiB", "largest files then, MiB"], rows
    )
    written = [
        [
            f"{one['payload'] / 1e6:.0f}",
            *(_over(one[key], one["payload"]) for key in ("device", "process")),
            f"{one['quiet_bytes_per_second'] / 1e6:.2f}",
        ]
        for one in found["writes"]
    ]
    head = ["appended in steady state, MB", "device wrote, over that", "pages dirtied, over that", "device when quiet, MB/s"]
    return lines + table(head, written)


def _checkpoint(found: dict[str, Any]) -> Lines:
    memory = found["memory"]
    extra = (memory["logged_bytes"] - memory["plain_bytes"]) / 1e6
    ratio = _spread([found["over_memcpy"][key] for key in ("median", "q25", "q75")], 2)
    stall = f"{found['stall_ms']:.1f} ms, {ratio} of a memcpy of the state"
    return table(
        ["a checkpoint", "measured"],
        [
            ["stall of the training thread", stall],
            [
                "more memory than plain training",
                f"{extra:.0f} MB at the peak; the state is {found['state_bytes'] / 1e6:.0f} MB",
            ],
        ],
    )


_PARTS = {
    "steps": _steps,
    "trainers": _trainers,
    "keras": _keras,
    "append": _append,
    "replay": _replay,
    "recovery": _recovery,
    "disk": _disk,
    "checkpoint": _checkpoint,
}


def _ratios(one: dict[str, Any]) -> list[str]:
    return [_spread(one[key], 3) for key in _STATISTICS]


def _spread(found: Sequence[float], digits: int) -> str:
    value, low, high = (f"{number:.{digits}f}" for number in found)
    return f"{value} [{low}-{high}]"


def _over(nbytes: float | None, payload: int) -> str:
    return "not counted" if nbytes is None else f"{nbytes / payload:.3f}"
