"""A custom training loop with Accelerate, and its `save_state`.

    python ../digits/pack.py --train data --test test.tfrecord
    torchrun --nproc-per-node=2 accelerate_loop.py --data data --test test.tfrecord --checkpoint checkpoint

Start it again with any number of processes that divides the global batch: it resumes inside the
epoch.
"""

from __future__ import annotations

import digits
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy

import shardfeed as sf


def main() -> None:
    args = digits.parser(__doc__).parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    torch.set_num_threads(1)
    loader = sf.Loader(
        f"{args.data}/train-*.tfrecord", digits.FEATURES, batch_size=digits.GLOBAL_BATCH // accelerator.num_processes,
        lanes=digits.LANES, tail="pad", shuffle_window=128, output="torch", job="digits",
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    # The loader already has this rank's batches, so it must not be prepared.
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-3))
    accelerator.register_for_checkpointing(loader)
    steps = max((int(path.name.removeprefix("step_")) for path in args.checkpoint.glob("step_*")), default=0)
    if steps:
        accelerator.load_state(str(args.checkpoint / f"step_{steps}"))
    seen = digits.Seen(args.seen, accelerator.process_index)
    for epoch in loader.epochs(args.epochs):
        for batch in epoch:
            batch = batch.to(accelerator.device)
            seen.add(steps, batch["index"][batch.valid])
            loss = cross_entropy(model(batch["image"]), batch["label"], reduction="none")
            accelerator.backward((loss * batch.valid).mean())
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % digits.SAVE_EVERY == 0:
                accelerator.save_state(str(args.checkpoint / f"step_{steps}"))

    right = total = torch.zeros(1, dtype=torch.int64)
    test = sf.Loader(
        args.test, digits.FEATURES, batch_size=50, shuffle=False, tail="pad", restart=True, output="torch", job="digits-test"
    )
    with torch.no_grad():
        for batch in test:
            right = right + (batch.valid & (model(batch["image"]).argmax(1) == batch["label"])).sum()
            total = total + batch.valid.sum()
    right, total = accelerator.reduce(right), accelerator.reduce(total)
    accelerator.print(f"accuracy {right.item() / total.item():.3f} of {total.item()} images")
    accelerator.end_training()


if __name__ == "__main__":
    main()
