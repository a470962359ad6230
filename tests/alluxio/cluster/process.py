"""One process of the cluster. It dies with the thread that started it, whatever that dies of."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import jars
from .settings import ROLES, Role

_LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.Target=System.out
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} - %m%n
"""

# Modules that some of the libraries look into; Java 17 keeps them closed.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.loader",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)

# For processes that live for seconds: what is loaded is trusted, and compiled once.
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")


def write_log_settings(home: Path) -> None:
    """The file that `command` points the processes at."""
    (home / "conf/log4j.properties").write_text(_LOG4J)


def command(
    role: Role, home: Path, properties: Mapping[str, object], arguments: Sequence[str] = (), *, is_impatient: bool = True
) -> list[str]:
    """How a process is started. `properties` win over those of the site's file. `is_impatient`: start fast.

    Raises:
        Missing: there is no JDK, or the jars cannot be got.
    """
    conf, logs = home / "conf", home / "logs"
    told = {
        # These four are read from the command line only; without site.conf.dir the user's own settings would be read, too.
        "alluxio.conf.dir": conf,
        "alluxio.site.conf.dir": f"{conf}/",
        "alluxio.logs.dir": logs,
        "alluxio.user.logs.dir": logs / "user",
        "alluxio.home": home,
        "alluxio.logger.type": "Console",
        "log4j.configuration": f"file:{conf}/log4j.properties",
        "java.net.preferIPv4Stack": "true",
        "org.apache.jasper.compiler.disablejsr199": "true",
        "io.netty.allocator.numDirectArenas": "2",
        **properties,
    }
    return [
        jars.java(),
        f"-Xmx{role.heap}",
        "-Xms32m",
        f"-XX:MaxDirectMemorySize={role.direct}",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        *(_QUICK if is_impatient else []),
        *(f"--add-opens={module}=ALL-UNNAMED" for module in _OPENED),
        *(f"-D{key}={value}" for key, value in told.items()),
        "-cp",
        f"{conf}/:{jars.class_path()}",
        role.main,
        *arguments,
    ]


class Process:
    """A running process, with its output in logs/NAME.out."""

    def __init__(self, name: str, role: str, home: Path, properties: Mapping[str, object], *, is_impatient: bool) -> None:
        self.name = name
        self.output = home / f"logs/{name}.out"
        # setpriv leaves itself behind: the JVM has its pid, and the kernel kills it with us.
        words = ["setpriv", "--pdeathsig", "KILL", "--", *command(ROLES[role], home, properties, is_impatient=is_impatient)]
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=home, env=_environment()
            )

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.is_alive:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and it is gone."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def last_words(self, lines: int = 30) -> str:
        """The end of its output."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("ALLUXIO_") and key != "JAVA_TOOL_OPTIONS"}
