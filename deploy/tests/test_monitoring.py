"""Alerts and dashboard, with a real Prometheus that monitors a real training. Requires Debian's
package prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command import BINARY, DEPLOY, ROOT, plain_environment, run, until

MONITORING = DEPLOY / "monitoring"

#: Metrics that are absent in a training of one minute on one host, from local files.
NOTHING_YET = re.compile(r"store_|cache_read|in_doubt|Failed|revocations|sessions_expired|> 0\)? *$")

TRAINING = """
import sys, time
import shardfeed as sf

files, coordinator, worker = sys.argv[1:]
loader = sf.Loader(files, batch_size=8, coordinator=coordinator, worker=worker, job="watched", mode="dynamic", tail="uneven")
for batches in loader.epochs(10_000):
    for batch in batches:
        time.sleep(0.002)
"""


def address(number: int, port: int) -> str:
    """Returns an address on a loopback host of this process, whose ports no other process uses."""
    process = os.getpid()
    return f"127.{process // 250 % 250 + 1}.{process % 250 + 1}.{number}:{port}"


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    for tool in ("prometheus", "promtool"):
        assert shutil.which(tool), f"{tool} is missing (Debian: apt install prometheus)"


class Prometheus:
    """A Prometheus that monitors three coordinators and a worker, with the project's rules."""

    def __init__(self, at: str) -> None:
        self.home = f"http://{at}"

    def get(self, path: str, **query: str) -> Any:
        url = f"{self.home}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error

    def ask(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("monitoring")
    env = plain_environment() | {"SHARDFEED_CACHE_DIR": str(folder / "cache")}
    sys.path.insert(0, str(ROOT / "python/python"))
    import shardfeed as sf

    with sf.TFRecordWriter(folder / "data.tfrecord") as writer:
        for number in range(4000):
            writer.write(number.to_bytes(8, "little") * 64)
    nodes, pages = ([address(number, port) for number in (1, 2, 3)] for port in (7070, 7071))
    of_worker, of_prometheus = address(4, 7072), address(4, 9090)
    peers = ",".join(f"{number}={address}" for number, address in enumerate(nodes, 1))
    grpc = ",".join(nodes)
    worker = folder / "worker.sock"
    config = (MONITORING / "prometheus.yml").read_text().replace("15s", "1s")
    config = config.replace('["head-1:7071", "head-2:7071", "head-3:7071"]', json.dumps(pages))
    config = config.replace('["node-1:7072", "node-2:7072"]', f'["{of_worker}"]')
    assert "head-" not in config and "node-" not in config
    # Rates over five minutes, and rules every minute, would prolong the test by as much.
    rules = (MONITORING / "alerts.yml").read_text().replace("[5m]", "[10s]")
    (folder / "alerts.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(config)
    commands: list[list[str | Path]] = []
    for number in (1, 2, 3):
        at: list[str | Path] = ["--listen", nodes[number - 1], "--http", pages[number - 1], "--data", folder / f"state-{number}"]
        commands.append([BINARY, "coordinator", "start", "--node-id", str(number), "--peers", peers, *at])
    commands += [
        [BINARY, "worker", "start", "--coordinator", grpc, "--socket", worker, "--http", of_worker],
        [sys.executable, "-c", TRAINING, folder / "data.tfrecord", grpc, worker],
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--web.listen-address={of_prometheus}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
        ],
    ]
    env["PYTHONPATH"] = str(ROOT / "python/python")
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context((folder / f"{number}.log").open("w"))
            words = [str(word) for word in command]
            process = subprocess.Popen(words, stdout=log, stderr=log, env=env)
            stack.callback(process.wait)
            stack.callback(process.kill)
        prometheus = Prometheus(of_prometheus)

        def sees() -> bool:
            try:
                return len(prometheus.ask("rate(shardfeed_trainer_samples_total[10s]) > 0")) > 0
            except OSError:
                return False

        try:
            until(sees, "Prometheus sees a trainer", 60)
            until(lambda: prometheus.ask("shardfeed:trainer_wait:ratio"), "the recorded rules", 90)
            until(lambda: prometheus.ask("shardfeed:job_rank_wait:ratio"), "the reports to the leader", 90)
            until(lambda: prometheus.ask("shardfeed_job_epoch_shards"), "the leader counts shards", 90)
            until(lambda: prometheus.ask("shardfeed:peer_round_trip_high:seconds > 0"), "nodes answer each other", 90)
        except AssertionError as error:
            logs = [file.read_text()[-600:] for file in sorted(folder.glob("*.log"))]
            raise AssertionError(logs) from error
        yield prometheus


def panels() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def test_the_rules_are_rules_and_fire_when_they_should() -> None:
    run(["promtool", "check", "config", MONITORING / "prometheus.yml"])
    run(["promtool", "check", "rules", MONITORING / "alerts.yml"])
    run(["promtool", "test", "rules", MONITORING / "alerts_test.yml"])
    named = re.findall(r"alert: (\w+)", (MONITORING / "alerts.yml").read_text())
    tested = (MONITORING / "alerts_test.yml").read_text()
    for name in named:
        # Once in a healthy cluster, where it is silent, and once where it fires.
        assert tested.count(f"alertname: {name}\n") + tested.count(f"alertname: {name}}}") >= 2, name
    assert tested.count("exp_alerts:") == len(named)


def test_the_runbook_says_what_every_alert_means_and_what_to_do() -> None:
    runbook = (ROOT / "docs/OPERATIONS.md").read_text()
    rows = re.findall(r"^\| `(Shardfeed\w+)` \| (.+) \| (.+) \|$", runbook, re.MULTILINE)
    named = re.findall(r"alert: (\w+)", (MONITORING / "alerts.yml").read_text())
    # Each once, in the order of the file, and no removed ones.
    assert [name for name, _, _ in rows] == named


def test_every_expression_of_the_dashboard_has_an_answer(watching: Prometheus) -> None:
    expressions = list(panels())
    assert len(expressions) > 30
    for title, expression in expressions:
        asked = expression.replace("$job", ".*").replace("[5m]", "[10s]")
        found = watching.ask(asked)
        if not NOTHING_YET.search(expression):
            assert found, f"{title}: {asked}"


def test_every_metric_that_is_asked_for_is_one_that_processes_have(watching: Prometheus) -> None:
    known = set(watching.get("label/__name__/values"))
    texts = [expression for _, expression in panels()]
    texts += re.findall(r"expr: (?:\|\n)?((?:.+\n)(?: {12}.+\n)*)", (MONITORING / "alerts.yml").read_text())
    asked = {name for text in texts for name in re.findall(r"\bshardfeed[_:][a-z_:]+", text)}
    assert len(asked) > 30, asked
    # A counter without increments has no series, but the processes still report its type.
    missing = asked - known - described(watching)
    # No rank is lost here, and in-doubt metrics have no type before. Another test checks documented
    # names.
    documented = set(re.findall(r"^\| `(shardfeed_job_\w*in_doubt\w*)`", (ROOT / "docs/METRICS.md").read_text(), re.MULTILINE))
    assert missing == documented & missing, missing - documented


def described(watching: Prometheus) -> set[str]:
    """Returns the metrics that the processes describe, with or without a series."""
    families: dict[str, Any] = watching.get("metadata")
    names = set(families)
    return names | {f"{name}_total" for name in names} | {f"{name}_bucket" for name in names}


def test_the_trainers_job_is_the_label_and_nothing_alarms(watching: Prometheus) -> None:
    (rank,) = watching.ask("shardfeed_trainer_step")
    assert (rank["metric"]["job"], rank["metric"]["rank"]) == ("watched", "0")
    (heard,) = watching.ask("shardfeed_job_rank_wait_seconds_total")
    assert (heard["metric"]["job"], heard["metric"]["rank"]) == ("watched", "0")
    assert watching.ask('up{job=~"shardfeed-.*"}') != []
    assert watching.ask('up{job=~"shardfeed-.*"} == 0') == []
    rules = [rule for group in watching.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    firing = [alert["labels"]["alertname"] for alert in watching.get("alerts")["alerts"]]
    assert "ShardfeedNoLeader" not in firing and "ShardfeedStorageFailed" not in firing, firing
