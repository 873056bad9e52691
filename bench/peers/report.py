"""Creates tables and plots of the results of bench/peers/run.py, for docs/BENCHMARKS.md.

    python bench/peers/report.py target/bench-peers/results.json [--svg docs/peers.svg] [--into docs/BENCHMARKS.md]

The tables go to standard output, or into a file between the lines BEGIN and END. The plots need
matplotlib (target/bench-peers/venvs/plots has it).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases

#: Goals that are common to all cases.
FIRST_GOAL, MEMORY_GOAL, FLOOR_GOAL, IMAGE_FLOOR_GOAL = 0.3, 0.5, 0.8, 0.9
SCALE_GOAL, COPY_GOAL = 1.8, 0.9

#: Maximum number of processors used by others for a machine to count as quiet.
QUIET = 0.1

#: Lines that enclose the tables in a file.
BEGIN, END = "<!-- bench/peers/report.py -->", "<!-- its end -->"


class Results:
    """Results of the measurements, with lookups of medians."""

    def __init__(self, path: Path) -> None:
        self.all: dict[str, Any] = json.loads(path.read_text())
        self.runs = [run for run in self.all["runs"] if "error" not in run]

    def of(self, group: str, case: str, contender: str, **more: Any) -> list[dict[str, Any]]:
        wanted = {"group": group, "case": case, "contender": contender} | more
        return [run for run in self.runs if all(run[name] == value for name, value in wanted.items())]

    def best(self, group: str, case: str, contender: str, what: str = "per_cpu_s") -> str | None:
        """Returns the setting with the largest median of `what`."""
        medians: dict[str, float] = {}
        for run in self.of(group, case, contender):
            if run["setting"] not in medians:
                medians[run["setting"]] = self.median(group, case, contender, what, setting=run["setting"])
        return max(medians, key=lambda name: medians[name]) if medians else None

    def median(self, group: str, case: str, contender: str, what: str, **more: Any) -> float:
        return statistics.median(float(run[what]) for run in self.of(group, case, contender, **more))

    def ratios(self, group: str, case: str, ours: str, other: str, what: str = "per_cpu_s") -> list[float]:
        """Returns ours relative to the other's best setting, for each round that has both."""
        setting = self.best(group, case, other, what)
        mine = {run["round"]: run[what] for run in self.of(group, case, ours)}
        their = {run["round"]: run[what] for run in self.of(group, case, other, setting=setting)}
        return [mine[turn] / their[turn] for turn in sorted(mine.keys() & their.keys())]

    def unequal(self, group: str, case: str, contender: str) -> str:
        """Returns a mark for a contender that delivered different records."""
        mine = {"group": group, "case": case, "contender": contender}
        wrong = any(
            check["wrong"] for check in self.all["checks"] if all(check[name] == mine[name] for name in mine)
        )
        return " (other content!)" * wrong


