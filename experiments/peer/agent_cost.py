"""The trainer that an agent starts to find out what saving costs a step: peer, folder, width, interval, turns, file for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from peer.cost import measure

if __name__ == "__main__":
    torch.set_num_threads(1)
    peer, folder, width, every, blocks, out = sys.argv[1:]
    Path(out).write_text(json.dumps(measure(peer, Path(folder), int(width), int(every), int(blocks))))
