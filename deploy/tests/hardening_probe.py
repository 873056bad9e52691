"""Tries operations that a service must be able to do, and others that it must not; prints the
successful ones as JSON.

    python3 hardening_probe.py WRITABLE_FOLDER
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

CLONE_NEWUSER = 0x1000_0000
libc = ctypes.CDLL(None, use_errno=True)


def goes_well(attempt: Callable[[], object]) -> bool:
    """Returns true if the attempt succeeds; runs it in a child, as it may end the process."""
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def write(folder: str) -> Callable[[], object]:
    def attempt() -> None:
        path = Path(folder, f"probe-{os.getpid()}")
        path.write_text("")
        path.unlink()

    return attempt


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def see_others() -> None:
    """Reads the state of systemd's own process."""
    if not Path("/proc/1/status").exists():
        raise FileNotFoundError


def writable_code() -> None:
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC):
        pass


def set_user_id() -> None:
    path = Path(sys.argv[1], "suid")
    path.write_text("")
    path.chmod(0o4755)


def loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


ATTEMPTS: dict[str, Callable[[], object]] = {
    "write its folder": write(sys.argv[1]),
    "connect on loopback": loopback,
    "shared memory": lambda: os.close(os.memfd_create("probe", os.MFD_CLOEXEC)),
    "read the system": lambda: Path("/etc/os-release").read_text(),
    "read datasets": lambda: Path("/srv/data/readable").read_text(),
    "write /usr": write("/usr"),
    "write /etc": write("/etc"),
    "write /var/lib": write("/var/lib"),
    "write a home": write("/home/trainer"),
    "write datasets": write("/srv/data"),
    "read a home": lambda: Path("/home/trainer/readable").read_text(),
    "see others": see_others,
    "another namespace": lambda: check(libc.unshare(CLONE_NEWUSER)),
    "raw sockets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
    "writable code": writable_code,
    "set-user-id files": set_user_id,
    "trace its child": lambda: check(libc.ptrace(0, 0, 0, 0)),
    "kernel log": lambda: check(libc.klogctl(3, ctypes.create_string_buffer(16), 16)),
    "host name": lambda: socket.sethostname(socket.gethostname()),
    "change the user": lambda: os.setuid(os.getuid() + 1),
}


def main() -> None:
    signal.signal(signal.SIGSYS, signal.SIG_DFL)
    print(json.dumps({what: goes_well(attempt) for what, attempt in ATTEMPTS.items()}), flush=True)


main()
