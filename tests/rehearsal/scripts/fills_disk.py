"""Writes more than the rehearsal may."""

import time

with open("large.bin", "wb") as file:
    file.write(bytes(4 << 20))
time.sleep(300)
