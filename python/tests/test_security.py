"""Trainers of a cluster with certificates: with the worker of their host, and in their own
process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Dataset, ids, loader, make_dataset

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster, Server

COUNTS = [30, 25, 9]


class Secure(Cluster):
    """A coordinator and a worker with certificates, and their authority."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pki = folder / "pki"
        self.run("tls", "init", str(self.pki), "--coordinator", "localhost")
        self.run("tls", "issue", str(self.pki), "trainer", "tom")
        super().__init__(folder, workers=0)
        self.env["SHARDFEED_TLS"] = str(self.pki / "admin")
        self.coordinator.arguments += ["--tls", str(self.pki / "localhost")]

    def reader(self) -> Server:
        arguments = ["worker", "start", "--name", "w", "--socket", self.socket_of_w, "--coordinator", self.address]
        arguments += ["--tls", str(self.pki / "worker"), "--memory-budget", "256MiB"]
        return Server("worker", arguments, self.folder / "worker.log", self.env)

    @property
    def socket_of_w(self) -> str:
        return str(self.folder / "w.sock")

    def run(self, *arguments: str) -> str:
        # Without the variables that a test sets for its trainer.
        env = {name: value for name, value in os.environ.items() if not name.startswith("SHARDFEED_")}
        ran = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=60, env=env)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    with Secure(tmp_path_factory.mktemp("security")) as cluster:
        yield cluster


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "data", COUNTS)


@pytest.fixture
def where(running: Secure, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"coordinator": running.address, "job": request.node.name, "run": "first", "timeout": 10.0}


def everything(dataset: Dataset, **options: Any) -> list[int]:
    with loader(dataset, batch_size=4, tail="uneven", **options) as each:
        return [number for batch in each for number in ids(batch)]


def test_a_trainer_reads_in_its_own_process_as_what_its_certificate_says(
    running: Secure, dataset: Dataset, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_TLS", str(running.pki / "tom"))
    assert sorted(everything(dataset, **where)) == sorted(dataset.ids)
    joined = [each for each in running.ask("audit", "--since", "1h")["entries"] if each["method"] == "Join"]
    assert joined and {each["principal"] for each in joined} == {"trainer:tom"}


def test_a_trainer_shows_a_token_and_is_told_when_it_is_revoked(
    running: Secure, dataset: Dataset, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token, anonymous = tmp_path / "token", tmp_path / "anonymous"
    anonymous.mkdir()
    (anonymous / "ca.crt").write_bytes((running.pki / "ca.crt").read_bytes())
    made = running.ask("access", "create", "ci", "--role", "trainer", "--job", "test_*", "--out", str(token))
    monkeypatch.setenv("SHARDFEED_TLS", str(anonymous))
    monkeypatch.setenv("SHARDFEED_TOKEN_FILE", str(token))
    assert sorted(everything(dataset, **where)) == sorted(dataset.ids)
    with pytest.raises(sf.DeniedError, match="is not for job `other`"):
        everything(dataset, **(where | {"job": "other"}))
    running.ask("access", "revoke", made["id"])
    with pytest.raises(sf.DeniedError, match="was revoked"):
        everything(dataset, **where)


def test_who_proves_nothing_is_denied(
    running: Secure, dataset: Dataset, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes((running.pki / "ca.crt").read_bytes())
    monkeypatch.setenv("SHARDFEED_TLS", str(tmp_path))
    with pytest.raises(sf.DeniedError, match="authenticates callers") as caught:
        everything(dataset, **where)
    assert isinstance(caught.value, PermissionError)
    monkeypatch.setenv("SHARDFEED_TLS", str(running.pki / "admin"))
    with pytest.raises(sf.DeniedError, match="may not call"):
        everything(dataset, **where)
    monkeypatch.setenv("SHARDFEED_TLS", str(tmp_path / "nowhere"))
    with pytest.raises(sf.DeniedError, match="ca.crt: cannot read"):
        everything(dataset, **where)


def test_a_trainer_of_a_worker_needs_no_certificate_until_it_reads_by_itself(
    running: Secure, dataset: Dataset, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDFEED_TLS", raising=False)
    worker = running.reader()
    worker.start()
    try:
        given = where | {"worker": running.socket_of_w, "fallback": False}
        assert sorted(everything(dataset, **given)) == sorted(dataset.ids)
    finally:
        assert worker.end(signal.SIGTERM) == 0
    # With a certificate the trainer continues in its process when the worker is killed.
    monkeypatch.setenv("SHARDFEED_TLS", str(running.pki / "tom"))
    worker = running.reader()
    worker.start()
    given = where | {"worker": running.socket_of_w, "job": where["job"] + "-2"}
    with loader(dataset, batch_size=4, tail="uneven", **given) as each:
        batches = iter(each)
        found = list(ids(next(batches)))
        worker.kill()
        found += [number for batch in batches for number in ids(batch)]
    assert sorted(found) == sorted(dataset.ids)
    assert not [name for name in os.listdir("/dev/shm") if "shardfeed" in name]
