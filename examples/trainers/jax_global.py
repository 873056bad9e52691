"""JAX with global arrays over the devices of one or more processes, optax, and checkpoints of
Orbax.

    python ../digits/pack.py --train data --test test.tfrecord
    python jax_global.py --processes 2 --process 0 --data data --test test.tfrecord --checkpoint checkpoint &
    python jax_global.py --processes 2 --process 1 --data data --test test.tfrecord --checkpoint checkpoint

Start it again with any number of processes that divides the global batch: it resumes inside the
epoch.
"""

from __future__ import annotations

from typing import Any

import digits
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardfeed as sf

OPTIMIZER = optax.adam(3e-3)


def logits(weights: Any, image: Any) -> Any:
    hidden = jax.nn.relu(image @ weights["in"] + weights["in_bias"])
    return hidden @ weights["out"] + weights["out_bias"]


@jax.jit
def begin(key: Any) -> Any:
    first, second = jax.random.split(key)
    weights = {
        "in": jax.random.normal(first, (64, 64)) / 8, "in_bias": jnp.zeros(64),
        "out": jax.random.normal(second, (64, 10)) / 8, "out_bias": jnp.zeros(10),
    }  # fmt: skip
    return weights, OPTIMIZER.init(weights)


@jax.jit
def step(weights: Any, optimizer: Any, batch: Any) -> Any:
    """Updates the weights; JAX sums the gradients over processes, as the batch is sharded and the
    weights are replicated."""

    def loss(weights: Any) -> Any:
        each = optax.softmax_cross_entropy_with_integer_labels(logits(weights, batch["image"]), batch["label"])
        return (each * batch["valid"]).mean()

    updates, optimizer = OPTIMIZER.update(jax.grad(loss)(weights), optimizer, weights)
    return optax.apply_updates(weights, updates), optimizer


def accuracy(weights: Any, file: str) -> tuple[float, int]:
    test = sf.Loader(
        file, digits.FEATURES, batch_size=50, shuffle=False, tail="pad", restart=True, rank=0, world_size=1, job="digits-test"
    )
    right = total = 0
    for batch in test:
        answer = np.asarray(logits(weights, batch["image"])).argmax(1)
        right += int((batch.valid & (answer == batch["label"])).sum())
        total += int(batch.valid.sum())
    return right / total, total


def main() -> None:
    parser = digits.parser(__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--address", default="127.0.0.1:29400", help="of process 0, for all of them")
    args = parser.parse_args()
    if args.processes > 1:
        jax.distributed.initialize(args.address, args.processes, args.process)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, parted = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    loader = sf.Loader(
        f"{args.data}/train-*.tfrecord", digits.FEATURES, batch_size=digits.GLOBAL_BATCH // jax.process_count(),
        lanes=digits.LANES, tail="pad", shuffle_window=128, job="digits",
    )  # fmt: skip
    state = jax.jit(begin, out_shardings=whole)(jax.random.key(1))
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager(args.checkpoint.absolute(), options=options) as manager:
        steps = manager.latest_step() or 0
        if steps:
            kinds = ocp.args.Composite(state=ocp.args.StandardRestore(state), loader=ocp.args.JsonRestore())
            restored = manager.restore(steps, args=kinds)
            state = restored.state
            loader.load_state_dict(restored.loader)
        seen = digits.Seen(args.seen, jax.process_index())
        for epoch in loader.epochs(args.epochs):
            for batch in epoch:
                seen.add(steps, batch["index"][batch.valid])
                weights, moments = state
                state = step(weights, moments, sf.jax.global_batch(batch, parted, valid="valid"))
                steps += 1
                if steps % digits.SAVE_EVERY == 0:
                    kinds = ocp.args.Composite(
                        state=ocp.args.StandardSave(state), loader=ocp.args.JsonSave(loader.state_dict())
                    )
                    manager.save(steps, args=kinds)
    weights = jax.tree.map(lambda array: np.asarray(array.addressable_data(0)), state[0])
    if jax.process_index() == 0:
        print("accuracy {:.3f} of {} images".format(*accuracy(weights, args.test)), flush=True)


if __name__ == "__main__":
    main()
