"""Compares ours with other loaders over the same warm files; writes the results to a file.

    .venv/bin/python bench/peers/run.py [--photos FOLDER] [--rounds 3] [--only small,tokens] [--groups peers,service]

Each measurement runs in its own process (measure.py), all contenders of a case in turn, round by
round. In the first round every setting of every contender runs, and the delivered epochs are
compared; later rounds run only the settings near the contender's best. The contenders'
Pythons and the data are kept in --home. bench/peers/report.py makes tables and plots of the
results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cases
import numpy as np
import venvs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: Python environment of each contender.
PYTHONS = {"tfdata": "tensorflow", "tfservice": "tensorflow", "dali": "dali", "torch": "torch", "webdataset": "torch"}

#: A setting continues after the first round if it reaches this fraction of the contender's best.
NEAR = 0.9

#: Contenders that are measured for orientation only, in this number of rounds, as are the machine's
#: limits.
OTHERS, OTHER_ROUNDS = ("dali", "torch", "webdataset"), 2

#: Time limit of a command in seconds.
DEADLINE = 180

GROUPS = ("peers", "service", "processors", "floor")

#: Cases in which ours runs on one processor and on two.
SCALED = ("raw_large", "raw_small", "small", "boards", "tokens", "floats", "photos")


class Bench:
    """Runs the measurements and collects their results."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.data = given.home / "data"
        self.pictures = given.home / "pictures"
        self.pictures.mkdir(parents=True, exist_ok=True)
        self.begun = time.monotonic()
        self.pythons: dict[str, str] = {}
        self.results: dict[str, Any] = {
            "machine": machine(), "begun": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "rounds": given.rounds, "seconds": given.seconds, "scale": given.scale,
            "versions": {}, "missing": {}, "record_bytes": {}, "checks": [], "runs": [], "floor": [],
        }  # fmt: skip

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:6.0f} s  {text}", flush=True)

    def find_pythons(self) -> None:
        said = dict(one.split("=", 1) for one in self.given.python)
        for name in ("tensorflow", "dali", "torch"):
            if name in self.given.without.split(","):
                self.results["missing"][name] = "left out by --without"
                continue
            try:
                self.pythons[name] = said.get(name) or str(venvs.python(self.given.home, name))
            except OSError as error:
                self.results["missing"][name] = str(error)
                self.say(f"without {name}: {error}")

    def write_data(self) -> None:
        photos = self.given.photos
        if photos is None:
            photos = self.given.home / "photos"
            if not photos.exists() and "tensorflow" in self.pythons:
                venvs.call([self.pythons["tensorflow"], str(HERE / "photos.py"), str(photos)])
        command = [sys.executable, str(HERE / "data.py"), str(self.data), "--scale", str(self.given.scale)]
        command += ["--only", ",".join(self.cases()), "--photos", str(photos)]
        if subprocess.run(command).returncode:
            sys.exit("error: the data could not be written")
        for case in self.cases():
            lines = [line for path in cases.indexes(self.data, case) for line in Path(path).open()]
            sizes = [int(line.split()[1]) for line in lines]
            self.results["record_bytes"][case] = sum(sizes) / len(sizes)

    def cases(self) -> list[str]:
        return [name for name in cases.CASES if name in self.given.only.split(",")]

    def measure(self, group: str, case: str, contender: str, setting: str, turn: int, *more: str) -> None:
        needs = PYTHONS.get(contender)
        if needs is not None and needs not in self.pythons:
            return
        command = [self.pythons[needs] if needs else sys.executable, str(HERE / "measure.py")]
        command += ["--contender", contender, "--case", case, "--setting", setting, "--data", str(self.data)]
        command += ["--seconds", str(self.given.seconds), "--warm", str(self.given.warm), *more]
        run: dict[str, Any] = {"group": group, "case": case, "contender": contender, "setting": setting, "round": turn}
        run |= {"with": list(more)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
            run |= json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            run["error"] = f"not done in {DEADLINE} s"
        except (IndexError, ValueError):
            run["error"] = (done.stderr.strip() or f"exit status {done.returncode}")[-600:]
        self.results["runs"].append(run)
        if "error" in run:
            self.say(f"{group} {case} {contender}/{setting}: {run['error'].splitlines()[-1]}")
            return
        self.results["versions"][contender] = run["version"]
        self.say(
            f"{group} {case} {' '.join((contender, setting, *more[:2]))}: {run['per_cpu_s']:,.0f} a CPU-second, "
            f"{run['per_s']:,.0f}/s, first {run['first_ms']:.0f} ms, {run['memory_mb']:.0f} MB"
            + f" (others: {run['others_processors']:.1f} processors)" * (run["others_processors"] > 0.2)
        )

    def by_turns(self, group: str, case: str, contenders: Iterable[str]) -> None:
        """Runs all rounds of a case. Settings that were far from the best run once."""
        left = {contender: cases.settings(contender, case) for contender in contenders}
        for turn in range(self.given.rounds):
            for contender, settings in left.items():
                if turn >= OTHER_ROUNDS and contender in OTHERS:
                    continue
                for setting in settings:
                    check = () if turn else ("--check", str(self.pictures / f"{case}-{contender}-{setting}.npy"))
                    self.measure(group, case, contender, setting, turn, *check)
            if turn == 0:
                left = {contender: self.near(group, case, contender) for contender in left}
        self.compare(group, case)

    def near(self, group: str, case: str, contender: str) -> tuple[str, ...]:
        found = {
            run["setting"]: run["per_cpu_s"]
            for run in self.results["runs"]
            if (run["group"], run["case"], run["contender"]) == (group, case, contender) and "error" not in run
        }
        return tuple(name for name, value in found.items() if value >= NEAR * max(found.values()))

    def compare(self, group: str, case: str) -> None:
        """Checks that all contenders delivered the same epoch as ours."""
        checked = [
            run for run in self.results["runs"]
            if (run["group"], run["case"]) == (group, case) and run.get("epoch")
        ]  # fmt: skip
        ours = next((run for run in checked if run["contender"].startswith("ours")), None)
        for run in checked:
            if ours is None or run is ours:
                continue
            wrong = difference(cases.CASES[case], ours["epoch"], run["epoch"])
            check = {name: run[name] for name in ("group", "case", "contender", "setting")}
            self.results["checks"].append(check | {"wrong": wrong, "apart": apart(ours["epoch"], run["epoch"])})
            if wrong:
                self.say(f"UNEQUAL: {case}, {run['contender']}/{run['setting']}: {wrong}")

    def run_all(self) -> None:
        groups = self.given.groups.split(",")
        for case in self.cases():
            if "peers" in groups:
                self.by_turns("peers", case, ("ours", "tfdata", *cases.CASES[case].others))
            if "service" in groups and cases.CASES[case].goal_service:
                self.by_turns("service", case, ("ours_cluster", "tfservice"))
            self.save()
        for turn in range(min(self.given.rounds, OTHER_ROUNDS)):
            if "floor" in groups or "processors" in groups:
                self.floor(turn)
            for case in self.cases():
                if "processors" in groups and case in SCALED:
                    for processors in ("1", "2"):
                        self.measure("processors", case, "ours", "default", turn, "--processors", processors)
        self.save()

    def floor(self, turn: int) -> None:
        if not self.given.floor.exists():
            self.results["missing"]["floor"] = "its program is not built: `make bench` builds it"
            return
        command = [str(self.given.floor), str(self.data), *(case for case in self.cases() if case != "boards")]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        self.results["floor"].append(found | {"round": turn})
        self.say(f"floor: {len(found)} figures")

    def save(self) -> None:
        self.results["took_s"] = round(time.monotonic() - self.begun)
        self.given.out.parent.mkdir(parents=True, exist_ok=True)
        self.given.out.write_text(json.dumps(self.results, indent=1) + "\n")


def difference(case: cases.Case, ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Returns the first difference of two epochs beyond rounding; "" if there is none."""
    for name in ("rows", "columns", "exact"):
        if ours[name] != theirs[name]:
            return f"{name}: {theirs[name]}, ours {ours[name]}"
    for name, sums in ours["rounded"].items():
        for mine, other in zip(sums, theirs["rounded"][name], strict=True):
            if abs(mine - other) > cases.FLOATS_APART * max(abs(mine), abs(other)):
                return f"{name}: sums {theirs['rounded'][name]}, ours {sums}"
    far = apart(ours, theirs)
    if far is not None and far > cases.PIXELS_APART:
        return f"pixels are {far:.2f} of 255 apart in the mean"
    return ""


def apart(ours: dict[str, Any], theirs: dict[str, Any]) -> float | None:
    """Returns the mean difference of the pixels."""
    if "pictures" not in ours or "pictures" not in theirs:
        return None
    mine, other = np.load(ours["pictures"]), np.load(theirs["pictures"])
    if mine.shape != other.shape:
        return 255.0
    return float(np.abs(mine.astype(np.int16) - other).mean())


def machine() -> dict[str, Any]:
    words = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in words.splitlines() if line.startswith("model name")), "")
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    return {
        "processor": model, "processors": len(os.sched_getaffinity(0)), "memory_mb": memory,
        "system": platform.platform(), "python": platform.python_version(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", type=Path, help="folder of JPEG files; default: made ones")
    parser.add_argument("--home", type=Path, default=ROOT / "target/bench-peers", help="for Pythons and data")
    parser.add_argument("--out", type=Path, help="results; default: HOME/results.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.2, help="each measurement's window")
    parser.add_argument("--warm", type=float, default=0.6, help="seconds before it")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of records")
    parser.add_argument("--only", default=",".join(cases.CASES), help="cases")
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--without", default="", help="not to be installed: tensorflow, dali, torch")
    parser.add_argument("--python", action="append", default=[], help="NAME=PYTHON that is there already")
    parser.add_argument("--floor", type=Path, default=ROOT / "target/release/examples/floor")
    given = parser.parse_args()
    given.out = given.out or given.home / "results.json"
    bench = Bench(given)
    bench.find_pythons()
    bench.write_data()
    bench.run_all()
    wrong = [check for check in bench.results["checks"] if check["wrong"]]
    broken = [run for run in bench.results["runs"] if "error" in run]
    bench.say(f"{len(bench.results['runs'])} measurements, {len(broken)} failed; {given.out}")
    for check in wrong:
        print(f"error: {check['case']}: {check['contender']}/{check['setting']}: {check['wrong']}", file=sys.stderr)
    sys.exit(1 if wrong or broken else 0)


if __name__ == "__main__":
    main()