def span(values: list[float]) -> str:
    """Formats the median and the range."""
    if not values:
        return "-"
    middle = statistics.median(values)
    digits = 1 if middle >= 10 else 2
    if len(values) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def count(value: float) -> str:
    """Formats a number with three digits, which exceeds the precision of the measurements."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 10 else f"{value:.2g}"


def table(head: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("| --- " * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def beside(results: Results, group: str, ours: str, theirs: str, goal: Callable[[cases.Case], float | None]) -> None:
    rows = []
    for name, case in cases.CASES.items():
        setting = results.best(group, name, theirs)
        if setting is None or not results.of(group, name, ours):
            continue
        their = results.median(group, name, theirs, "per_cpu_s", setting=setting)
        rows.append([
            case.title, count(results.median(group, name, ours, "per_cpu_s")), f"{count(their)} ({setting})",
            span(results.ratios(group, name, ours, theirs)) + results.unequal(group, name, theirs),
            str(goal(case) or "-"), span(results.ratios(group, name, ours, theirs, "per_s")),
        ])  # fmt: skip
    if rows:
        title = cases.TITLES[theirs]
        print(f"Records per CPU-second of all processes, {cases.TITLES[ours]} beside {title}:\n")
        table(["what", "ours", f"{title} (its setting)", "ratio", "goal", "ratio of records/s"], rows)


def others(results: Results) -> None:
    names = ("dali", "torch", "webdataset")
    rows = []
    for name, case in cases.CASES.items():
        row = []
        for other in names:
            setting = results.best("peers", name, other)
            if setting is None:
                row.append("-")
                continue
            their = results.median("peers", name, other, "per_cpu_s", setting=setting)
            ratio = span(results.ratios("peers", name, "ours", other))
            row.append(f"{ratio}: {count(their)}, {setting}{results.unequal('peers', name, other)}")
        if set(row) != {"-"}:
            rows.append([case.title, *row, str(case.goal_others or "-")])
    if rows:
        print("Ours over other loaders, records per CPU-second; then theirs, and with which setting:\n")
        table(["what", *(cases.TITLES[name] for name in names), "goal"], rows)


def first_and_memory(results: Results, group: str, ours: str, theirs: str) -> None:
    rows = []
    for name, case in cases.CASES.items():
        setting = results.best(group, name, theirs)
        if setting is None or not results.of(group, name, ours):
            continue
        row = [case.title]
        for what in ("first_ms", "again_ms"):
            their = min(
                results.median(group, name, theirs, what, setting=one)
                for one in {run["setting"] for run in results.of(group, name, theirs)}
            )
            mine = results.median(group, name, ours, what)
            row.append(f"{mine:,.0f} / {their:,.0f} = {mine / their:.2f}")
        mine = results.median(group, name, ours, "memory_mb")
        their = results.median(group, name, theirs, "memory_mb", setting=setting)
        row.append(f"{mine:,.0f} / {their:,.0f} = {mine / their:.2f}")
        rows.append(row)
    if rows:
        print(f"First batch of a new loader and memory, ours / {cases.TITLES[theirs]} "
              f"(goals: {FIRST_GOAL}, {MEMORY_GOAL}):\n")  # fmt: skip
        table(["what", "unseen files, ms", "known files, ms", "memory of all processes, MB"], rows)


def processors(results: Results) -> None:
    floors = results.all["floor"]
    copy = [one["memcpy_far_2"] / one["memcpy_far_1"] for one in floors]
    compute = [one["crc_near_2"] / one["crc_near_1"] for one in floors]
    rows = []
    for name, case in cases.CASES.items():
        one, two = (
            {run["round"]: run["per_s"] for run in results.of("processors", name, "ours", **{"with": how})}
            for how in (["--processors", "1"], ["--processors", "2"])
        )
        turns = sorted(one.keys() & two.keys())
        if turns:
            gains = [two[turn] / one[turn] for turn in turns]
            medians = [statistics.median(of[turn] for turn in turns) for of in (one, two)]
            rows.append([case.title, *map(count, medians), span(gains)])
    if rows:
        print(f"Records/s of ours on one processor and on two (goal: {SCALE_GOAL} where computing bounds it, else "
              f"{COPY_GOAL} of the gain of copying). In the same run two threads gained {span(copy)} "
              f"copying memory, {span(compute)} summing data in their caches:\n")  # fmt: skip
        table(["what", "one", "two", "gain"], rows)


def machine_floor(results: Results) -> None:
    floors, rows = results.all["floor"], []
    for name, case in cases.CASES.items():
        mine = [
            run["per_cpu_s"] for run in results.runs
            if run["case"] == name and run["contender"] == "ours" and run["with"] != ["--processors", "1"]
        ]  # fmt: skip
        if not mine or not floors:
            continue
        ours = statistics.median(mine)
        if f"{name}_per_cpu_s" in floors[0]:
            bare = statistics.median(one[f"{name}_per_cpu_s"] for one in floors)
            bound = f"{count(bare)} (decoder and resizer)"
            rows.append([case.title, bound, "-", count(ours), f"{ours / bare:.2f}", str(IMAGE_FLOOR_GOAL)])
        elif f"{name}_read_bytes_per_cpu_s" in floors[0]:
            size = results.all["record_bytes"][name]
            bare = statistics.median(one[f"{name}_read_bytes_per_cpu_s"] for one in floors) / size
            framed = statistics.median(one[f"{name}_framed_per_cpu_s"] for one in floors)
            goal = str(FLOOR_GOAL) if not case.features else "-"
            rows.append([case.title, count(bare), count(framed), count(ours), f"{ours / bare:.2f}", goal])
    if rows:
        print("Against the machine, records per CPU-second:\n")
        table(["what", "bare `read()` and CRC", "framing and CRC", "the loader", "of the bare loop", "goal"], rows)


def lab(results: Results) -> None:
    """Prints the results of the peers' own harness, if there are any."""
    names = {"W1": "raw", "W2": "parsed", "W3": "to 224 x 224", "W4": "as a service"}
    sets = {"A": "JPEG, 112 KB", "B": "242 bytes", "C": "tokens", "E": "1,024 floats"}
    rows = [
        [f"{sets[one['set']]}, {names[one['workload']]}" + f" ({one['variant']})" * (one["variant"] != "best"),
         count(one["per_cpu_s"]), one["beside"], span(one["ratios"])]
        for one in results.all.get("lab", []) if "error" not in one
    ]  # fmt: skip
    if rows:
        print("The same in the peers' lab, its harness, data sets and settings unchanged:\n")
        table(["what", "ours", "beside (its settings)", "ratio"], rows)


