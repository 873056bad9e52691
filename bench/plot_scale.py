"""Plots the output of bench/scale.rs, and prints it as a table.

    cargo bench -p shardfeed-bench --bench scale | .venv/bin/python bench/plot_scale.py docs/scale.svg

Needs matplotlib, which nothing else here needs: `.venv/bin/pip install matplotlib`.
"""

from __future__ import annotations

import argparse
import json
import sys

import matplotlib
from matplotlib import pyplot

#: Panels: key, title and unit.
PANELS = [
    ("first_grants_ms", "first grants to all ranks", "ms"),
    ("start_ms", "all ranks started", "ms"),
    ("state_bytes_per_rank", "memory a rank", "bytes"),
    ("restore_ms", "restart with 10 epochs", "ms"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("svg", help="file of the picture")
    path = parser.parse_args().svg
    rows = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    if not rows:
        sys.exit("nothing came on standard input: pipe the output of the scale benchmark in")
    keys = [key for key, _, _ in PANELS]
    print("| ranks | shards | " + " | ".join(f"{title}, {unit}" for _, title, unit in PANELS) + " |")
    print("| ---: " * (2 + len(keys)) + "|")
    for row in rows:
        cells = [f"{row[key]:,.1f}" if row[key] < 100 else f"{row[key]:,.0f}" for key in keys]
        print(f"| {row['ranks']:,} | {row['shards']:,} | " + " | ".join(cells) + " |")
    matplotlib.rcParams["svg.hashsalt"] = "scale"
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(4 * len(PANELS), 3.4))
    for panel, (key, title, unit) in zip(panels, PANELS, strict=True):
        for shards in sorted({row["shards"] for row in rows}):
            of = [row for row in rows if row["shards"] == shards]
            label = f"{shards:,} shards"
            panel.plot([row["ranks"] for row in of], [row[key] for row in of], "o-", label=label)
        panel.set(title=title, xlabel="ranks", ylabel=unit, xscale="log", yscale="log")
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
