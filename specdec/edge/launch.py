"""`python launch.py PARENT_PID CORES COMMAND...`: becomes COMMAND, bound to CORES (comma separated) and to
the life of its parent. A program of its own, standard library only: what it sets survives exec, and setting
it between fork and exec of a process that has threads is not safe."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, cores: str, *command: str) -> None:
    if sys.platform == "linux":
        # Nobody is left to follow a SIGTERM up, so it is the signal that cannot be ignored.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    if os.getppid() != int(parent):
        sys.exit("the parent was gone before this process had begun")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
