"""Simulated credential services of cloud hosts, and an Azure container; they reject wrong or old
requests.

Written for these tests: they verify that the worker requests, signs and renews as documented, not
that a real cloud's servers accept it. Signatures of Azure requests are verified with Microsoft's
own Python package.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import md5
from types import SimpleNamespace
from typing import Any
from xml.sax.saxutils import escape

from azure.core.pipeline.transport import HttpRequest
from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response


class Server:
    """A web server on this host; `answer` computes its responses."""

    #: Certificate and key for TLS, if it uses TLS.
    tls: tuple[str, str] | None = None

    def __enter__(self) -> Any:
        self._server = make_server("127.0.0.1", 0, self._run, threaded=True, ssl_context=self.tls)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = ("127.0.0.1", self._server.server_port)
        scheme = "https" if self.tls else "http"
        self.endpoint = f"{scheme}://127.0.0.1:{self._server.server_port}"
        return self

    def _run(self, environ: Any, start: Any) -> Any:
        return self.answer(Request(environ))(environ, start)

    def answer(self, request: Request) -> Response:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@dataclass
class Given:
    """A credential that was issued."""

    name: str
    ends: float


class Office(Server):
    """Issues credentials with a limited lifetime in seconds, and validates them."""

    def __init__(self, lifetime_s: float = 3.0) -> None:
        self.lifetime_s = lifetime_s
        self.given: list[Given] = []
        #: Errors of requests that lacked a documented requirement.
        self.wrong: list[str] = []
        #: Number of transient failures to return before the next success.
        self.fail = 0
        self._lock = threading.Lock()

    def give(self) -> Given:
        with self._lock:
            given = Given(f"credential-{len(self.given) + 1}", time.time() + self.lifetime_s)
            self.given.append(given)
            return given

    def is_good(self, name: str) -> bool:
        """True if the credential is valid now."""
        with self._lock:
            return any(given.name == name and time.time() < given.ends for given in self.given)

    def ended(self) -> int:
        """Returns the number of expired credentials."""
        with self._lock:
            return sum(given.ends <= time.time() for given in self.given)

    def answer(self, request: Request) -> Response:
        if self.fail > 0:
            self.fail -= 1
            return Response("busy", status=503)
        why, response = self.asked(request)
        if why:
            self.wrong.append(f"{request.method} {request.full_path}: {why}")
            return Response(why, status=401)
        assert response is not None
        return response

    def asked(self, request: Request) -> tuple[str, Response | None]:
        """Returns the reason for rejecting a request, or its response."""
        raise NotImplementedError


def of_json(content: Mapping[str, Any]) -> Response:
    return Response(json.dumps(content), mimetype="application/json")


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_aws(given: Given) -> Response:
    # Whole seconds, rounded down: the stated expiration is not later than the actual one.
    return of_json({
        "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": stamp(given.ends - 60), "AccessKeyId": given.name,
        "SecretAccessKey": "secret", "Token": f"token of {given.name}", "Expiration": stamp(given.ends),
    })  # fmt: skip


class Instance(Office):
    """Metadata service of an EC2 instance, version 2."""

    def asked(self, request: Request) -> tuple[str, Response | None]:
        if request.path == "/latest/api/token":
            is_right = request.method == "PUT" and request.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            return ("", Response("session")) if is_right else ("no PUT with a time to live", None)
        if request.headers.get("X-aws-ec2-metadata-token") != "session":
            return "no session token, as version 2 wants", None
        role = "/latest/meta-data/iam/security-credentials/"
        if request.path == role:
            return "", Response("reader")
        return ("", of_aws(self.give())) if request.path == role + "reader" else ("no such path", None)


class Container(Office):
    """Credential agent of a container platform."""

    def __init__(self, path: str, token: str | None = None) -> None:
        super().__init__()
        self.path, self.token = path, token

    def asked(self, request: Request) -> tuple[str, Response | None]:
        if request.path != self.path:
            return "no such path", None
        if self.token is not None and request.headers.get("Authorization") != self.token:
            return "not the token of the file", None
        return "", of_aws(self.give())


class WebIdentity(Office):
    """Security token service, which exchanges a pod's token for a role's keys."""

    def __init__(self, token: str, tls: tuple[str, str]) -> None:
        super().__init__()
        self.token, self.tls = token, tls

    def asked(self, request: Request) -> tuple[str, Response | None]:
        said = request.values
        if said.get("Action") != "AssumeRoleWithWebIdentity" or said.get("WebIdentityToken") != self.token:
            return f"not the token of the file: {said.get('WebIdentityToken')}", None
        if said.get("RoleArn") != "arn:aws:iam::1:role/reader" or not said.get("RoleSessionName"):
            return "no role", None
        given = self.give()
        name, ends = given.name, stamp(given.ends)
        return "", Response(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{name}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
            f"<SessionToken>token of {name}</SessionToken><Expiration>{ends}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
            mimetype="text/xml",
        )


class GoogleInstance(Office):
    """Metadata server of a Google instance."""

    def asked(self, request: Request) -> tuple[str, Response | None]:
        if request.headers.get("Metadata-Flavor") != "Google":
            return "no Metadata-Flavor", None
        if request.path != "/computeMetadata/v1/instance/service-accounts/default/token":
            return "no such path", None
        given = self.give()
        lives = int(given.ends - time.time())
        return "", of_json({"access_token": given.name, "expires_in": lives, "token_type": "Bearer"})


class AzureInstance(Office):
    """Identity endpoint of an Azure host."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self.secret = secret

    def asked(self, request: Request) -> tuple[str, Response | None]:
        if request.headers.get("Metadata") != "true" or not request.args.get("api-version"):
            return "no Metadata header or no version", None
        if request.args.get("resource") != "https://storage.azure.com":
            return f"a token for {request.args.get('resource')}", None
        if request.headers.get("X-Identity-Header") != self.secret:
            return "not the secret", None
        given = self.give()
        return "", of_json({"access_token": given.name, "expires_on": str(int(given.ends)), "token_type": "Bearer"})


