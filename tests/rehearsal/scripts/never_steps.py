"""Never takes a step, and ignores every signal that it can; it would use tranlogs_torch if it came to that."""

import signal
import time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(1)
