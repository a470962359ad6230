"""Puts itself into the background, as daemons do."""

import os
import time

if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(f"daemon {os.getpid()}", flush=True)
time.sleep(300)
