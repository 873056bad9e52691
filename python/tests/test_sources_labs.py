"""The same batches from external servers; skipped if none is configured.

`SHARDFEED_LAB_S3=http://127.0.0.1:7480` with `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`: Ceph,
MinIO, ...

`SHARDFEED_LAB_GCS=http://127.0.0.1:4443`: fake-gcs-server with `-scheme http -public-host
127.0.0.1:4443`, which requires no credentials.
"""

from __future__ import annotations

import json
import os
import urllib.request
import uuid
from pathlib import Path
from urllib.parse import quote, urlparse

import pytest
import stores
from conftest import Dataset, make_dataset
from stores import Proxy
from test_sources import batches, local

import shardfeed as sf

def lab(name: str) -> str:
    """Returns the address of a server, or skips the test."""
    address = os.environ.get(name)
    if not address:
        pytest.skip(f"{name} names no server")
    return address


def check(files: str, dataset: Dataset) -> None:
    whole = local(dataset, 2)
    assert batches(files, 2) == whole
    assert batches(files.replace("*.tfrecord", "**/*.tfrecord"), 2) == whole
    names = [files.replace("*.tfrecord", dataset.file(n).name) for n in range(len(dataset.counts))]
    assert batches(names) == local(dataset)


@pytest.mark.parametrize("faults", [False, True])
def test_an_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: bool) -> None:
    import boto3
    from botocore.config import Config

    address = lab("SHARDFEED_LAB_S3")
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    bucket = f"shardfeed-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    dataset = make_dataset(tmp_path / "data", [13, 0, 40, 7, 300, 1, 30, 18])
    for number in range(len(dataset.counts)):
        content = dataset.file(number).read_bytes()
        client.put_object(Bucket=bucket, Key=f"x/{dataset.file(number).name}", Body=content)
    at = urlparse(address)
    assert at.hostname and at.port
    with Proxy((at.hostname, at.port), stores.chaos(4) if faults else stores.never) as proxy:
        # Signed for the server's name, independent of the proxy.
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("SHARDFEED_STORE_STALL_SECONDS", "1")
        check(f"s3://{bucket}/x/*.tfrecord", dataset)
        assert not faults or len(proxy.faults()) >= 5
        each = sf.Loader(f"s3://{bucket}/x/*.tfrecord", batch_size=4)
        other = dataset.file(2).read_bytes()
        client.put_object(Bucket=bucket, Key=f"x/{dataset.file(4).name}", Body=other)
        with each, pytest.raises(sf.ShardChangedError, match=r"train-04.tfrecord: changed"):
            list(each)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(sf.DataError, match="access is denied.*AWS_PROFILE"):
            sf.Loader(f"s3://{bucket}/x/*.tfrecord", batch_size=4)
        monkeypatch.undo()
    with pytest.raises(sf.DatasetNotFoundError):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        sf.Loader(f"s3://{bucket}-not/x/*.tfrecord", batch_size=4)


def post(url: str, content: bytes, kind: str) -> None:
    asked = urllib.request.Request(url, content, {"Content-Type": kind})
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200, answer.status


@pytest.mark.parametrize("faults", [False, True])
def test_a_google_storage_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: bool) -> None:
    address = lab("SHARDFEED_LAB_GCS")
    bucket = f"shardfeed-{uuid.uuid4().hex[:12]}"
    post(f"{address}/storage/v1/b?project=test", json.dumps({"name": bucket}).encode(), "application/json")
    dataset = make_dataset(tmp_path / "data", [13, 0, 40, 7, 300, 1, 30, 18])

    def put(number: int, content: bytes) -> None:
        name = quote(f"x/{dataset.file(number).name}", safe="")
        url = f"{address}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        post(url, content, "application/octet-stream")

    for number in range(len(dataset.counts)):
        put(number, dataset.file(number).read_bytes())
    at = urlparse(address)
    assert at.hostname and at.port
    choose = stores.chaos(4) if faults else stores.never
    # It provides the XML API under its public name (-public-host).
    with Proxy((at.hostname, at.port), choose, host=at.netloc) as proxy:
        monkeypatch.setenv("GOOGLE_BASE_URL", proxy.endpoint)
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
        monkeypatch.setenv("SHARDFEED_STORE_STALL_SECONDS", "1")
        check(f"gs://{bucket}/x/*.tfrecord", dataset)
        assert not faults or len(proxy.faults()) >= 5
        each = sf.Loader(f"gs://{bucket}/x/*.tfrecord", batch_size=4)
        put(4, dataset.file(2).read_bytes())
        with each, pytest.raises(sf.ShardChangedError, match=r"train-04.tfrecord: changed"):
            list(each)
