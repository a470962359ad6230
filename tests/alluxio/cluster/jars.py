"""The JDK, and Alluxio's jars in the user's cache: resolved by Maven once, whichever process asks first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from .pom import VERSION, pom

JAVA_MIN, JAVA_MAX = 11, 23  # from 24 on Alluxio's copy of ForkJoinPool reads a field that Thread no longer has


class Missing(Exception):
    """What a cluster needs is not on this machine; the message says what, and how to get it."""


def java() -> str:
    """The command of a JDK that can run Alluxio."""
    home = os.environ.get("JAVA_HOME")
    known = sorted(str(path) for path in Path("/usr/lib/jvm").glob("*17*/bin/java"))
    for command in [*([f"{home}/bin/java"] if home else []), *known, shutil.which("java")]:
        if command is None or not os.access(command, os.X_OK):
            continue
        told = subprocess.run([command, "-version"], capture_output=True, text=True, check=False).stderr
        found = re.search(r'version "(\d+)', told)
        if found and JAVA_MIN <= int(found[1]) <= JAVA_MAX:
            return command
    raise Missing(f"no JDK {JAVA_MIN} to {JAVA_MAX} was found: install openjdk-17-jdk-headless")


def class_path() -> str:
    """All jars, for `java -cp`. The first call on a machine downloads some 210 MB.

    Raises:
        Missing: there is no Maven, or it could not resolve them.
    """
    text = pom()
    folder = _cache() / f"alluxio-{VERSION}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the process dies, too
        if not folder.is_dir():
            _resolve(text, folder)
    return ":".join(str(path) for path in sorted(folder.glob("*.jar")))


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "tranlogs"


def _resolve(text: str, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("no Maven was found: install maven")
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    (unfinished / "pom.xml").write_text(text)
    command = [
        maven,
        "-q",
        "-B",
        "-f",
        str(unfinished / "pom.xml"),
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={unfinished}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise Missing(f"Maven could not resolve Alluxio's jars:\n{(done.stdout + done.stderr)[-4000:]}")
    unfinished.rename(folder)  # commit point
