"""Measures three coordinators on this host: durable entries, grants, heartbeats, leader failures.

    .venv/bin/python bench/coordinators.py [--only proposals,grants,heartbeats,kills,moves,lost]
        [--seconds 4] [--rounds 3] [--kills 50] [--beside "COMMAND"]

`--beside` is a command that loads another replicated store with the same number of clients for the
same time, and prints a line of JSON with `per_s`. It alternates with ours, so compare the ratios.
All logs are on the disk of the folder for temporary files, and each entry is synced on a majority
before it is answered.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / each) for each in ("chaos/failover", "examples/digits")]
from servers import Cluster  # noqa: E402

LOAD = ROOT / "target/release/examples/load"
TIMERS = "peer-heartbeat-ms = 100\nelection-min-ms = 300\nelection-max-ms = 600\n"
CLIENTS = 64
WORKERS = 10_000
HEARTBEAT_S = 5
#: Session TTL of the worker that is lost.
LOST_TTL_MS = 10_000


def load(cluster: Cluster, *words: object) -> Any:
    command = [str(LOAD), cluster.address, *map(str, words)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def beside(command: str) -> Any:
    return json.loads(subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=True).stdout)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def by_turns(cluster: Cluster, rounds: int, kinds: dict[str, list[object]], other: str) -> None:
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, words in kinds.items():
            one = load(cluster, *words)
            found.setdefault(name, []).append(one["per_s"])
            print(f"  {name}: {json.dumps(one)}", flush=True)
        if other:
            one = beside(other)
            found.setdefault("beside", []).append(one["per_s"])
            print(f"  beside: {json.dumps(one)}", flush=True)
    for name, speeds in found.items():
        line = f"{name}: median {statistics.median(speeds):,.0f}/s of {len(speeds)}"
        if "beside" in found and name != "beside":
            pairs = zip(speeds, found["beside"], strict=True)
            line += f", {statistics.median(ours / theirs for ours, theirs in pairs):.2f} x the other"
        print(line, flush=True)


class Watch:
    """A rank that claims groups continuously, and the times that it had to wait."""

    def __init__(self, cluster: Cluster) -> None:
        command = [str(LOAD), cluster.address, "watch"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.gaps_ms: list[int] = []
        self._ready = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        if not self._ready.wait(300):
            raise SystemExit("the watching rank did not become ready")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("gap "):
                self.gaps_ms.append(int(line.split()[1]))
            else:
                self._ready.set()

    def until_gap(self, longer_than_ms: int) -> int:
        """Discards earlier gaps, then waits for one of this length and returns it."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise SystemExit("the watching rank ended")
            if found := [gap for gap in self.gaps_ms if gap > longer_than_ms]:
                self.gaps_ms.clear()
                return found[0]
            time.sleep(0.005)
        raise SystemExit("nothing was granted for 30 s")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


def quantiles(name: str, values: list[int]) -> None:
    ordered = sorted(values)
    middle, late = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
    print(f"{name}: {len(values)} times, median {middle} ms, p95 {late} ms, max {ordered[-1]} ms")


def kills(cluster: Cluster, times: int) -> None:
    watch, gaps = Watch(cluster), []
    for _ in range(times):
        leader = cluster.until_led()
        watch.gaps_ms.clear()
        leader.kill()
        gaps.append(watch.until_gap(100))
        cluster.start_nodes()
        cluster.until_led()
    watch.close()
    print(f"  {gaps}")
    quantiles("leader killed, to the next grant", gaps)


def moves(cluster: Cluster, times: int) -> None:
    watch, gaps, took = Watch(cluster), [], []
    for _ in range(times):
        leader = cluster.until_led()
        time.sleep(0.5)
        watch.gaps_ms.clear()
        begun = time.monotonic()
        cluster.command("cluster", "transfer-leader")
        took.append(round((time.monotonic() - begun) * 1e3))
        cluster.until_led(otherwise_than_by=leader)
        time.sleep(0.5)
        gaps.append(max([*watch.gaps_ms, 0]))
    watch.close()
    print(f"  {gaps}")
    quantiles("leadership moved as planned, longest time between two grants", gaps)
    quantiles("the command", took)


def heartbeats(cluster: Cluster, files: int) -> None:
    found: dict[str, Any] = {}
    words = ["--clients", WORKERS, "--seconds", HEARTBEAT_S, "--files", files]

    def beat() -> None:
        found.update(load(cluster, "heartbeats", *words))

    begun = threading.Thread(target=beat)
    begun.start()
    leader, samples = cluster.until_led().pid, []
    while begun.is_alive():
        before = (time.monotonic(), cpu_s(leader))
        begun.join(1.0)
        spent = time.monotonic() - before[0]
        samples.append((cpu_s(leader) - before[1]) / spent)
    # The heartbeats are the last phase.
    beats = samples[-round(found["seconds"]) :]
    cores = statistics.mean(beats)
    print(f"  {json.dumps(found)}")
    print(
        f"heartbeats: {found['per_s']:,.0f}/s of {WORKERS:,} workers with a rank each; the leader used "
        f"{cores:.2f} cores (max {max(beats):.2f} in a second) and {resident_mb(leader):.0f} MB"
    )
    for node in cluster.nodes.values():
        node.kill()
    time.sleep(0.5)
    started = time.monotonic()
    cluster.start_nodes()
    print(f"all three killed; started again, ready after {time.monotonic() - started:.2f} s")
    sizes = [sum(f.stat().st_size for f in n.data.rglob("*")) for n in cluster.nodes.values()]
    print(f"{files:,} files, {WORKERS:,} ranks: {max(sizes) / 1e6:.0f} MB on disk")


def lost(cluster: Cluster, times: int) -> None:
    waits = [load(cluster, "lost")["ms"] for _ in range(times)]
    quantiles(f"worker lost (sessions live {LOST_TTL_MS} ms), its share granted to another", waits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ["proposals", "grants", "heartbeats", "kills", "moves", "lost"]
    parser.add_argument("--only", default=",".join(kinds))
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--files", type=int, default=400_000)
    parser.add_argument("--heartbeat-files", type=int, default=1_000_000)
    parser.add_argument("--beside", default="", metavar="COMMAND")
    args = parser.parse_args()
    for kind in args.only.split(","):
        config = TIMERS
        times = (LOST_TTL_MS, 1000) if kind == "lost" else (30_000, 5000)
        config += "session-ttl-ms = {}\nheartbeat-ms = {}\n".format(*times)
        with (
            tempfile.TemporaryDirectory(prefix="shardfeed-bench-") as folder,
            Cluster(Path(folder), 3, 0, config) as cluster,
        ):
            cluster.until_led()
            many = ["--clients", CLIENTS, "--seconds", args.seconds]
            if kind == "proposals":
                named = {"proposals": ["proposals", *many]}
                by_turns(cluster, args.rounds, named, args.beside)
            elif kind == "grants":
                of = [*many, "--ranks", args.ranks, "--files", args.files]
                named = {
                    "grants, 64 a request": ["grants", *of, "--batch", 64],
                    "grants, 1 a request": ["grants", *of, "--batch", 1],
                }
                by_turns(cluster, args.rounds, named, args.beside)
            elif kind == "heartbeats":
                heartbeats(cluster, args.heartbeat_files)
            elif kind == "kills":
                kills(cluster, args.kills)
            elif kind == "lost":
                lost(cluster, args.rounds)
            else:
                moves(cluster, args.kills)


if __name__ == "__main__":
    main()
