"""The kernel that notebooks are executed with: this environment's, reached through file sockets.

Jupyter would look up "python3" by name. Inside a venv that finds the venv's kernel first, but a
JUPYTER_PATH, a conda base environment or JUPYTER_PREFER_ENV_PATH=0 lets a kernel of the same name
win that was registered by somebody else for another Python. Here no name is looked up.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from traitlets import default

# the file that takes what kernels say about themselves
LOG_VARIABLE = "LOCA_KERNEL_LOG"
# a Unix socket's name has at most 104 bytes on macOS and 108 on Linux; Jupyter appends a number
_LONGEST_SOCKET = 100


class ThisEnvironment(KernelSpecManager):
    """Answers every kernel name with the interpreter that runs this process."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(name=kernel_name, resource_dir=RESOURCES, **get_kernel_dict())


class LocalKernelManager(AsyncKernelManager):
    """Starts a kernel of this environment that takes no ports, so runs side by side never clash."""

    def __init__(self, **kwargs: Any) -> None:
        self._folder = tempfile.mkdtemp(prefix="kernel-")
        name = str(Path(self._folder, "k.json"))
        kwargs.setdefault("connection_file", name)
        super().__init__(**kwargs)

    @default("kernel_spec_manager")
    def _this_environment(self) -> KernelSpecManager:
        return ThisEnvironment(parent=self)

    @default("transport")
    def _file_sockets(self) -> str:
        fits = len(self._folder) + len("/k-ipc-1") <= _LONGEST_SOCKET
        return "ipc" if os.name == "posix" and fits else "tcp"

    async def _async_start_kernel(self, **kwargs: Any) -> Any:
        # what the kernel says about itself; what cells write to stderr is part of their outputs
        log = os.environ.get(LOG_VARIABLE)
        with open(log or os.devnull, "a", encoding="utf-8") as stream:
            return await super()._async_start_kernel(**{"stderr": stream, **kwargs})

    # the base class binds its public name to its own method
    start_kernel = _async_start_kernel

    def cleanup_connection_file(self) -> None:
        super().cleanup_connection_file()
        shutil.rmtree(self._folder, ignore_errors=True)
