"""Train a small convolutional network on handwritten digits, as a job that may
be killed at any moment and goes on elsewhere from its last checkpoint.

What a script of yours needs from this one: restore() at the start, save() now
and then, and asked_to_leave() in the loop.
"""

import argparse
import gzip
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

CHECKPOINTS = Path(os.environ.get("OFFPEAK_CHECKPOINT_DIR", "checkpoints"))
NOTICE = os.environ.get("OFFPEAK_NOTICE", "")
ATTEMPT = int(os.environ.get("OFFPEAK_ATTEMPT", "1"))
MOVED = 75  # the exit code of a job that left because it was asked to

leaving = False


def on_sigterm(signum, frame):
    global leaving
    leaving = True


def asked_to_leave():
    """The grid wants the machine back: it sent SIGTERM and wrote the notice."""
    return leaving or (NOTICE != "" and os.path.exists(NOTICE))


def save(epoch, model, optimizer):
    """Write a checkpoint that is whole or not there: it appears by rename."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINTS / f"epoch-{epoch:04d}.pt"
    temp = CHECKPOINTS / f".{path.name}.tmp"
    state = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda_rng"] = torch.cuda.get_rng_state_all()
    with open(temp, "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temp, path)
    for old in sorted(CHECKPOINTS.glob("epoch-*.pt"))[:-2]:
        old.unlink()
    record("checkpoint", epoch)


def restore(model, optimizer, device):
    """Take the newest checkpoint there is; return how many epochs are done."""
    for path in sorted(CHECKPOINTS.glob("epoch-*.pt"), reverse=True):
        try:
            state = torch.load(path, map_location=device)
        except Exception as err:  # a damaged file: the one before it serves
            print(f"passed over: {path.name}: {err}", flush=True)
            continue
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"].cpu())
        if torch.cuda.is_available() and "cuda_rng" in state:
            torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda_rng"]])
        return state["epoch"]
    return 0


def record(event, epoch):
    print(json.dumps({"event": event, "attempt": ATTEMPT, "step": epoch}), flush=True)


def load(path):
    with gzip.open(path, "rt") as f:
        rows = np.loadtxt(f, delimiter=",", dtype=np.float32)
    rows = rows[np.random.RandomState(1).permutation(len(rows))]
    x = torch.from_numpy(rows[:, :64] / 16).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(rows[:, 64]).long()
    held = len(rows) // 4
    return x[held:], y[held:], x[:held], y[:held]


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--data", default="digits.csv.gz")
    args.add_argument("--outputs", default=os.environ.get("OFFPEAK_OUTPUT_DIR", "outputs"), type=Path)
    args.add_argument("--epochs", default=30, type=int)
    args = args.parse_args()

    signal.signal(signal.SIGTERM, on_sigterm)
    torch.manual_seed(7)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y, test_x, test_y = (t.to(device) for t in load(args.data))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 4 * 4, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    done = restore(model, optimizer, device)
    record("start", done)
    for epoch in range(done + 1, args.epochs + 1):
        model.train()
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
        print(f"step {epoch} of {args.epochs} loss {loss.item():.4f}", flush=True)
        save(epoch, model, optimizer)
        if epoch < args.epochs and asked_to_leave():
            record("moved", epoch)
            sys.exit(MOVED)

    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    args.outputs.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.outputs / "model.pt")
    metrics = {"test_accuracy": accuracy, "steps": args.epochs, "train_images": len(x), "test_images": len(test_x)}
    (args.outputs / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    record("done", args.epochs)
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
