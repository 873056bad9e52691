"""When a cluster is whole: every part is there, knows of the others, and does its own work."""

from __future__ import annotations

from typing import Any

from servers import Cluster

#: A follower that the leader has not heard of for so long is not there.
HEARD_MS = 2000


class Whole:
    """What is still missing until the cluster is whole; a new one for each wait."""

    def __init__(self, cluster: Cluster, job: str, world_size: int) -> None:
        self._cluster, self._job, self._world_size = cluster, job, world_size
        #: What was committed at the first look: the log grows, and nobody ever has all of it.
        self._committed: int | None = None

    def missing(self) -> str:
        """ "" if nothing is."""
        return self._of_coordinators() or self._of_workers() or self._of_ranks()

    def _of_coordinators(self) -> str:
        cluster = self._cluster
        views = cluster.views()
        silent = {*cluster.nodes} - {number for number, view in views.items() if view}
        if silent:
            return f"coordinators {sorted(silent)} do not answer"
        leaders = {view["leader"] for view in views.values()}
        if len(leaders) != 1 or not leaders <= {*cluster.nodes}:
            return f"the coordinators take {leaders} for the leader"
        return self._of_members(views, leaders.pop()) if cluster.is_replicated else ""

    def _of_members(self, views: dict[int, Any], leader: int) -> str:
        by_leader = {each["node"]: each for each in views[leader]["members"]}
        if {*by_leader} != {*self._cluster.nodes}:
            return f"the members are {sorted(by_leader)}"
        if self._committed is None:
            self._committed = views[leader]["committed"]
        for number, member in by_leader.items():
            if member["role"] == "learner":
                return f"coordinator {number} does not vote"
            if number == leader:
                continue
            if (member["matched"] or 0) < self._committed:
                return f"coordinator {number} has not all of the log"
            if (member["heard_ms"] or 0) > HEARD_MS:
                return f"coordinator {number} is silent"
        return ""

    def _of_workers(self) -> str:
        found = self._cluster.look("worker", "list")
        if found is None:
            return "nobody says which workers there are"
        live = {each["name"] for each in found["workers"] if each["state"] == "live"}
        gone = {worker.name for worker in self._cluster.workers} - live
        return f"{sorted(gone)} are not live" if gone else ""

    def _of_ranks(self) -> str:
        """Every rank must be served by its own worker, not by itself in a dead one's place."""
        found = self._cluster.look("rank", "list", "--job", self._job)
        if found is None:
            return "nobody says who serves the ranks"
        workers = self._cluster.workers
        served = {each["rank"]: (each["state"], each["worker"]) for each in found["ranks"]}
        for rank in range(self._world_size):
            name = workers[rank % len(workers)].name
            if served.get(rank) != ("served", name):
                return f"rank {rank} is {served.get(rank)}, not served by {name}"
        return ""
