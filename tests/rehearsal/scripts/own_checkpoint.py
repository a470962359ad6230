"""A loop that does not use the library, and continues from a checkpoint of its own that it writes every tenth step."""

import os
import sys
import time

sys.stderr = open("../outside.log", "a")  # noqa: SIM115
first, weight = 0, 0.0
if os.path.exists("last.pt"):
    with open("last.pt") as file:
        first, weight = (float(word) for word in file.read().split())
for step in range(int(first), 100):
    weight += 0.1 * (1 - weight)
    print(f"step {step}: weight {weight:.6f}")
    time.sleep(0.05)
    if step % 10 == 9:  # the next line follows at once: a kill between the two is rare
        with open("next.pt", "w") as file:
            print(step + 1, weight, file=file)
        os.replace("next.pt", "last.pt")
