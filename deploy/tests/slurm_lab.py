"""A Slurm of three nodes on this host.

Each node is a network namespace on a bridge, with its own host name and /tmp; its slurmd and all
tasks are processes there, so that killing these simulates a power loss.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import roots
from command import HOME, run, until

BRIDGE = "shardfeed-br"
#: A network that is not used by the host.
ADDRESS = "10.77.0.{}"
ACCEPT = ["FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT"]
UP_S = 60.0

CONFIG = """\
ClusterName=shardfeed
SlurmctldHost={host}({head})
SlurmctldPort=16817
SlurmdPort=17001
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=5
SchedulerType=sched/backfill
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""


class SlurmLab:
    """The cluster; all of its processes end with it."""

    def __init__(self, nodes: int = 3) -> None:
        roots.need("slurmctld", "slurmd", "munged", "ip", "nsenter", "unshare")
        self.home = HOME / "slurm"
        self.nodes = {f"sf{number}": ADDRESS.format(10 + number) for number in range(1, nodes + 1)}
        self.env = os.environ | {"SLURM_CONF": str(self.home / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmLab:
        self._clear()
        for folder in ("state", "jobs"):
            (self.home / folder).mkdir(parents=True)
        try:
            self._network()
            self._configure()
            self._munge()
            self._start("slurmctld", "slurmctld", "-D", "-f", str(self.home / "slurm.conf"))
            for node in self.nodes:
                self.start_node(node)
            until(lambda: self.idle() == set(self.nodes), "all nodes are idle", UP_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            self.kill_node(node)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(UP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        self._remove_network()

    def kill_node(self, node: str) -> None:
        """Simulates a power loss: kills its slurmd and all tasks."""
        found = subprocess.run(["ip", "netns", "pids", node], capture_output=True, text=True)
        for pid in found.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def start_node(self, node: str) -> None:
        # Not `ip netns exec`, which mounts another /sys, without the control groups required by
        # slurmd.
        config = self.home / "slurm.conf"
        mounts = f"mount -t tmpfs tmpfs /tmp && mount --bind {self.home}/hosts /etc/hosts"
        script = f"hostname {node} && {mounts} && exec slurmd -D -N {node} -f {config}"
        inside = ["nsenter", f"--net=/run/netns/{node}", "unshare", "--uts", "--mount", "sh", "-c", script]
        (self.home / "spool" / node).mkdir(parents=True, exist_ok=True)
        self._start(f"slurmd-{node}", *inside)

    def inside(self, node: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the network of a node."""
        command = ["nsenter", f"--net=/run/netns/{node}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=self.env)

    def run(self, *arguments: str | Path, **variables: str) -> str:
        """Runs a command of Slurm."""
        return run(arguments, env=self.env | variables)

    def idle(self) -> set[str]:
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines()
        return {name for name, state in map(str.split, lines) if state == "idle"}

    def job(self, number: str) -> dict[str, str]:
        """Returns Slurm's properties of a job."""
        words = self.run("scontrol", "show", "job", "--oneliner", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def _start(self, name: str, *arguments: str) -> None:
        with (self.home / f"{name}.out").open("ab") as log:
            daemon = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)
        self._daemons.append(daemon)

    def _clear(self) -> None:
        """Removes the remains of a run that was killed."""
        shutil.rmtree(self.home, ignore_errors=True)
        for node in self.nodes:
            self.kill_node(node)
        self._remove_network()

    def _remove_network(self) -> None:
        for node in self.nodes:
            subprocess.run(["ip", "netns", "del", node], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)
        if shutil.which("iptables"):
            subprocess.run(["iptables", "-D", *ACCEPT], capture_output=True)

    def _network(self) -> None:
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "address", "add", f"{ADDRESS.format(1)}/24", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
        if shutil.which("iptables"):
            # Docker routes bridged packets through the host's filter, and drops those of other
            # networks.
            run(["iptables", "-I", *ACCEPT])
        for node, address in self.nodes.items():
            run(["ip", "netns", "add", node])
            run(["ip", "link", "add", f"{node}-host", "type", "veth", "peer", "name", "eth0", "netns", node])
            run(["ip", "link", "set", f"{node}-host", "master", BRIDGE, "up"])
            run(["ip", "-n", node, "address", "add", f"{address}/24", "dev", "eth0"])
            for device in ("eth0", "lo"):
                run(["ip", "-n", node, "link", "set", device, "up"])
            run(["ip", "-n", node, "route", "add", "default", "via", ADDRESS.format(1)])

    def _configure(self) -> None:
        host = os.uname().nodename.split(".")[0]
        text = CONFIG.format(host=host, head=ADDRESS.format(1), home=self.home)
        for node, address in self.nodes.items():
            text += f"NodeName={node} NodeAddr={address} CPUs=4 RealMemory=4000 State=UNKNOWN\n"
        names = ",".join(self.nodes)
        text += f"PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP\n"
        (self.home / "slurm.conf").write_text(text)
        hosts = "".join(f"{address} {node}\n" for node, address in self.nodes.items())
        (self.home / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")

    def _munge(self) -> None:
        key = self.home / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.home}/munge.{suffix}" for option, suffix in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        until((self.home / "munge.socket").exists, "munged listens", UP_S)
