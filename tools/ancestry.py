"""Processes that end when the one that ordered their work is gone.

`make book` is a chain: make, the supervisor (`tools.book`), Snakemake, a runner, a kernel.
`kill -9` reaches only one link; without care the rest would go on computing for nobody. So every
link watches the one above it.
"""

import os
import sys
import threading
import time
from pathlib import Path

VARIABLE = "LOCA_SUPERVISOR"
_SECONDS = 0.5


def alive(pid: int) -> bool:
    """Whether a process with this number runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _zombie(pid)


def _zombie(pid: int) -> bool:
    """Whether it is dead but not yet collected, as under an init that collects nobody (Linux)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["Z"]


def end_with_supervisor() -> None:
    """End this process soon after the supervisor named in the environment, or its parent, is gone.

    Without a supervisor (the runner was started by hand) nothing is watched.
    """
    supervisor = os.environ.get(VARIABLE)
    if supervisor is None:
        return
    watch = threading.Thread(
        target=_watch, args=(int(supervisor), os.getppid()), name="ancestry", daemon=True
    )
    watch.start()


def _watch(supervisor: int, parent: int) -> None:
    while alive(supervisor) and os.getppid() == parent:
        time.sleep(_SECONDS)
    print("stopped, because the run that started this was killed", file=sys.stderr)
    sys.stderr.flush()
    # at once: the main thread may wait in a library; the kernel ends when its parent is gone
    os._exit(143)
