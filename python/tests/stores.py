"""Real servers for tests, and a proxy between them and the worker that injects faults."""

from __future__ import annotations

import http.client
import json
import random
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
from moto.server import ThreadedMotoServer
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.serving import make_server
from werkzeug.utils import send_from_directory
from werkzeug.wrappers import Request, Response

#: Keys of boto3 and the worker; moto does not verify signatures, but requires them.
KEYS = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret"}


def environment(endpoint: str) -> dict[str, str]:
    """Returns the variables that route a loader to an S3 server, with short timeouts."""
    return KEYS | {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "SHARDFEED_STORE_STALL_SECONDS": "1",
        "SHARDFEED_STORE_RETRY_SECONDS": "60",
    }


class S3:
    """moto's S3 with one bucket."""

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self) -> S3:
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.address = (host, port)
        self.endpoint = f"http://{host}:{port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )
        self.client.create_bucket(Bucket=self.bucket)
        return self

    def upload(self, folder: Path, prefix: str) -> None:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{prefix}/{file.relative_to(folder)}", file.read_bytes())

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content)

    def __exit__(self, *_: object) -> None:
        self._server.stop()


class Role:
    """Issues short-lived keys, like the agent of a container platform."""

    def __init__(self, lifetime_s: int) -> None:
        self._lifetime, self.given = lifetime_s, 0

    def __enter__(self) -> Role:
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/role"
        return self

    def _answer(self, environ: Any, start: Any) -> Any:
        self.given += 1
        ends = datetime.now(UTC) + timedelta(seconds=self._lifetime)
        keys = {
            "AccessKeyId": f"key-{self.given}",
            "SecretAccessKey": "secret",
            "Token": "token",
            "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        return Response(json.dumps(keys), mimetype="application/json")(environ, start)

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Web:
    """A web server over a folder, with range requests."""

    def __init__(self, folder: Path, etags: bool = True) -> None:
        self._folder, self._etags = folder, etags

    def __enter__(self) -> Web:
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = ("127.0.0.1", self._server.server_port)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def _answer(self, environ: Any, start: Any) -> Any:
        request = Request(environ)
        if request.method not in ("GET", "HEAD"):
            return MethodNotAllowed()(environ, start)
        try:
            response: Response = send_from_directory(
                self._folder, request.path[1:], environ, etag=self._etags
            )
        except HTTPException as error:
            return error(environ, start)
        return response(environ, start)

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@dataclass(frozen=True)
class Fault:
    """Fault in one response."""

    kind: str
    #: Bytes of the body that pass before the fault.
    after: int = 0
    status: int = 503
    retry_after: int | None = None


@dataclass
class Seen:
    """One request that passed, and its result."""

    method: str
    path: str
    range: str | None
    fault: Fault | None
    body_bytes: int = 0
    #: The entire response was sent, or is about to be.
    is_done: bool = False
    #: Key of the signature, if there is one, and its session token.
    key: str = ""
    token: str = ""
    #: Bearer token of an unsigned request.
    bearer: str = ""


Choice = Callable[[Seen], Fault | None]


def never(_: Seen) -> Fault | None:
    return None


def is_read(seen: Seen) -> bool:
    """True if a request is for data, not for a list or metadata."""
    return seen.method == "GET" and seen.range is not None


def chaos(seed: int, share: float = 0.3) -> Choice:
    """Returns every kind of fault, at random, for a fraction `share` of the reads."""
    rng = random.Random(seed)

    def choose(seen: Seen) -> Fault | None:
        if not is_read(seen) or rng.random() >= share:
            return None
        after = rng.choice([0, 1, 100, 5_000])
        return rng.choice([
            Fault("status", status=503),
            Fault("status", status=429, retry_after=1) if rng.random() < 0.1 else Fault("status", status=500),
            Fault("cut", after),
            Fault("reset", after),
            Fault("stall", after),
            Fault("slow", after),
            Fault("short", after),
            Fault("long"),
            Fault("other range"),
        ])  # fmt: skip

    return choose


@dataclass
class Proxy:
    """A proxy between a client and a server: each response is complete, or has a fault from
    `choose`."""

    upstream: tuple[str, int]
    choose: Choice = never
    #: Host name sent to the server; None: the client's.
    host: str | None = None
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> Proxy:
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._listener.close()

    def reads(self) -> list[Seen]:
        with self._lock:
            return [seen for seen in self.seen if is_read(seen)]

    def under_way(self) -> int:
        """Returns the number of reads whose responses are not complete."""
        return sum(not seen.is_done for seen in self.seen if is_read(seen))

    def faults(self) -> set[str]:
        return {seen.fault.kind for seen in self.reads() if seen.fault is not None}

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            client.settimeout(120)
            try:
                stream = client.makefile("rb")
                while self._answer(client, stream):
                    pass
            except OSError:
                # The peer is gone, as expected with faults.
                return

    def _answer(self, client: socket.socket, stream: Any) -> bool:
        """Forwards one request; returns whether the connection stays open."""
        first = stream.readline().decode("latin-1").split()
        if len(first) < 3:
            return False
        headers = http.client.parse_headers(stream)
        body = stream.read(int(headers.get("content-length", 0)))
        seen = Seen(first[0], first[1], headers.get("range"), None)
        if (signed := headers.get("authorization", "")).startswith("AWS4"):
            seen.key = signed.partition("Credential=")[2].partition("/")[0]
            seen.token = headers.get("x-amz-security-token", "")
        elif signed.startswith("Bearer "):
            seen.bearer = signed.removeprefix("Bearer ")
            # No server behind it accepts this header.
            del headers["authorization"]
        with self._lock:
            seen.fault = self.choose(seen)
            self.seen.append(seen)
        return self._pass(client, seen, headers, body)

    def _pass(self, client: socket.socket, seen: Seen, headers: Any, body: bytes) -> bool:
        fault = seen.fault
        if fault is not None and fault.kind == "status":
            more = f"retry-after: {fault.retry_after}\r\n" if fault.retry_after is not None else ""
            text = "<Error><Code>SlowDown</Code><Message>Please reduce</Message></Error>"
            client.sendall(
                f"HTTP/1.1 {fault.status} Broken\r\n{more}content-length: {len(text)}\r\n\r\n{text}".encode()
            )
            return True
        upstream = http.client.HTTPConnection(*self.upstream, timeout=60)
        upstream.putrequest(seen.method, seen.path, skip_host=True, skip_accept_encoding=True)
        if self.host is not None:
            headers.replace_header("host", self.host)
        for name, value in headers.items():
            if not (fault is not None and fault.kind == "whole" and name.lower() == "range"):
                upstream.putheader(name, value)
        upstream.endheaders(body or None)
        answer = upstream.getresponse()
        content = answer.read()
        status = f"HTTP/1.1 {answer.status} {answer.reason}\r\n"
        kept = [
            (name, value)
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "transfer-encoding", "content-length")
        ]
        length = len(content) if seen.method != "HEAD" else int(answer.getheader("content-length", "0"))
        upstream.close()
        return self._send(client, seen, status, kept, content, length)

    def _send(
        self,
        client: socket.socket,
        seen: Seen,
        status: str,
        headers: list[tuple[str, str]],
        content: bytes,
        length: int,
    ) -> bool:
        fault = seen.fault or Fault("")
        passes = min(fault.after, len(content)) if seen.fault is not None else len(content)
        if fault.kind == "short":
            length = max(length // 2, 1)
            passes = min(length, len(content))
        elif fault.kind == "long":
            passes, length = len(content), length + 10
        elif fault.kind == "other range":
            headers = [
                (name, "bytes 0-0/1" if name.lower() == "content-range" else value)
                for name, value in headers
            ]
            passes = len(content)
        elif fault.kind in ("slow", "whole"):
            passes = len(content)
        elif fault.kind == "flip":
            passes = len(content)
            content = content[: fault.after] + bytes([content[fault.after] ^ 1]) + content[fault.after + 1 :]
        head = status + "".join(f"{name}: {value}\r\n" for name, value in headers)
        head += f"content-length: {length}\r\n\r\n"
        if fault.kind == "silent" or (fault.kind == "reset" and fault.after == 0):
            head, passes = "", 0
        client.sendall(head.encode("latin-1"))
        if fault.kind == "slow":
            for start in range(0, passes, max(passes // 20, 1)):
                seen.is_done = start + max(passes // 20, 1) >= passes
                client.sendall(content[start : start + max(passes // 20, 1)])
                self._stop.wait(0.01)
        else:
            seen.is_done = True
            client.sendall(content[:passes])
        seen.body_bytes = passes
        if fault.kind in ("stall", "silent"):
            # Until the client gives up.
            while not self._stop.is_set() and client.recv(1):
                pass
            return False
        if fault.kind == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        return fault.kind not in ("cut", "long", "short")
