"""One operation has one trace id in the logs of the trainer, its worker and the coordinator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, make_dataset

from shardfeed.testing import Cluster

#: As set by a launcher; the example of the specification.
LAUNCHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

TRAINER = """
import sys
import shardfeed as sf
files, coordinator, worker, job = sys.argv[1:]
options = {"coordinator": coordinator, "worker": worker or None, "job": job, "run": "first"}
with sf.Loader(files, batch_size=4, **options) as loader:
    next(iter(loader))
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("tracing"))
    cluster.env["SHARDFEED_LOG"] = "info,shardfeed_coordinator=debug"
    cluster.env["SHARDFEED_LOG_FORMAT"] = "json"
    with cluster:
        yield cluster


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "data", [40, 40])


def train(running: Cluster, dataset: Dataset, job: str, worker: str, **env: str) -> list[dict[str, Any]]:
    """Returns the log of a trainer in its own process."""
    arguments = [dataset.pattern, running.address, worker, job]
    env = running.env | {"PYTHONPATH": os.pathsep.join(sys.path)} | env
    command = [sys.executable, "-c", TRAINER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    return lines(done.stderr)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def traces(log: list[dict[str, Any]], message: str, **fields: Any) -> list[dict[str, Any]]:
    """Returns the spans with a trace id around lines with this message, inner ones last."""
    found = []
    for line in log:
        spans = line.get("spans", [])
        known = line["fields"] | {name: value for span in spans for name, value in span.items()}
        if line["fields"].get("message") == message and fields.items() <= known.items():
            found += [span for span in spans if "trace_id" in span]
    return found


def test_a_start_has_one_trace_id_in_all_logs(running: Cluster, dataset: Dataset) -> None:
    trainer = train(running, dataset, "traced", str(running.socket()))
    [asked] = traces(trainer, "asking for batches")
    worker = lines(running.workers[0].log.read_text())
    coordinator = lines(running.coordinator.log.read_text())
    outer, *inner = traces(worker, "a trainer's rank has its lease", job="traced")
    assert (outer["trace_id"], outer["parent_id"]) == (asked["trace_id"], asked["span_id"])
    assert inner == []
    started = traces(coordinator, "call answered", rpc="StartRank")
    started = [span for span in started if span["trace_id"] == asked["trace_id"]]
    assert len(started) == 1, coordinator[-20:]
    # The worker's span, not the trainer's, called the coordinator.
    assert started[0]["parent_id"] not in (asked["span_id"], None)
    registered = traces(coordinator, "call answered", rpc="RegisterJob")
    assert registered and registered[-1]["trace_id"] != asked["trace_id"]


@pytest.mark.parametrize("has_worker", [True, False])
def test_a_launchers_trace_goes_through_everything(
    running: Cluster, dataset: Dataset, tmp_path: Path, has_worker: bool
) -> None:
    worker = str(running.socket() if has_worker else tmp_path / "nobody.sock")
    train(running, dataset, f"launched-{has_worker}", worker, TRACEPARENT=LAUNCHER)
    coordinator = lines(running.coordinator.log.read_text())
    for rpc in ("RegisterJob", "StartRank"):
        spans = traces(coordinator, "call answered", rpc=rpc)
        assert spans[-1]["trace_id"] == LAUNCHER.split("-")[1], (rpc, spans)


def test_what_is_no_trace_context_is_passed_over(running: Cluster, dataset: Dataset) -> None:
    trainer = train(running, dataset, "odd", str(running.socket()), TRACEPARENT="00-0-0-0")
    [asked] = traces(trainer, "asking for batches")
    assert len(asked["trace_id"]) == 32 and asked.get("parent_id") is None
