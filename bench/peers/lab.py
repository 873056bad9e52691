"""Runs ours in another harness: the peers' lab (bench_peers.py), unchanged, with its data sets.

    .venv/bin/python bench/peers/lab.py ../shared/labs/peers --python tensorflow=PYTHON [--rounds 1]

The lab's files are linked into a folder beside the contenders' Pythons, where the lab expects them.
The lab writes a few files of each data set with its generator, and uses its settings. The results
are records per CPU-second, ours relative to tf.data's best setting and to tf.data service;
results.json stores them as `lab`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: Number of files of each of its data sets; its defaults are 16, 40, 8 and 8.
FILES = {"A": 4, "B": 4, "C": 3, "E": 3}

#: Workload, data set, our variant, and the other jobs: peer, variant, options.
JOBS: list[tuple[str, str, str, list[tuple[str, str, str]]]] = [
    ("W1", "A", "best", [("tfdata", "seq", ""), ("tfdata", "best", "")]),
    ("W1", "B", "best", [("tfdata", "seq", ""), ("tfdata", "best", "")]),
    ("W2", "B", "best", [("tfdata", "seq", ""), ("tfdata", "best", "")]),
    ("W2", "B", "bits", [("tfdata", "bits", "")]),
    ("W2", "C", "best", [("tfdata", "seq", ""), ("tfdata", "best", "")]),
    ("W2", "E", "best", [("tfdata", "seq", ""), ("tfdata", "best", "")]),
    ("W3", "A", "best", [("tfdata", "best", "")]),
    ("W3", "A", "u8", [("tfdata", "u8", "")]),
    ("W4", "A", "u8", [("tfservice", "u8", "nocompress")]),
    ("W4", "B", "best", [("tfservice", "best", "nocompress")]),
    ("W4", "C", "best", [("tfservice", "best", "nocompress")]),
    ("W4", "E", "best", [("tfservice", "best", "nocompress")]),
]

#: Runs the lab's own generator, in tf.data's Python.
WRITE = """
import sys, gen
for name, files, out in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
    for number in range(int(files)):
        gen.gen_one((name, number, out))
"""


def inner(folder: str) -> None:
    """Runs in our Python: the lab's main, with our peer added."""
    sys.path[:0] = [folder, str(HERE)]
    os.environ["BENCH_INNER"] = "1"
    import bench_peers

    bench_peers.VENV["shardfeed"], bench_peers.MODULE["shardfeed"] = "venv-shardfeed", "peer_shardfeed"
    bench_peers.main()


def link(lab: Path, folder: Path, pythons: dict[str, str]) -> None:
    """Links the lab's files into a folder, with Pythons beside them, as the lab expects."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path.resolve() for path in lab.glob("*.py")}
    for name, short in (("tensorflow", "tf"), ("dali", "dali"), ("torch", "torch")):
        if name in pythons:
            wanted[f"venv-{short}"] = Path(os.path.abspath(pythons[name])).parents[1]
    for name, target in wanted.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)


def write(folder: Path, python: str) -> None:
    words: list[str] = []
    for name, files in FILES.items():
        out = folder / "data" / name
        if len(list(out.glob("*.tfrecord"))) < files:
            out.mkdir(parents=True, exist_ok=True)
            words += [name, str(files), str(out)]
    if not words:
        return
    print(f"the lab writes {', '.join(words[::3])}", flush=True)
    packages = folder / "packages"
    if "A" in words and not packages.exists():  # the source of its photographs
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(packages)]
        subprocess.run([*pip, "scikit-image", "scikit-learn"], check=True)
    path = os.pathsep.join([str(folder), str(packages)])
    subprocess.run([python, "-c", WRITE, *words], check=True, env=os.environ | {"PYTHONPATH": path})


def run(folder: Path, ours: bool, seconds: float, *words: str) -> dict[str, Any] | None:
    """Returns one result line of the lab, or None if it failed."""
    command = [sys.executable, __file__, "--inner"] if ours else [sys.executable, str(folder / "bench_peers.py")]
    command += ([str(folder)] if ours else []) + [*words, "--seconds", str(seconds), "--warm", "1"]
    command += ["--data", str(folder / "data")]
    env = {name: value for name, value in os.environ.items() if name != "BENCH_INNER"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(f"failed: {' '.join(words)}: {done.stderr.strip()[-300:]}", flush=True)
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure(folder: Path, rounds: int, seconds: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for workload, name, variant, others in JOBS:
        ratios: dict[str, list[float]] = {}
        mine: list[float] = []
        for _ in range(rounds):
            job = ("--workload", workload, "--set", name)
            ours = run(folder, True, seconds, *job, "--peer", "shardfeed", "--variant", variant)
            for peer, setting, extra in others:
                more = ("--opt", extra) if extra else ()
                their = run(folder, False, seconds, *job, "--peer", peer, "--variant", setting, *more)
                if ours and their:
                    ratios.setdefault(f"{peer} {setting} {extra}".strip(), []).append(
                        their["cpu_s_per_1k"] / ours["cpu_s_per_1k"]
                    )
            if ours:
                mine.append(1000 / ours["cpu_s_per_1k"])
        if not mine or not ratios:
            found.append({"workload": workload, "set": name, "variant": variant, "error": "failed"})
            continue
        # Their best setting is the one with the smallest ratio for ours.
        best = min(ratios, key=lambda one: statistics.median(ratios[one]))
        found.append({
            "workload": workload, "set": name, "variant": variant, "per_cpu_s": statistics.median(mine),
            "beside": best, "ratios": ratios[best],
        })  # fmt: skip
        print(f"lab {workload} {name} {variant}: {statistics.median(ratios[best]):.2f} of {best}", flush=True)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--inner"]:
        folder = sys.argv.pop(2)
        sys.argv.pop(1)
        inner(folder)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lab", type=Path)
    parser.add_argument("--home", type=Path, default=ROOT / "target/bench-peers")
    parser.add_argument("--out", type=Path, help="results that it is added to; default: HOME/results.json")
    parser.add_argument("--python", action="append", default=[], help="NAME=PYTHON that is there already")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.5)
    given = parser.parse_args()
    if not (given.lab / "bench_peers.py").exists():
        print(f"no bench_peers.py in {given.lab}: the lab is left out")
        return
    pythons = {name: str(given.home / "venvs" / name / "bin/python") for name in ("tensorflow", "dali", "torch")}
    pythons |= dict(one.split("=", 1) for one in given.python)
    folder = given.home / "lab"
    link(given.lab, folder, pythons)
    write(folder, pythons["tensorflow"])
    found = measure(folder, given.rounds, given.seconds)
    out = given.out or given.home / "results.json"
    results = json.loads(out.read_text()) if out.exists() else {}
    results["lab"] = found
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
