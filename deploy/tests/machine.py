"""A machine with a real systemd as first process, in a systemd-nspawn container with its own
network."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import roots
from command import HOME, run, until

#: Booting takes seconds.
BOOT_S = 90.0


class Machine:
    """A machine; files are installed through `root` before it boots."""

    def __init__(self, name: str, binds: tuple[str, ...] = ()) -> None:
        roots.need("systemd-nspawn", "nsenter")
        self.name, self._binds = name, binds
        self.root = HOME / "machines" / name
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.parent.mkdir(parents=True, exist_ok=True)
        # Not shutil.copytree, which would read the devices.
        run(["cp", "--archive", roots.root("systemd"), self.root])
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def __enter__(self) -> Machine:
        log = self.root.with_suffix(".log").open("wb")
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"]
        command += [f"--machine={self.name}", f"--directory={self.root}", *self._binds, "--boot"]
        self._nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        try:
            self._leader = until(self._child, f"{self.name} has a first process", BOOT_S)
            until(self._is_up, f"{self.name} has booted", BOOT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        nspawn, self._nspawn = self._nspawn, None
        if nspawn is None:
            return
        # Requests the machine to power off; the second call kills the rest.
        nspawn.send_signal(signal.SIGTERM)
        try:
            nspawn.wait(BOOT_S)
        except subprocess.TimeoutExpired:
            nspawn.kill()
            nspawn.wait()

    def _child(self) -> int:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, self.root.with_suffix(".log").read_text()
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text()
        return int((children.split() or ["0"])[0])

    def _is_up(self) -> bool:
        state = self.execute("systemctl", "is-system-running").stdout.strip()
        return state in ("running", "degraded")

    def execute(
        self, *arguments: str, user: str | None = None, seconds: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside."""
        enter = ["nsenter", f"--target={self._leader}", "--all", "--"]
        if user is not None:
            enter += ["runuser", "-u", user, "--"]
        return subprocess.run(
            [*enter, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"},
        )  # fmt: skip

    def run(self, *arguments: str, user: str | None = None) -> str:
        """Runs a command inside; it must succeed."""
        done = self.execute(*arguments, user=user)
        assert done.returncode == 0, f"{arguments}: exit {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def unit(self, name: str, *properties: str) -> dict[str, str]:
        """Returns systemd's properties of a unit."""
        asked = [f"--property={each}" for each in properties]
        text = self.run("systemctl", "show", name, *asked)
        return dict(line.split("=", 1) for line in text.splitlines())

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "-u", unit)

    def until_active(self, unit: str, seconds: float = 60.0, but_not: str = "0") -> str:
        """Waits until a unit is active with a new main process; returns its id."""
        deadline = time.monotonic() + seconds

        def main() -> str:
            now = self.unit(unit, "ActiveState", "MainPID", "SubState")
            if now["ActiveState"] == "failed" or time.monotonic() > deadline:
                raise AssertionError(f"{unit} is {now}: {self.journal(unit)[-3000:]}")
            is_new = now["ActiveState"] == "active" and now["MainPID"] not in ("0", but_not)
            return now["MainPID"] if is_new else ""

        return until(main, f"{unit} is active", seconds)
