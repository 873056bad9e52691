"""Ranks from torch.distributed, in two processes, which never wait for each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mixed
from trainings import free_address

#: Runs an epoch on request; all collective operations fail.
PROCESS = """
import json, logging, os, sys
import torch.distributed as dist
from torch.distributed import distributed_c10d
import mixed

COLLECTIVE = ("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "irecv", "isend",
              "monitored_barrier", "new_group", "new_subgroups", "recv", "reduce", "scatter", "send", "split_group")

def refuse(*arguments, **options):
    raise AssertionError("a collective was called")

dist.init_process_group("gloo")
rank = dist.get_rank()
# torch's own values count, not the variables.
os.environ["RANK"] = "7"
found = [name for name in dir(dist) if name.startswith(COLLECTIVE) and callable(getattr(dist, name))]
assert {"all_reduce", "all_gather_object", "barrier", "broadcast_object_list", "reduce_scatter"} <= set(found)
for name in found:
    for module in (dist, distributed_c10d):
        setattr(module, name, refuse)
try:
    dist.barrier()
except AssertionError:
    pass
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
print("joined", flush=True)
assert sys.stdin.readline() == "go\\n"
with mixed.loader(sys.argv[1], output="torch") as each:
    assert (each.rank, each.world_size) == (rank, 2)
    print(json.dumps([number for batch in each for number in batch["id"].tolist()]), flush=True)
assert sys.stdin.readline() == "end\\n"
"""


def test_a_rank_waits_for_no_other(tmp_path: Path) -> None:
    """Rank 1 ends its epoch before rank 0 creates a loader."""
    files = mixed.write(tmp_path / "data")
    host, port = free_address().split(":")
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    processes = []
    for rank in range(2):
        variables = {"MASTER_ADDR": host, "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
        processes.append(subprocess.Popen(
            [sys.executable, "-u", "-c", PROCESS, files], env={**os.environ, **paths, **variables},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip

    def tell(rank: int, word: str) -> None:
        stream = processes[rank].stdin
        assert stream is not None
        stream.write(f"{word}\n")
        stream.flush()

    def said(rank: int) -> str:
        stream = processes[rank].stdout
        assert stream is not None
        return stream.readline()

    got = {}
    try:
        joined = [said(rank) for rank in range(2)]
        for rank in (1, 0):
            tell(rank, "go")
            got[rank] = said(rank)
        for rank in range(2):
            tell(rank, "end")
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors
    assert joined == ["joined\n"] * 2
    assert sorted(json.loads(got[0]) + json.loads(got[1])) == list(range(mixed.ROWS))
    for rank, text in enumerate(errors):
        assert f"rank {rank} of 2, from torch.distributed\n" in text
