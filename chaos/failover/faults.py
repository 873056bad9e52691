"""Faults. Each is a function that injects a fault, waits and repairs; it returns the name of the
failed component.

The faults do not check whether the cluster recovers afterwards.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import counting
from ranks import STOPPED, Place, place_of
from scene import Scene

from shardfeed.testing import FailedError

#: Downtimes in seconds: some are long enough to be detected and some are not.
GONE_S = (0.1, 2.5)
#: More steps than a trainer has prefetched batches, so it must get new ones.
STEPS_ON = 20
#: World sizes to which the ranks change.
WORLD_SIZES = (3, 6)


class Fault(NamedTuple):
    number: int
    name: str
    play: Callable[[Scene], str]
    #: True if the fault needs several coordinators, or a command that requires them.
    is_of_many: bool = False
    #: True if the fault is injected while the workers count the samples of a program.
    is_of_counting: bool = False


def kill_leader(scene: Scene) -> str:
    cluster = scene.cluster
    leader = cluster.until_led()
    scene.strike()
    leader.kill()
    if cluster.is_replicated:
        cluster.until_led(otherwise_than_by=leader)
    scene.hold(*GONE_S)
    cluster.start_nodes()
    return leader.name


def stop_leader(scene: Scene) -> str:
    """Stops the leader. After it continues, it still acts as leader, and must be rejected."""
    cluster = scene.cluster
    leader = cluster.until_led()
    scene.strike()
    leader.stop()
    if cluster.is_replicated:
        cluster.until_led(otherwise_than_by=leader)
    # Longer than the leader's lease and the session TTL.
    scene.hold(2.0, 3.0)
    leader.resume()
    return leader.name


def kill_worker(scene: Scene) -> str:
    worker = scene.random.choice(scene.cluster.workers)
    scene.strike()
    worker.kill()
    scene.hold(*GONE_S)
    scene.cluster.start_worker(worker)
    return worker.name


def stop_worker(scene: Scene) -> str:
    """Stops a worker until its session has ended and its trainers continue without it."""
    cluster = scene.cluster
    worker = scene.random.choice(cluster.workers)
    scene.strike()
    worker.stop()

    def still_live() -> str:
        found = cluster.look("worker", "list")
        live = found is None or any(
            each["name"] == worker.name and each["state"] == "live" for each in found["workers"]
        )
        return f"{worker.name} is stopped and its session has not ended" if live else ""

    scene.run.until(still_live)
    scene.run.until_all_at(scene.after(scene.struck_at, STEPS_ON))
    worker.resume()
    return worker.name


def kill_coordinators(scene: Scene) -> str:
    """Kills all coordinators; training continues without them into the next epoch."""
    nodes = [*scene.cluster.nodes.values()]
    scene.strike()
    for node in nodes:
        node.kill()
    scene.run.until_all_at(Place(scene.struck_at.epoch + 1, scene.random.randint(1, STEPS_ON)))
    scene.cluster.start_nodes()
    return ",".join(node.name for node in nodes)


def kill_rank(scene: Scene) -> str:
    """Kills a rank. The others detect it; all resume from the last state that all ranks saved."""
    run = scene.run
    victim = scene.random.randrange(run.world_size)
    scene.strike()
    run.processes[victim].kill()
    exits = run.exits()
    for rank, (status, said) in enumerate(zip(exits, run.said, strict=True)):
        noticed = status == 1 and any("lost rank" in line for line in said)
        if status != -signal.SIGKILL if rank == victim else not noticed:
            raise FailedError(f"rank {victim} was killed, and not all others noticed: {run}")
    resume(scene, run.world_size)
    return f"rank-{victim}"


def change_world_size(scene: Scene) -> str:
    """Restarts in mid-epoch with other world sizes.

    The ranks resume from the step at which all agreed to stop, or from the last state that all
    saved.
    """
    sizes = [scene.run.world_size, *WORLD_SIZES]
    scene.strike()
    for number, world_size in enumerate(WORLD_SIZES):
        if number:
            scene.mid_epoch()
        way = scene.random.choice([signal.SIGTERM, signal.SIGKILL])
        # Ranks are killed one after the other, so some may detect the loss before they are killed.
        allowed = {STOPPED} if way == signal.SIGTERM else {-signal.SIGKILL, 1}
        scene.run.signal(way)
        if not {*scene.run.exits()} <= allowed:
            raise FailedError(f"ranks did not end as {way.name} ends them: {scene.run}")
        resume(scene, world_size)
    return "-".join(f"{size}" for size in sizes)


def resume(scene: Scene, world_size: int) -> None:
    """Starts the ranks again from a state in mid-epoch."""
    state = scene.last_state()
    if state is None or place_of(state).step == 0:
        raise FailedError(f"run {scene.run.number} left no state in mid-epoch, but {state}")
    scene.run.close()
    scene.start(world_size, state)
    scene.run.until_all_at(place_of(state))


def replace_follower(scene: Scene) -> str:
    """Loses a follower with its disk and adds a replacement with a new node number."""
    cluster = scene.cluster
    leader = cluster.until_led()
    victim = scene.random.choice([node for node in cluster.nodes.values() if node is not leader])
    scene.strike()
    victim.kill()
    victim.wipe()
    scene.hold(*GONE_S)
    cluster.replace(victim)
    return victim.name


def transfer_leader(scene: Scene) -> str:
    leader = scene.cluster.until_led()
    scene.strike()
    scene.cluster.command("cluster", "transfer-leader")
    scene.cluster.until_led(otherwise_than_by=leader)
    return leader.name


def drain_worker(scene: Scene) -> str:
    """Drains a worker: it hands its ranks over, is uncordoned, and restarts."""
    cluster = scene.cluster
    worker = scene.random.choice(cluster.workers)
    scene.strike()
    cluster.command("worker", "drain", worker.name)

    def still_serving() -> str:
        found = cluster.look("worker", "show", worker.name)
        serves = found is None or found["leases"] > 0
        return f"{worker.name} is drained and still serves" if serves else ""

    scene.run.until(still_serving)
    scene.run.until_all_at(scene.after(scene.run.first, STEPS_ON))
    cluster.command("worker", "uncordon", worker.name)
    worker.kill()
    cluster.start_worker(worker)
    return worker.name


def kill_counting_worker(scene: Scene) -> str:
    """Kills a worker that holds a part of the counting pass: others must count that part again."""
    worker, datasets = counting.stop_worker(scene)
    worker.kill()
    died_ms = time.time_ns() // 1_000_000
    scene.hold(*GONE_S)
    scene.cluster.start_worker(worker)
    counting.must_end_after(scene, died_ms, datasets)
    return worker.name


def kill_counting_leader(scene: Scene) -> str:
    """Kills the leader while a worker holds a part of the counting pass, which it reports to the next leader."""
    cluster = scene.cluster
    leader = cluster.until_led()
    worker, datasets = counting.stop_worker(scene)
    leader.kill()
    died_ms = time.time_ns() // 1_000_000
    worker.resume()
    if cluster.is_replicated:
        cluster.until_led(otherwise_than_by=leader)
    scene.hold(*GONE_S)
    cluster.start_nodes()
    counting.must_end_after(scene, died_ms, datasets)
    return leader.name


FAULTS: Sequence[Fault] = (
    Fault(1, "leader-kill", kill_leader),
    Fault(2, "leader-stop", stop_leader),
    Fault(3, "worker-kill", kill_worker),
    Fault(4, "worker-stop", stop_worker),
    Fault(5, "coordinators-kill", kill_coordinators),
    Fault(6, "rank-kill", kill_rank),
    Fault(7, "world-size", change_world_size),
    Fault(8, "follower-replace", replace_follower, is_of_many=True),
    Fault(9, "leader-transfer", transfer_leader, is_of_many=True),
    Fault(10, "worker-drain", drain_worker, is_of_many=True),
    Fault(11, "counting-worker-kill", kill_counting_worker, is_of_counting=True),
    Fault(12, "counting-leader-kill", kill_counting_leader, is_of_counting=True),
)