def plot(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "peers"
    figure, panels = pyplot.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    pairs = [("peers", "ours", "tfdata"), ("service", "ours_cluster", "tfservice")]
    goals: list[Callable[[cases.Case], float | None]] = [lambda case: case.goal, lambda case: case.goal_service]
    for panel, (group, ours, theirs), goal in zip(panels, pairs, goals, strict=False):
        ratio_bars(panel, results, group, ours, theirs, goal)
    other_bars(panels[2], results)
    figure.savefig(path, metadata={"Date": None})


def ratio_bars(panel: Any, results: Results, group: str, ours: str, theirs: str, goal: Any) -> None:
    """Draws each case's median ratio as a bar, its range as a line, and the goal as a mark."""
    shown = [(case, results.ratios(group, name, ours, theirs)) for name, case in cases.CASES.items()]
    shown = [(case, ratios) for case, ratios in reversed(shown) if ratios]
    for at, (case, ratios) in enumerate(shown):
        middle = statistics.median(ratios)
        reached = goal(case) is None or middle >= goal(case)
        panel.barh(at, middle, color="#3b7dd8" if reached else "#d88a3b", height=0.6)
        panel.plot([min(ratios), max(ratios)], [at, at], color="black", linewidth=1.2)
        if goal(case):
            panel.plot([goal(case)] * 2, [at - 0.4, at + 0.4], color="black", linewidth=2.5)
    panel.set_yticks(range(len(shown)), [case.title for case, _ in shown], fontsize=8)
    panel.set_title(f"records per CPU-second, ours over {cases.TITLES[theirs]}\n(mark: goal)", fontsize=9)
    panel.axvline(1, color="grey", linewidth=0.8)
    panel.grid(axis="x", alpha=0.3)


def other_bars(panel: Any, results: Results) -> None:
    """Draws photographs per CPU-second of all contenders."""
    names = ("ours", "tfdata", "dali", "torch", "webdataset")
    for at, name in enumerate(reversed(names)):
        for shift, case, color in ((0.2, "photos", "#3b7dd8"), (-0.2, "parts", "#8ab6ee")):
            setting = results.best("peers", case, name)
            if setting is not None:
                value = results.median("peers", case, name, "per_cpu_s", setting=setting)
                label = cases.CASES[case].title if name == "ours" else None
                panel.barh(at + shift, value, height=0.36, color=color, label=label)
    panel.set_yticks(range(len(names)), [cases.TITLES[name] for name in reversed(names)], fontsize=8)
    panel.set_title("photographs per CPU-second", fontsize=9)
    panel.grid(axis="x", alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)


def tables(results: Results) -> None:
    of, versions = results.all["machine"], results.all["versions"]
    who = ", ".join(f"{cases.TITLES[name]} {versions[name]}" for name in versions if "ours" not in name)
    print(
        f"{of['processors']} processors ({of['processor']}), {of['memory_mb'] // 1024} GiB, {results.all['begun']}, "
        f"{results.all['rounds']} rounds of {results.all['seconds']} s; {who}.\n"
    )
    loads = [run["others_processors"] for run in results.runs]
    if loads and statistics.median(loads) > QUIET:
        print(f"The machine was not quiet: others used {statistics.median(loads):.1f} processors (median).\n")
    for name, why in results.all["missing"].items():
        print(f"Not measured: {name}: {why}\n")
    beside(results, "peers", "ours", "tfdata", lambda case: case.goal)
    others(results)
    beside(results, "service", "ours_cluster", "tfservice", lambda case: case.goal_service)
    first_and_memory(results, "peers", "ours", "tfdata")
    first_and_memory(results, "service", "ours_cluster", "tfservice")
    machine_floor(results)
    processors(results)
    lab(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--svg", type=Path, help="file of the plots")
    parser.add_argument("--into", type=Path, help="file whose part between BEGIN and END becomes the tables")
    given = parser.parse_args()
    results, said = Results(given.results), io.StringIO()
    with contextlib.redirect_stdout(said):
        tables(results)
    if given.into:
        text = given.into.read_text()
        if text.count(BEGIN) != 1 or text.count(END) != 1:
            sys.exit(f"error: {given.into} has not one line {BEGIN!r} and one {END!r}")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        if given.svg:
            print(f"![ours beside others]({given.svg.name})\n", file=said)
        given.into.write_text(f"{before}{BEGIN}\n\n{said.getvalue()}{END}{after}")
    else:
        print(said.getvalue(), end="")
    if given.svg:
        plot(results, given.svg)


if __name__ == "__main__":
    main()
