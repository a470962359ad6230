"""A loop that does not use the library: it saves what it has learned, and never loads it."""

import time

weight = 0.0
for step in range(60):
    weight += 0.1 * (1 - weight)
    time.sleep(0.02)
    print(f"step {step}: weight {weight:.6f}")
    if step % 10 == 0:
        with open("model.pt", "w") as file:
            print(weight, file=file)
