"""Credentials from a host or a login service: requested as documented, and renewed before they
expire."""

from __future__ import annotations

import base64
import ipaddress
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from clouds import (
    Azure,
    AzureInstance,
    AzureLogin,
    Container,
    GoogleInstance,
    Instance,
    Office,
    WebIdentity,
    shared_key,
)
from conftest import FEATURES, Dataset, ids
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from stores import S3, Fault, Proxy, Seen
from test_sources import local
from werkzeug.wrappers import Request

import shardfeed as sf
from shardfeed.testing import until


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with S3() as server:
        yield server


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Removes all credentials that the test does not set."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "GCE_", "IDENTITY_", "HTTP_PROXY", "HTTPS_PROXY")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHARDFEED_STORE_RETRY_SECONDS", "20")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """An authority's certificate, and a certificate and key for this host, signed by it."""
    folder = tmp_path_factory.mktemp("tls")
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    now = datetime.now(UTC)

    def certificate(common: str, key: Any, issuer: str, signer: Any, more: list[tuple[Any, bool]]) -> bytes:
        name = lambda text: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])  # noqa: E731
        build = x509.CertificateBuilder().subject_name(name(common)).issuer_name(name(issuer))
        build = build.public_key(key.public_key()).serial_number(x509.random_serial_number())
        build = build.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=7))
        for extension, critical in more:
            build = build.add_extension(extension, critical)
        return build.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    constraints = (x509.BasicConstraints(ca=True, path_length=None), True)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    (folder / "ca.pem").write_bytes(certificate("tests", keys[0], "tests", keys[0], [constraints]))
    (folder / "host.pem").write_bytes(certificate("host", keys[1], "tests", keys[0], [(here, False)]))
    (folder / "host.key").write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(folder / "ca.pem"), str(folder / "host.pem"), str(folder / "host.key")


