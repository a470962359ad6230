"""The picture of the peers: what saving costs, and T_wasted over the rate of failures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.waste import ways_of
from pictures import INK, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (
    "#dc2626",
    "#93c5fd",
    "#3b82f6",
    "#1e3a8a",
    "#0d9488",
    "#65a30d",
    "#a16207",
    "#d97706",
    "#9333ea",
    "#64748b",
    "#db2777",
    "#78350f",
)
_MEAN_TIMES = [60 * 1.25**i for i in range(40)]  # seconds between failures, from a minute to days


def draw_peers(path: Path, results: dict[str, Any]) -> None:
    """Left mean step times by interval, right the share of time that is lost."""
    figure, (costs, waste) = new_figure("Saving, crashing, coming back: the same job, the same machine", (12, 5), (1, 2))
    peers = [peer for peer in results["peers"].values() if any("error" not in one for one in peer.get("cost", {}).values())]
    assert len(peers) <= len(_COLOURS), "each system has a colour of its own"
    for colour, peer in zip(_COLOURS, peers, strict=False):
        _draw_costs(costs, peer, colour)
        _draw_waste(waste, peer, colour)
    costs.set_xscale("log")
    costs.set_xlabel("steps between saves", color=INK)
    costs.set_ylabel("mean step time over no saving", color=INK)
    costs.axhline(1, color=INK, lw=0.6)
    if peers:
        costs.legend(frameon=False, fontsize=8)
    waste.set(xscale="log", yscale="log")
    waste.set_xlabel("failures a day", color=INK)
    waste.set_ylabel("share of time lost, best interval", color=INK)
    figure.savefig(path)


def _draw_costs(axes: Axes, peer: dict[str, Any], colour: str) -> None:
    found = {int(every): one["mean"] for every, one in peer["cost"].items() if "error" not in one}
    if peer["logs_steps"]:
        found = dict.fromkeys((1, 10, 100), next(iter(found.values())))
    axes.plot(
        list(found), list(found.values()), "o-", color=colour, ms=4, lw=2.4 if peer["logs_steps"] else 1.2, label=peer["title"]
    )


def _draw_waste(axes: Axes, peer: dict[str, Any], colour: str) -> None:
    if ways := ways_of(peer):
        shares = [min(way.share(mean) for way in ways) for mean in _MEAN_TIMES]
        axes.plot([86400 / mean for mean in _MEAN_TIMES], shares, color=colour, lw=2.4 if peer["logs_steps"] else 1.2)