class AzureLogin(Office):
    """Login service, which exchanges a service principal's secret, or a pod's token, for an access
    token."""

    def __init__(self, proof: Mapping[str, str], tls: tuple[str, str]) -> None:
        super().__init__()
        self.proof, self.tls = proof, tls

    def asked(self, request: Request) -> tuple[str, Response | None]:
        if request.path != "/tenant/oauth2/v2.0/token" or request.form.get("client_id") != "client":
            return f"not the tenant or the client: {request.form.get('client_id')}", None
        missing = {name for name, value in self.proof.items() if request.form.get(name) != value}
        if missing or request.form.get("scope") != "https://storage.azure.com/.default":
            return f"{missing or 'scope'} is not as it must be", None
        given = self.give()
        lives = int(given.ends - time.time())
        return "", of_json({"access_token": given.name, "expires_in": lives, "token_type": "Bearer"})


def shared_key(account: str, key: str) -> Callable[[Request], bool]:
    """Verifies a request's signature with Microsoft's own code."""
    policy = SharedKeyCredentialPolicy(account, key)

    def check(request: Request) -> bool:
        headers = {name.lower(): value for name, value in request.headers if name.lower() != "authorization"}
        if "range" in headers and "x-ms-range" not in headers:
            headers["byte_range"] = headers["range"]
        # The path as received, neither decoded nor encoded. A space in a query may also be a plus,
        # which that package neither writes nor reads.
        path, _, query = request.environ["REQUEST_URI"].partition("?")
        url = f"http://host{path}?{query.replace('+', '%20')}"
        asked = HttpRequest(request.method, url, headers=headers)
        policy.on_request(SimpleNamespace(http_request=asked, context=SimpleNamespace(transport=None)))
        return bool(asked.headers["Authorization"] == request.headers.get("Authorization"))

    return check


class Azure(Server):
    """One container of Azure Blob Storage, limited to listing and reading."""

    def __init__(self, blobs: Mapping[str, bytes], is_good: Callable[[Request], bool]) -> None:
        self.blobs, self.is_good = dict(blobs), is_good
        self.refused: list[str] = []
        self.ranges = 0
        #: Names per page of a list.
        self.page = 3

    def answer(self, request: Request) -> Response:
        is_dated = request.headers.get("x-ms-date") or request.headers.get("Date")
        if not request.headers.get("x-ms-version") or not is_dated:
            return self._refuse(request, "InvalidHeaderValue", 400)
        if not self.is_good(request):
            return self._refuse(request, "AuthenticationFailed", 403)
        if request.args.get("comp") == "list":
            return self._list(request)
        content = self.blobs.get(request.path.removeprefix("/container/"))
        if content is None:
            return self._refuse(request, "BlobNotFound", 404)
        return self._blob(request, content)

    def _refuse(self, request: Request, code: str, status: int) -> Response:
        self.refused.append(f"{code} {request.method} {request.full_path}")
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"
        return Response(text, status=status, mimetype="application/xml", headers={"x-ms-error-code": code})

    def _list(self, request: Request) -> Response:
        prefix, marker = request.args.get("prefix", ""), request.args.get("marker", "")
        names = [name for name in sorted(self.blobs) if name.startswith(prefix) and name >= marker]
        delimiter = request.args.get("delimiter")
        if delimiter:
            names = [name for name in names if delimiter not in name.removeprefix(prefix)]
        page, rest = names[: self.page], names[self.page :]
        parts = [
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>"
            f"<Etag>{tag(self.blobs[name])}</Etag><Content-Length>{len(self.blobs[name])}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for name in page
        ]
        text = (
            "<?xml version='1.0' encoding='utf-8'?><EnumerationResults ContainerName='container'><Blobs>"
            f"{''.join(parts)}</Blobs><NextMarker>{escape(rest[0]) if rest else ''}</NextMarker>"
            "</EnumerationResults>"
        )
        return Response(text, mimetype="application/xml")

    def _blob(self, request: Request, content: bytes) -> Response:
        if request.headers.get("If-Match", tag(content)).strip('"') != tag(content).strip('"'):
            return self._refuse(request, "ConditionNotMet", 412)
        headers = {
            "ETag": tag(content), "Last-Modified": MODIFIED, "x-ms-blob-type": "BlockBlob",
            "Accept-Ranges": "bytes",
        }  # fmt: skip
        asked = request.headers.get("x-ms-range") or request.headers.get("Range")
        if not asked:
            return Response(content, headers=headers, mimetype="application/octet-stream")
        self.ranges += 1
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        part = content[start : end + 1]
        return Response(part, status=206, headers=headers, mimetype="application/octet-stream")


#: Modification time of all blobs, in HTTP format.
MODIFIED = format_datetime(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(), usegmt=True)


def tag(content: bytes) -> str:
    return f'"0x{md5(content).hexdigest()[:16].upper()}"'
