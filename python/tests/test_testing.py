"""shardfeed.testing: what other tests do not show, failures above all."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Dataset, ids, loader

from shardfeed.testing import Cluster, FailedError, Killer, Server, until

pytestmark = pytest.mark.embedded_only


def test_a_loader_of_a_cluster_outlives_its_worker(tmp_path: Path, dataset: Dataset) -> None:
    whole = [ids(batch) for batch in loader(dataset)]
    with Cluster(tmp_path / "cluster") as cluster:
        with loader(dataset, **cluster.loader_options()) as each:
            got = [ids(next(iter(each)))]
            cluster.workers[0].kill()
            got += [ids(batch) for batch in each]
        assert got == whole
        assert cluster.ask("worker", "show", "worker-0")["name"] == "worker-0"


def test_a_process_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match=r"coordinator ended with 2: (.|\n)*no-such-option"):
        Cluster(tmp_path, config="no-such-option = 1\n").__enter__()


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=0) as cluster, pytest.raises(FailedError) as failed:
        cluster.command("job", "show", "none")
    assert "shardfeed job show none: exit " in str(failed.value)


def test_a_panic_of_a_process_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match=r"worker-9\.log: thread 'main' panicked"):
        with Cluster(tmp_path, workers=0):
            (tmp_path / "worker-9.log").write_text("thread 'main' panicked")


def test_a_stopped_process_ends_by_sigterm(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.workers[0].stop()
        assert cluster.workers[0].end() == 0


def test_a_killer_reports_that_its_worker_does_not_start(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, pytest.raises(FailedError, match="worker-0 ended with 2"):
        with Killer(cluster.workers[0], seed=1) as killer:
            cluster.workers[0].arguments.append("--no-such-option")
            until(lambda: killer.kills > 0 and not killer.is_alive(), "the killer ends")


def test_a_wait_names_its_condition(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="not in 0 s: rain"):
        until(lambda: False, "rain", deadline_s=0.0)
    with pytest.raises(FailedError, match="worker does not run"):
        Server("worker", [], tmp_path / "log").stop()
