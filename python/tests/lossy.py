"""A network that delays and loses packets, and that can disconnect hosts, between network
namespaces of this host. Requires root and /dev/net/tun.

Every host is a namespace with a TUN device. One process reads the packets of all devices and writes
each to its destination's device, later or never. The kernel's own TCP therefore retransmits, backs
off and gives up. This replaces netem, which some kernels lack.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import selectors
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
CLONE_NEWNET = 0x40000000


def is_available() -> bool:
    has_tools = all(shutil.which(tool) for tool in ("ip", "nsenter"))
    return os.geteuid() == 0 and has_tools and Path("/dev/net/tun").exists()


class Network:
    """Hosts with the addresses 10.99.0.1, 10.99.0.2, ...; without loss and delay at first.

    - `hosts`: number of hosts.
    - `seed`: determines the packets that are lost.
    """

    def __init__(self, hosts: int, seed: int) -> None:
        prefix = f"lossy-{os.getpid()}"
        self.namespaces = [f"{prefix}-{number}" for number in range(hosts)]
        self.addresses = [f"10.99.0.{1 + number}" for number in range(hosts)]
        self._seed = seed
        self._loss, self._delay_s, self._cut = 0.0, 0.0, set[int]()
        self._process: subprocess.Popen[bytes] | None = None

    def inside(self, host: int) -> list[str]:
        """Returns the prefix of a command that runs on that host."""
        return ["nsenter", f"--net=/run/netns/{self.namespaces[host]}"]

    def impair(self, loss: float, delay_s: float) -> None:
        """From now on, delays packets by `delay_s` each way, and loses the fraction `loss` of
        them."""
        self._loss, self._delay_s = loss, delay_s
        self._tell()

    def cut(self, *hosts: int) -> None:
        """From now on, disconnects exactly these hosts."""
        self._cut = set(hosts)
        self._tell()

    def _tell(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        words = [self._loss, self._delay_s, *sorted(self._cut)]
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()

    def __enter__(self) -> Network:
        try:
            for name in self.namespaces:
                subprocess.run(["ip", "netns", "add", name], check=True)
            command = [sys.executable, __file__, str(self._seed), *self.namespaces]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == b"ready\n", "the network does not start"
            for host, address in enumerate(self.addresses):
                for words in (f"address add {address}/24 dev tun0", "link set tun0 up", "link set lo up"):
                    subprocess.run([*self.inside(host), "ip", *words.split()], check=True)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        self.close()


def _device(namespace: str) -> int:
    """Creates a TUN device `tun0` in the namespace; it lives as long as its descriptor."""
    libc, home = ctypes.CDLL(None, use_errno=True), os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
    finally:
        libc.setns(home, CLONE_NEWNET)
        os.close(there)
        os.close(home)
    return device


def _forward(seed: int, namespaces: list[str]) -> None:
    devices = [_device(name) for name in namespaces]
    chance, loss, delay_s, cut = random.Random(seed), 0.0, 0.0, set[int]()
    # Due time of a packet, its number, its destination, and the packet.
    flying: list[tuple[float, int, int, bytes]] = []
    number, text = 0, b""
    selector = selectors.DefaultSelector()
    for each in (0, *devices):
        selector.register(each, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        wait = max(0.0, flying[0][0] - time.monotonic()) if flying else None
        for key, _ in selector.select(wait):
            if key.fd == 0:
                more = os.read(0, 4096)
                if not more:
                    return
                *lines, text = (text + more).split(b"\n")
                for line in lines:
                    first, second, *hosts = line.split()
                    loss, delay_s, cut = float(first), float(second), {*map(int, hosts)}
                continue
            packet = os.read(key.fd, 65536)
            to = packet[19] - 1 if len(packet) >= 20 and packet[0] >> 4 == 4 else len(devices)
            is_cut = to in cut or devices.index(key.fd) in cut
            if to < len(devices) and not is_cut and chance.random() >= loss:
                number += 1
                heapq.heappush(flying, (time.monotonic() + delay_s, number, devices[to], packet))
        while flying and flying[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(flying)
            try:
                os.write(device, packet)
            except OSError:
                continue  # its device is not up (yet), like an unplugged cable


if __name__ == "__main__":
    _forward(int(sys.argv[1]), sys.argv[2:])
