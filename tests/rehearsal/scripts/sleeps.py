"""Starts a process in a session of its own, and sleeps."""

import subprocess
import time

subprocess.Popen(["sleep", "300"], start_new_session=True)
open("started", "w").close()
time.sleep(300)
