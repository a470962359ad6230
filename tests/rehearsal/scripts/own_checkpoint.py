"""A loop that does not use the library, and continues from a checkpoint of its own that it writes every tenth step."""

import os
import sys
import time

sys.stderr = open("../outside.log", "a")  # noqa: SIM115
first, weight = 0, 0.0
if os.path.exists("last.pt"):
    with open("last.pt") as file:
        first, weight = (float(word) for word in file.read().split())
for step in range(int(first), 60):
    if step % 10 == 0:
        with open("last.pt", "w") as file:
            print(step, weight, file=file)
    weight += 0.1 * (1 - weight)
    time.sleep(0.02)
    print(f"step {step}: weight {weight:.6f}")
