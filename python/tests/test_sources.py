"""Files in object stores and on web servers: the same batches as from local files, under any
faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
from conftest import FEATURES, Dataset, ids, loader, make_dataset
from stores import S3, Fault, Proxy, Role, Seen, Web, is_read

import shardfeed as sf
from shardfeed.testing import BINARY, Cluster

#: A test that waits longer than this for an end has found a hang.
SOON_S = 30.0


@pytest.fixture
def remote(s3: S3, proxy: Proxy, dataset: Dataset, tmp_path: Path) -> str:
    """Uploads the dataset to the bucket; returns the prefix of its URLs."""
    s3.upload(dataset.folder, tmp_path.name)
    return f"s3://bucket/{tmp_path.name}"


def batches(files: Any, epochs: int = 1, **options: Any) -> list[list[int]]:
    defaults: dict[str, Any] = {
        "features": FEATURES, "batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 7,
    }  # fmt: skip
    with sf.Loader(files, **(defaults | options)) as each:
        return [ids(batch) for _ in range(epochs) for batch in each]


def local(dataset: Dataset, epochs: int = 1, **options: Any) -> list[list[int]]:
    with loader(dataset, **options) as each:
        return [ids(batch) for _ in range(epochs) for batch in each]


def test_batches_from_s3_are_those_of_the_local_files(dataset: Dataset, remote: str) -> None:
    whole = local(dataset, 2)
    assert batches(f"{remote}/*.tfrecord", 2) == whole
    assert batches(f"{remote[:-1]}?/train-0[0-9].tfrecord", 2) == whole
    names = [f"{remote}/{dataset.file(shard).name}" for shard in range(len(dataset.counts))]
    assert batches(names, 2) == whole
    state = None
    with loader(dataset) as each:
        for _, batch in zip(range(5), each, strict=False):
            state = each.state_after(batch)
    assert batches(f"{remote}/*.tfrecord", resume=state) == whole[5 : len(whole) // 2]


def test_google_cloud_storage_is_read_by_its_xml_api(
    dataset: Dataset, remote: str, proxy: Proxy, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S3 servers also support it, for listing and reading.
    monkeypatch.setenv("GOOGLE_BASE_URL", proxy.endpoint)
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    for file in dataset.folder.iterdir():
        key = f"{remote.removeprefix('s3://bucket/')}/{file.name}"
        s3.client.put_object_acl(Bucket="bucket", Key=key, ACL="public-read")
    proxy.choose = stores.chaos(6)
    assert batches(f"{remote.replace('s3://', 'gs://')}/*.tfrecord", 2) == local(dataset, 2)
    assert proxy.faults()


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_too(
    s3: S3, proxy: Proxy, tmp_path: Path, compression: str
) -> None:
    dataset = make_dataset(tmp_path / "zipped", [30, 11], compression)
    s3.upload(dataset.folder, tmp_path.name)
    assert batches(f"s3://bucket/{tmp_path.name}/*.tfrecord") == local(dataset)


@pytest.mark.parametrize("etags", [True, False])
def test_a_web_server_gives_the_same_batches_by_name_and_by_range(
    dataset: Dataset, etags: bool
) -> None:
    whole = local(dataset)
    last = len(dataset.counts) - 1
    with Web(dataset.folder, etags) as web:
        assert batches(f"{web.endpoint}/train-{{00..{last:02}}}.tfrecord") == whole
        names = [f"{web.endpoint}/{dataset.file(shard).name}" for shard in range(last + 1)]
        assert batches(names) == whole
        with pytest.raises(sf.DatasetNotFoundError, match="lists no files.*range such as"):
            batches(f"{web.endpoint}/*.tfrecord")
        with pytest.raises(sf.DatasetNotFoundError, match="train-99.tfrecord: no such object"):
            batches(f"{web.endpoint}/train-99.tfrecord")


def test_a_web_server_without_ranges_is_refused(dataset: Dataset) -> None:
    with Web(dataset.folder) as web, Proxy(web.address, lambda _: Fault("whole")) as proxy:
        with pytest.raises(sf.DataError, match="does not serve ranges; use one that does"):
            batches(f"{proxy.endpoint}/train-02.tfrecord")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_breaks_on_the_way_the_batches_are_the_same(
    dataset: Dataset, remote: str, proxy: Proxy, seed: int
) -> None:
    proxy.choose = stores.chaos(seed)
    assert batches(f"{remote}/*.tfrecord", 3) == local(dataset, 3)
    assert len(proxy.faults()) >= 3, "the proxy broke next to nothing"


@pytest.mark.parametrize("corrupt", ["error", "skip-record"])
@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("kind", ["records", "filter", "packs", "windows"])
def test_a_byte_that_changes_on_the_way_is_read_again(
    tmp_path: Path, kind: str, is_cached: bool, corrupt: Any
) -> None:
    """Only a record that is damaged twice is damaged."""
    (tmp_path / "data").mkdir()
    for number in range(2):
        with sf.TFRecordWriter(tmp_path / f"data/{number}.tfrecord") as writer:
            for record in range(40):
                writer.write({"id": 40 * number + record, "tokens": list(range(record % 7 + 9))})
    # The response from the begin of a file in which a byte is flipped, and its place: the length of
    # the first record, or its data.
    script: list[int | None] = []

    def choose(seen: stores.Seen) -> Fault | None:
        is_first = stores.is_read(seen) and (seen.range or "").startswith("bytes=0-") and "1.tfrecord" in seen.path
        place = script.pop(0) if is_first and script else None
        return None if place is None else Fault("flip", place)

    def epoch(pattern: str, script_of_reading: list[int | None], **options: Any) -> tuple[Any, list[dict[str, Any]]]:
        features: dict[str, Any] = {"id": sf.FixedLenFeature((), "int64"), "tokens": sf.VarLenFeature("int64")}
        if kind == "windows":
            del features["tokens"]
        source = sf.source(pattern, features)
        of = {
            "records": lambda: source,
            "filter": lambda: source.filter("len(tokens) < 12"),
            "packs": lambda: source.pack("tokens", length=32),
            "windows": lambda: source.window("id", size=3),
        }
        with sf.Loader(of[kind](), batch_size=2, tail="pad", corrupt=corrupt, **options) as loader:
            assert not script, "not all was read"
            state = loader.state_dict()
            script.extend(script_of_reading)
            values = [{name: getattr(batch[name], "values", batch[name]) for name in batch} for batch in loader]
            found = [{name: np.asarray(of).tolist() for name, of in each.items()} for each in values]
            assert not script and loader.skipped == []
        return state, found

    expected = epoch(str(tmp_path / "data/*.tfrecord"), [])
    with Web(tmp_path / "data") as web, Proxy(web.address, choose) as proxy:
        names = proxy.endpoint + "/{0..1}.tfrecord"
        if is_cached:
            # The wrong bytes are in the cache of blocks.
            script[:] = [30]
            more = {"cache_bytes": 1 << 26, "cache_dir": tmp_path / "blocks"}
            assert epoch(names, [], **more) == expected
        else:
            script[:] = [3, None]
            assert epoch(names, [30, None], cache_dir=tmp_path / "far") == expected
            if kind != "records":
                # Of the first record the checksum, and the data; then the checksum is counted with it.
                length = int.from_bytes((tmp_path / "data/1.tfrecord").read_bytes()[:8], "little")
                for number, place in enumerate((12 + length, 30)):
                    script[:] = [place, None]
                    assert epoch(names, [30, None], cache_dir=tmp_path / f"far-{number}") == expected
        assert len(proxy.reads()) < 60, "a record is read by one request"


KINDS = [
    Fault("status", status=503),
    Fault("status", status=503, retry_after=1),
    Fault("cut", 100),
    Fault("reset", 100),
    Fault("stall", 100),
    Fault("silent"),
    Fault("short"),
    Fault("long"),
    Fault("other range"),
]


@pytest.mark.parametrize("fault", KINDS, ids=lambda fault: f"{fault.kind} {fault.retry_after or ''}")
def test_each_fault_is_overcome_where_it_struck(
    dataset: Dataset, remote: str, proxy: Proxy, fault: Fault
) -> None:
    struck: list[Seen] = []

    def choose(seen: Seen) -> Fault | None:
        # Each range fails twice.
        before = [other for other in struck if other.path == seen.path]
        if not is_read(seen) or len(before) >= 2:
            return None
        struck.append(seen)
        return fault

    proxy.choose = choose
    assert batches(f"{remote}/*.tfrecord") == local(dataset)
    assert len(struck) >= 2 * sum(count > 0 for count in dataset.counts)


def test_a_cut_body_is_read_on_from_the_byte_where_it_ended(
    dataset: Dataset, remote: str, proxy: Proxy
) -> None:
    each = f"{remote}/{dataset.file(2).name}"
    batches(each)
    proxy.seen.clear()
    proxy.choose = lambda seen: Fault("cut", 700) if seen.range == f"bytes=0-{end}" else None
    end = dataset.file(2).stat().st_size - 1
    # With a shuffle an epoch begins inside the file.
    assert batches(each, shuffle=False) == local(one_shard(dataset, 2), shuffle=False)
    # The next epoch is prefetched, so all ranges may come twice.
    ranges = [seen.range for seen in proxy.reads()]
    assert set(ranges) == {f"bytes=0-{end}", f"bytes=700-{end}"}
    assert ranges[:1] == [f"bytes=0-{end}"] and len(ranges) <= 4


def one_shard(dataset: Dataset, shard: int) -> Dataset:
    """Returns a dataset that is one shard of another one."""

    class One(Dataset):
        @property
        def pattern(self) -> str:
            return str(dataset.file(shard))

    return One(dataset.folder, dataset.counts)


@pytest.mark.parametrize(
    "fault, says",
    [
        (Fault("status", status=503), r"HTTP status 503 \(SlowDown: Please reduce\)"),
        (Fault("cut", 0), r"\d+ x "),
        (Fault("stall", 50), "no byte for 1.0 s"),
        (Fault("silent"), "no answer for 1.0 s"),
        (Fault("reset", 0), r"\d+ x "),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_what_never_recovers_is_an_error_in_time_that_says_what_was_tried(
    dataset: Dataset,
    remote: str,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    says: str,
) -> None:
    monkeypatch.setenv("SHARDFEED_STORE_RETRY_SECONDS", "3")
    batches(f"{remote}/*.tfrecord")
    proxy.choose = lambda seen: fault if is_read(seen) and "train-02" in seen.path else None
    begun = time.monotonic()
    with pytest.raises(sf.DataError, match=says) as caught:
        batches(f"{remote}/*.tfrecord")
    assert time.monotonic() - begun < SOON_S
    message = str(caught.value)
    assert f"{remote}/train-02.tfrecord: cannot read at offset " in message
    assert "gave up after " in message and "SHARDFEED_STORE_RETRY_SECONDS" in message
    assert caught.value.file == f"{remote}/train-02.tfrecord"
    assert caught.value.offset is not None


def test_an_error_is_no_end_the_next_batch_comes_when_the_store_is_back(
    dataset: Dataset, remote: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_STORE_RETRY_SECONDS", "1")
    whole = local(dataset)
    batches(f"{remote}/*.tfrecord")
    proxy.choose = lambda seen: Fault("status") if is_read(seen) else None
    got: list[list[int]] = []
    with sf.Loader(
        f"{remote}/*.tfrecord", FEATURES, batch_size=4, shuffle_window=16, interleave=3, seed=7
    ) as each:
        with pytest.raises(sf.DataError):
            next(iter(each))
        proxy.choose = stores.never
        got += [ids(batch) for batch in each]
    assert got == whole


def test_close_returns_soon_while_everything_stalls(
    dataset: Dataset, remote: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_STORE_STALL_SECONDS", "600")
    batches(f"{remote}/*.tfrecord")
    proxy.choose = lambda seen: Fault("silent") if is_read(seen) else None
    before, kept = len(proxy.reads()), threads()
    each = sf.Loader(f"{remote}/*.tfrecord", FEATURES, batch_size=4)
    with pytest.raises(StopWaiting):
        interrupted(lambda: next(iter(each)), lambda: len(proxy.reads()) > before)
    begun = time.monotonic()
    each.close()
    assert time.monotonic() - begun < 5
    deadline = time.monotonic() + SOON_S
    while threads() - kept - RUNTIMES:
        assert time.monotonic() < deadline, f"left behind: {threads() - kept}"


#: Threads that the process keeps for the next loader.
RUNTIMES = {"shardfeed-store", "shardfeed-cpu", "shardfeed-net"}


def threads() -> set[str]:
    """Returns the names of shardfeed's threads, without numbers."""
    names = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:
            continue
        if name.startswith("shardfeed"):
            names.add("-".join(name.split("-")[:2]))
    return names


