"""Train a perceptron on handwritten digits with scikit-learn, as a job that may
be killed at any moment and goes on elsewhere from its last checkpoint, to the
same result.

It keeps the same contract as the WebAssembly module beside it; a step is one
pass over the training images.
"""

import argparse
import gzip
import json
import os
import pickle
import signal
import sys
from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPClassifier

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


def save(step, model):
    """Write a checkpoint that is whole or not there: it appears by rename.

    The pickled model holds its weights, Adam's moments and its random state.
    """
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path = CHECKPOINTS / f"step-{step:08d}"
    temp = CHECKPOINTS / f".{path.name}.tmp"
    with open(temp, "wb") as f:
        pickle.dump({"step": step, "model": model}, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temp, path)
    for old in sorted(CHECKPOINTS.glob("step-*"))[:-2]:
        old.unlink()
    record("checkpoint", step)


def restore():
    """Return the steps done and the model of the newest checkpoint there is."""
    for path in sorted(CHECKPOINTS.glob("step-*"), reverse=True):
        try:
            with open(path, "rb") as f:
                state = pickle.load(f)
            return state["step"], state["model"]
        except Exception as err:  # a damaged file: the one before it serves
            print(f"passed over: {path.name}: {err}", flush=True)
    return 0, MLPClassifier(hidden_layer_sizes=(64,), batch_size=64, random_state=7)


def record(event, step):
    print(json.dumps({"event": event, "attempt": ATTEMPT, "step": step}), flush=True)


def load(path):
    with gzip.open(path, "rt") as f:
        rows = np.loadtxt(f, delimiter=",")
    rows = rows[np.random.RandomState(1).permutation(len(rows))]
    x, y = rows[:, :64] / 16, rows[:, 64].astype(int)
    held = len(rows) // 4
    return x[held:], y[held:], x[:held], y[:held]


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--data", default="digits.csv.gz")
    args.add_argument("--outputs", default=os.environ.get("OFFPEAK_OUTPUT_DIR", "outputs"), type=Path)
    args.add_argument("--steps", default=60, type=int)
    args.add_argument("--checkpoint-every", default=5, type=int)
    args = args.parse_args()

    signal.signal(signal.SIGTERM, on_sigterm)
    x, y, test_x, test_y = load(args.data)
    done, model = restore()
    record("start", done)
    for step in range(done + 1, args.steps + 1):
        model.partial_fit(x, y, classes=range(10))
        print(f"step {step} of {args.steps} loss {model.loss_:.4f}", flush=True)
        leave = step < args.steps and asked_to_leave()
        if leave or step % args.checkpoint_every == 0:
            save(step, model)
        if leave:
            record("moved", step)
            sys.exit(MOVED)

    accuracy = model.score(test_x, test_y)
    args.outputs.mkdir(parents=True, exist_ok=True)
    # As the module writes them: a row for each unit, its weights and its bias.
    rows = [np.vstack([w, b]).T.ravel().tolist() for w, b in zip(model.coefs_, model.intercepts_)]
    weights = {"hidden": rows[0], "output": rows[1]}
    (args.outputs / "model.json").write_text(json.dumps(weights))
    metrics = {"test_accuracy": accuracy, "steps": args.steps, "train_images": len(x), "test_images": len(test_x)}
    (args.outputs / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    record("done", args.steps)
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
