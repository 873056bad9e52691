"""Checks whether a cluster is whole: every component runs, knows the others, and does its work."""

from __future__ import annotations

from typing import Any

from servers import Cluster

#: Time without an answer to the leader after which a follower counts as missing.
HEARD_MS = 2000


class Whole:
    """First reason why the cluster is not whole; use a new instance for each wait."""

    def __init__(self, cluster: Cluster, job: str, world_size: int) -> None:
        self._cluster, self._job, self._world_size = cluster, job, world_size
        #: Commit index at the first check: the log grows, so no follower ever has all of it.
        self._committed: int | None = None

    def missing(self) -> str:
        """Returns the first reason; "" if the cluster is whole."""
        return self._of_coordinators() or self._of_workers() or self._of_ranks()

    def _of_coordinators(self) -> str:
        cluster, status = self._cluster, self._cluster.status()
        if status is None:
            return "no coordinator answers"
        if not cluster.is_replicated:
            return "" if status["leader"] in cluster.nodes else "the coordinator does not lead"
        members = {each["node"]: each for each in status["members"]}
        if {*members} != {*cluster.nodes}:
            return f"the members are {sorted(members)}, not {sorted(cluster.nodes)}"
        leaders = {each["view"]["leader"] for each in members.values()}
        if leaders != {status["leader"]} or not leaders <= {*cluster.nodes}:
            return f"the coordinators take {leaders} for the leader"
        if self._committed is None:
            self._committed = status["committed_index"]
        others = (each for number, each in members.items() if number != status["leader"])
        return next(filter(None, (self._behind(each) for each in others)), "")

    def _behind(self, member: dict[str, Any]) -> str:
        """Returns the follower's deficit according to the leader; "" if there is none."""
        number = member["node"]
        if member["role"] != "voter":
            return f"coordinator {number} does not vote"
        if (member["matched_index"] or 0) < (self._committed or 0):
            return f"coordinator {number} has not all of the log"
        return f"coordinator {number} is silent" if (member["heard_ms"] or 0) > HEARD_MS else ""

    def _of_workers(self) -> str:
        found = self._cluster.look("worker", "list")
        if found is None:
            return "no answer to `worker list`"
        live = {each["name"] for each in found["workers"] if each["state"] == "live"}
        gone = {worker.name for worker in self._cluster.workers} - live
        return f"{sorted(gone)} are not live" if gone else ""

    def _of_ranks(self) -> str:
        """Checks that every rank is served by its own worker, not in-process after its loss."""
        found = self._cluster.look("rank", "list", "--job", self._job)
        if found is None:
            return "no answer to `rank list`"
        workers = self._cluster.workers
        served = {each["rank"]: (each["state"], each["worker"]) for each in found["ranks"]}
        for rank in range(self._world_size):
            name = workers[rank % len(workers)].name
            if served.get(rank) != ("served", name):
                return f"rank {rank} is {served.get(rank)}, not served by {name}"
        return ""