class StopWaiting(Exception):
    """Raised by a signal during a wait."""


def interrupted(wait: Any, until: Any) -> None:
    """Runs `wait` and interrupts it by a signal once `until` holds."""
    def stop(*_: object) -> None:
        raise StopWaiting

    previous = signal.signal(signal.SIGUSR1, stop)

    def send() -> None:
        deadline = time.monotonic() + SOON_S
        while not until() and time.monotonic() < deadline:
            pass
        os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize("what", ["listing", "indexing"])
def test_an_interrupt_ends_waiting_for_a_store(
    dataset: Dataset, remote: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("SHARDFEED_STORE_STALL_SECONDS", "600")
    proxy.choose = lambda seen: (
        Fault("silent") if is_read(seen) or what == "listing" else None
    )
    begun = time.monotonic()
    with pytest.raises(StopWaiting):
        interrupted(
            lambda: sf.Loader(f"{remote}/*.tfrecord", FEATURES, batch_size=4),
            lambda: any(seen.fault is not None for seen in proxy.seen),
        )
    assert time.monotonic() - begun < SOON_S


def test_an_object_that_changed_is_refused_by_name(
    dataset: Dataset, remote: str, proxy: Proxy, s3: S3
) -> None:
    each = sf.Loader(f"{remote}/*.tfrecord", FEATURES, batch_size=4)
    key = f"{remote.removeprefix('s3://bucket/')}/train-04.tfrecord"
    s3.put(key, dataset.file(2).read_bytes())
    with each, pytest.raises(sf.ShardChangedError, match="changed after it was indexed") as caught:
        for _ in each:
            pass
    assert caught.value.file == f"{remote}/train-04.tfrecord"
    assert "ETag" in str(caught.value)


def test_a_file_that_changed_on_a_web_server_is_refused_by_name(dataset: Dataset) -> None:
    with Web(dataset.folder, etags=False) as web:
        name = f"{web.endpoint}/train-02.tfrecord"
        each = sf.Loader(name, FEATURES, batch_size=4)
        size = dataset.file(2).stat()
        os.utime(dataset.file(2), (size.st_atime, size.st_mtime + 100))
        with each, pytest.raises(sf.ShardChangedError) as caught:
            next(iter(each))
        assert caught.value.file == name


def test_an_object_that_is_gone_is_refused_by_name(remote: str, s3: S3) -> None:
    each = sf.Loader(f"{remote}/*.tfrecord", FEATURES, batch_size=4)
    key = f"{remote.removeprefix('s3://bucket/')}/train-04.tfrecord"
    s3.client.delete_object(Bucket="bucket", Key=key)
    with each, pytest.raises(sf.ShardChangedError, match="it is gone"):
        for _ in each:
            pass


def test_urls_of_hadoop_name_the_same_objects(dataset: Dataset, remote: str) -> None:
    names = [f"{remote}/{dataset.file(shard).name}" for shard in range(len(dataset.counts))]
    hadoop = [name.replace("s3://", "s3a://") for name in names]
    whole = local(dataset)
    for files in [hadoop, [*hadoop[:1], *names[1:]], [f"{hadoop[0].rpartition('/')[0]}/*.tfrecord"]]:
        assert batches(files) == whole
    assert batches(hadoop[:1]) == batches(names[:1])
    with pytest.raises(sf.ConfigError, match="listed twice"):
        batches([names[0], hadoop[0]])


def test_what_is_not_there_is_named(remote: str) -> None:
    for files, says in [
        (f"{remote}/none.tfrecord", "none.tfrecord: no such object"),
        (f"{remote}/none-*", "no object matches"),
        ("s3://no-such-bucket/x-*", "no such bucket|no object matches"),
        (f"{remote}/", "is a folder; name its files"),
        ("ftp://host/x", "`ftp://` is not known"),
        ([f"{remote}/train-00.tfrecord"] * 2, "listed twice"),
        ([f"{remote}/train-00.tfrecord", "/etc/hosts"], "all local, or all in one bucket"),
    ]:
        with pytest.raises((sf.DatasetNotFoundError, sf.ConfigError), match=says):
            sf.Loader(files, FEATURES, batch_size=4)


def test_missing_credentials_and_a_denial_say_what_to_do(
    remote: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy.choose = lambda seen: Fault("status", status=403)
    with pytest.raises(sf.DataError, match="access is denied.*AWS_ACCESS_KEY_ID"):
        sf.Loader(f"{remote}/*", FEATURES, batch_size=4)
    proxy.choose = stores.never
    for name in stores.KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # No host provides a role for this one.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    begun = time.monotonic()
    with pytest.raises(sf.DataError, match="no credentials.*AWS_PROFILE.*AWS_SKIP_SIGNATURE"):
        sf.Loader(f"{remote}/*", FEATURES, batch_size=4)
    assert time.monotonic() - begun < SOON_S
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"
    )
    assert batches(f"{remote}/train-02.tfrecord")


def test_keys_are_fetched_anew_before_they_expire(
    dataset: Dataset, remote: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in stores.KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_text("token")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    # They are renewed five minutes before they expire.
    with Role(302) as role:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", role.endpoint)
        whole = local(dataset)
        deadline = time.monotonic() + SOON_S
        with sf.Loader(
            f"{remote}/*.tfrecord", FEATURES, batch_size=4, shuffle_window=16, interleave=3, seed=7
        ) as each:
            assert [ids(batch) for batch in each] == whole
            while len({seen.key for seen in proxy.reads()}) < 2:
                assert time.monotonic() < deadline, "the first keys are used for ever"
                list(each)
        assert {seen.key for seen in proxy.reads()} <= {f"key-{n + 1}" for n in range(role.given)}


def test_an_unknown_number_in_the_environment_is_refused(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_STORE_REQUESTS", "many")
    with pytest.raises(sf.ConfigError, match="SHARDFEED_STORE_REQUESTS=many says no number"):
        sf.Loader(f"{remote}/*", FEATURES, batch_size=4)


def test_large_records_are_not_downloaded_for_the_index_and_small_ones_not_asked_for_one_by_one(
    s3: S3, proxy: Proxy, tmp_path: Path
) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    with sf.TFRecordWriter(folder / "large.tfrecord") as writer:
        for _ in range(4):
            writer.write(bytes(16 << 20))
    with sf.TFRecordWriter(folder / "small.tfrecord") as writer:
        for number in range(20_000):
            writer.write(bytes(100 + number % 7))
    s3.upload(folder, tmp_path.name)
    url = f"s3://bucket/{tmp_path.name}"
    sf.Loader(f"{url}/large.tfrecord", batch_size=1).close()
    asked = sum(seen.body_bytes for seen in proxy.reads())
    assert asked < 10 << 20, f"{asked} bytes for the index of 64 MiB in four records"
    proxy.seen.clear()
    sf.Loader(f"{url}/small.tfrecord", batch_size=1).close()
    assert 1 <= len(proxy.reads()) <= 4


def test_requests_under_way_stay_below_the_limit(
    s3: S3, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDFEED_STORE_REQUESTS", "3")
    # An abandoned request is active on the server until the server notices.
    monkeypatch.setenv("SHARDFEED_STORE_STALL_SECONDS", "60")
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(30):
        with sf.TFRecordWriter(folder / f"{number:02}.tfrecord") as writer:
            writer.write(bytes(1000))
    s3.upload(folder, tmp_path.name)
    most = 0

    def choose(seen: Seen) -> Fault | None:
        nonlocal most
        if is_read(seen):
            most = max(most, proxy.under_way() + 1)
        return Fault("slow") if is_read(seen) else None

    proxy.choose = choose
    with sf.Loader(f"s3://bucket/{tmp_path.name}/*", batch_size=2, interleave=16) as each:
        assert sum(1 for _ in each) == 15
    assert 2 <= most <= 3


def test_a_forked_child_reads_by_itself(dataset: Dataset, remote: str) -> None:
    whole = local(dataset)
    assert batches(f"{remote}/*.tfrecord") == whole
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if batches(f"{remote}/*.tfrecord") == whole else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + SOON_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
    assert ended[1] == 0


def test_the_command_line_inspects_and_verifies_what_is_in_a_bucket(
    dataset: Dataset, remote: str, s3: S3
) -> None:
    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run([BINARY, *arguments, "-o", "json"], capture_output=True, text=True)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    status, found = run("dataset", "inspect", f"{remote}/*.tfrecord")
    assert status == 0 and found["records"] == len(dataset.ids)
    assert found["root"] == remote and found["first_record"]["features"]
    status, found = run("dataset", "verify", f"{remote}/*.tfrecord")
    assert status == 0 and found["records_ok"] == len(dataset.ids)
    content = bytearray(dataset.file(2).read_bytes())
    content[20] ^= 1
    s3.put(f"{remote.removeprefix('s3://bucket/')}/train-02.tfrecord", bytes(content))
    status, found = run("dataset", "verify", f"{remote}/*.tfrecord")
    assert status == 1 and found["records_damaged"] == 1


def test_a_cluster_lists_scans_and_reads_what_is_in_a_bucket(
    dataset: Dataset, remote: str, proxy: Proxy, tmp_path: Path
) -> None:
    whole = local(dataset)
    proxy.choose = stores.chaos(5, 0.2)
    with Cluster(tmp_path / "cluster", workers=2) as running:
        where: dict[str, Any] = {"coordinator": running.address, "worker": running.socket()}
        running.command("dataset", "add", "digits", f"{remote}/*.tfrecord")
        got = batches(None, dataset="digits", job="named", run="a", **where)
        assert got == whole
        assert batches(f"{remote}/*.tfrecord", job="files", run="b", **where) == whole
        with sf.Loader(
            None, FEATURES, dataset="digits", batch_size=4, shuffle_window=16, interleave=3, seed=7,
            job="killed", run="c", **where,
        ) as each:  # fmt: skip
            rest = iter(each)
            first = [ids(next(rest)) for _ in range(5)]
            running.workers[0].kill()
            assert first + [ids(batch) for batch in rest] == whole