def read_until_renewed(files: str, dataset: Dataset, office: Office, used: Callable[[], set[str]]) -> None:
    """Reads epochs until the first credential has expired and later ones were used."""
    options: dict[str, Any] = {"batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 7}
    with sf.Loader(files, FEATURES, **options) as each, sf.Loader(dataset.pattern, FEATURES, **options) as same:

        def epoch() -> bool:
            assert [ids(batch) for batch in each] == [ids(batch) for batch in same]
            return True

        def renewed() -> bool:
            epoch()
            over = {given.name for given in office.given[: office.ended()]}
            return bool(used() & over) and bool(used() - over)

        until(renewed, "credentials are over, and others are used")
        # A transient failure of the service is not a failure of the run.
        office.fail = 2
        seen = used()
        until(lambda: epoch() and office.fail == 0 and used() - seen, "later ones are used")
        assert each.stats()["store_bytes"] > 0
    assert not office.wrong


def guard(proxy: Proxy, office: Office, refused: list[str]) -> None:
    """Lets requests pass only if their credential is currently valid."""

    def choose(seen: Seen) -> Fault | None:
        if office.is_good(seen.key) and seen.token == f"token of {seen.key}":
            return None
        refused.append(f"{seen.method} {seen.path} with {seen.key!r}")
        return Fault("status", status=403)

    proxy.choose = choose


def read_s3(s3: S3, dataset: Dataset, prefix: str, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.upload(dataset.folder, prefix)
    refused: list[str] = []
    with Proxy(s3.address) as proxy:
        guard(proxy, office, refused)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        used = lambda: {seen.key for seen in proxy.reads()}  # noqa: E731
        read_until_renewed(f"s3://bucket/{prefix}/*.tfrecord", dataset, office, used)
    assert not refused


def test_the_role_of_an_aws_instance(
    s3: S3, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Instance() as office:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", office.endpoint)
        read_s3(s3, dataset, tmp_path.name, office, monkeypatch)


def test_the_role_of_an_eks_pod(
    s3: S3, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("the pod's own")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    with Container("/v1/credentials", "the pod's own") as office:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{office.endpoint}/v1/credentials")
        read_s3(s3, dataset, tmp_path.name, office, monkeypatch)


def test_the_role_of_an_ecs_task(
    s3: S3, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its address is fixed, and not on this host, so a proxy stands in for it.
    with Container("/v2/credentials/id") as office:
        monkeypatch.setenv("HTTP_PROXY", office.endpoint)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/id")
        read_s3(s3, dataset, tmp_path.name, office, monkeypatch)


def test_a_role_for_a_web_identity(
    s3: S3, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: tuple[str, str, str]
) -> None:
    (tmp_path / "token").write_text("jwt")
    monkeypatch.setenv("SSL_CERT_FILE", tls[0])
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/reader")
    with WebIdentity("jwt", tls[1:]) as office:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", office.endpoint)
        read_s3(s3, dataset, tmp_path.name, office, monkeypatch)


def test_the_account_of_a_google_instance(
    s3: S3, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path.name
    s3.upload(dataset.folder, prefix)
    for file in dataset.folder.iterdir():
        s3.client.put_object_acl(Bucket="bucket", Key=f"{prefix}/{file.name}", ACL="public-read")
    refused: list[str] = []
    with GoogleInstance() as office, Proxy(s3.address) as proxy:

        def choose(seen: Seen) -> Fault | None:
            if office.is_good(seen.bearer):
                return None
            refused.append(f"{seen.method} {seen.path} with {seen.bearer!r}")
            return Fault("status", status=401)

        proxy.choose = choose
        # It has a name and an address.
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, office.endpoint.removeprefix("http://"))
        monkeypatch.setenv("GOOGLE_BASE_URL", proxy.endpoint)
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        used = lambda: {seen.bearer for seen in proxy.reads()}  # noqa: E731
        read_until_renewed(f"gs://bucket/{prefix}/*.tfrecord", dataset, office, used)
    assert not refused


def blobs(dataset: Dataset) -> dict[str, bytes]:
    return {f"some folder/{file.name}": file.read_bytes() for file in dataset.folder.iterdir()}


def read_azure(dataset: Dataset, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()

    def is_good(request: Request) -> bool:
        kind, _, name = request.headers.get("Authorization", "").partition(" ")
        if "Range" in request.headers:
            used.add(name)
        return kind == "Bearer" and office.is_good(name)

    with Azure(blobs(dataset), is_good) as store:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", store.endpoint)
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        read_until_renewed("az://container/some folder/*.tfrecord", dataset, office, lambda: set(used))
        assert not store.refused


def test_the_identity_of_an_azure_host(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with AzureInstance("secret of the host") as office:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{office.endpoint}/metadata/identity/oauth2/token")
        monkeypatch.setenv("IDENTITY_HEADER", "secret of the host")
        read_azure(dataset, office, monkeypatch)


@pytest.mark.parametrize("proof", ["client_secret", "client_assertion"])
def test_a_login_at_azure(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tls: tuple[str, str, str], proof: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", tls[0])
    monkeypatch.setenv("AZURE_CLIENT_ID", "client")
    monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
    if proof == "client_secret":
        monkeypatch.setenv("AZURE_CLIENT_SECRET", "word")
    else:
        (tmp_path / "token").write_text("word")
        monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    with AzureLogin({proof: "word"}, tls[1:]) as office:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", office.endpoint)
        read_azure(dataset, office, monkeypatch)


def test_requests_to_azure_are_signed_as_its_own_package_signs_them(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = base64.b64encode(b"a key of an account").decode()
    with Azure(blobs(dataset), shared_key("account", key)) as store:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", store.endpoint)
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", key)
        options: dict[str, Any] = {"batch_size": 4, "shuffle_window": 16, "interleave": 3, "seed": 7}
        with sf.Loader("az://container/some folder/*.tfrecord", FEATURES, **options) as each:
            assert [ids(batch) for batch in each] == local(dataset)
        assert store.ranges > 0 and not store.refused
        # A replaced blob is rejected, with its name.
        each = sf.Loader("az://container/some folder/*.tfrecord", FEATURES, **options)
        store.blobs["some folder/train-02.tfrecord"] = dataset.file(4).read_bytes()
        with each, pytest.raises(sf.ShardChangedError, match=r"train-02.tfrecord: changed"):
            list(each)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"another").decode())
        with pytest.raises(sf.DataError, match="access is denied.*AuthenticationFailed.*AZURE_STORAGE_ACCOUNT"):
            sf.Loader("az://container/some folder/*.tfrecord", FEATURES, **options)
