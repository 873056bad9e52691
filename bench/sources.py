"""Measures opening and reading of one 200 GB file, 100,000 tiny files, and fewer files than ranks.

    python bench/sources.py one --gigabytes 200 --folder /tmp/one      # sparse: about 4 KiB on disk for each MiB
    python bench/sources.py tiny --files 100000 --folder /tmp/tiny
    python bench/sources.py ranks --ranks 8 --folder /tmp/ranks

Each measurement runs in its own process. `cold` is without an index and with the files' pages
dropped from the cache, `warm` with both.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

MIB = 1 << 20


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def make_sparse(path: Path, gigabytes: float) -> int:
    """Writes records of 1 MiB of zeros to a sparse file; only framing pages are on the disk."""
    records = int(gigabytes * 1e9) // (MIB + 16)
    if path.exists() and path.stat().st_size == records * (MIB + 16):
        return records
    length = struct.pack("<Q", MIB)
    header = length + struct.pack("<I", masked(crc32c(length)))
    footer = struct.pack("<I", masked(crc32c(bytes(MIB))))
    with path.open("wb") as file:
        os.pwrite(file.fileno(), header, 0)
        for record in range(1, records):
            os.pwrite(file.fileno(), footer + header, record * (MIB + 16) - 4)
        os.pwrite(file.fileno(), footer, records * (MIB + 16) - 4)
        os.fsync(file.fileno())
    return records


def make_files(folder: Path, files: int, records: int, size: int) -> None:
    import shardfeed as sf

    for number in range(files):
        path = folder / f"{number // 1000:03}" / f"{number:06}.tfrecord"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            with sf.TFRecordWriter(path) as writer:
                for record in range(records):
                    writer.write(struct.pack("<QQ", number, record) + bytes(size - 16))


def drop(folder: Path) -> None:
    """Drops the files' pages from the page cache."""
    for path in folder.rglob("*.tfrecord"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rss() -> tuple[int, int]:
    """Returns the current and the peak anonymous memory, in MiB."""
    words = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return int(words["RssAnon"].split()[0]) >> 10, int(words["VmHWM"].split()[0]) >> 10


def measure(options: dict[str, object], seconds: float) -> None:
    import shardfeed as sf

    begun = time.perf_counter()
    loader = sf.Loader(**options)  # type: ignore[arg-type]
    opened = time.perf_counter()
    each = iter(loader)
    next(each)
    first = time.perf_counter()
    count, batches, most = 0, 0, 0
    begin = time.perf_counter()
    for batch in each:
        count += len(batch.valid)
        batches += 1
        if batches % 64 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")))
        if time.perf_counter() - begin > seconds:
            break
    took = time.perf_counter() - begin
    now, high = rss()
    print(json.dumps({
        "open_s": round(opened - begun, 3), "first_batch_s": round(first - opened, 3),
        "records_per_s": round(count / took), "steps": len(loader), "descriptors": most,
        "rss_anon_mib": now, "rss_max_mib": high,
    }))  # fmt: skip


def run(name: str, cache: Path, options: dict[str, object], seconds: float) -> dict[str, object]:
    env = os.environ | {"SHARDFEED_CACHE_DIR": str(cache)}
    arguments = [sys.executable, __file__, "measure", json.dumps(options), str(seconds)]
    done = subprocess.run(arguments, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    print(f"{name:24}", "  ".join(f"{key} {value}" for key, value in found.items()), flush=True)
    return found


def main() -> None:
    if sys.argv[1] == "measure":
        measure(json.loads(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["one", "tiny", "ranks"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=200)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    cache = args.folder / "cache"
    options: dict[str, object]
    if args.what == "one":
        records = make_sparse(args.folder / "one.tfrecord", args.gigabytes)
        print(f"one file, {args.gigabytes} GB, {records} records of 1 MiB")
        options = {"files": str(args.folder / "one.tfrecord"), "batch_size": 8, "memory_budget": "1GiB"}
        for shuffle_window in (1, 100, 10_000):
            each = options | {"shuffle_window": shuffle_window}
            drop(args.folder)
            if shuffle_window == 1:
                run("cold", cache, each, args.seconds)
            run(f"warm, window {shuffle_window}", cache, each, args.seconds)
    elif args.what == "tiny":
        make_files(args.folder, args.files, 10, 200)
        print(f"{args.files} files of 10 records of 200 bytes")
        options = {"files": str(args.folder / "**/*.tfrecord"), "batch_size": 64}
        drop(args.folder)
        run("cold", cache, options, args.seconds)
        run("warm", cache, options, args.seconds)
        run("warm, no shuffle", cache, options | {"shuffle": False}, args.seconds)
    else:
        make_files(args.folder, 1, 400_000, 1000)
        options = {"files": str(args.folder / "**/*.tfrecord"), "batch_size": 64, "memory_budget": "256MiB"}
        run("1 file, 1 rank", cache, options, args.seconds)
        env = os.environ | {"SHARDFEED_CACHE_DIR": str(cache)}
        begun = time.perf_counter()
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "measure",
                 json.dumps(options | {"rank": rank, "world_size": args.ranks}), "1000"],
                env=env, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(args.ranks)
        ]  # fmt: skip
        found = [json.loads(rank.communicate()[0]) for rank in ranks]
        took = time.perf_counter() - begun
        steps = {each["steps"] for each in found}
        print(f"1 file, {args.ranks} ranks: steps {steps}, {400_000 / took:.0f} records/s in all")


if __name__ == "__main__":
    main()
