"""Program that starts the training script in a working folder that takes up what the script writes.

It is run as a file, by an interpreter that imports the standard library only:

    launch.py FOLDER UPPER WORK COMMAND...

FOLDER is the working folder. If UPPER is not empty, a file system is mounted over FOLDER, for this process and its children
alone: they read the files of FOLDER, and what they write goes to UPPER. WORK is a folder that the kernel needs beside UPPER.
Exit code 126: the file system cannot be mounted. 127: the command cannot be started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_SLAVE = 0x4000, 0x80000
_PR_SET_PDEATHSIG = 1


def main(folder: str, upper: str, work: str, *command: str) -> None:
    """Mount the file system, and become the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if upper:
        try:
            _mount(libc, folder, upper, work)
        except OSError as error:
            print(f"{folder}: cannot be mounted over ({error})", file=sys.stderr)
            sys.exit(126)
    os.chdir(folder)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def _mount(libc: ctypes.CDLL, folder: str, upper: str, work: str) -> None:
    options = f"lowerdir={folder},upperdir={upper},workdir={work}"
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        _check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
        for name, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
        options += ",userxattr"
    # What the system unmounts is unmounted here, too, where its mounts are shared; nothing of this namespace gets out.
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None))
    _check(libc.mount(b"overlay", folder.encode(), b"overlay", 0, options.encode()))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
