"""Read handwritten digits with the weights that ../digits/train.py trained, as one
member of an array of jobs: member 3 of 10 takes the fourth tenth of the test images
and writes what it read to part.json.

With --join it puts the parts together that the members left, and says how many
digits were read right.
"""

import argparse
import gzip
import json
import os
from pathlib import Path

import numpy as np


def test_images(path):
    """The images that train.py kept back, in its order."""
    with gzip.open(path, "rt") as f:
        rows = np.loadtxt(f, delimiter=",")
    rows = rows[np.random.RandomState(1).permutation(len(rows))]
    rows = rows[: len(rows) // 4]
    return rows[:, :64] / 16, rows[:, 64].astype(int)


def layer(weights, x):
    rows = np.array(weights).reshape(-1, x.shape[1] + 1)
    return x @ rows[:, :-1].T + rows[:, -1]


def read_digits(model, x):
    hidden = np.maximum(layer(model["hidden"], x), 0)
    return layer(model["output"], hidden).argmax(axis=1)


def part(args):
    index, size = int(os.environ["OFFPEAK_ARRAY_INDEX"]), int(os.environ["OFFPEAK_ARRAY_SIZE"])
    x, y = test_images(args.data)
    begin, end = len(x) * index // size, len(x) * (index + 1) // size
    read = read_digits(json.loads(Path(args.model).read_text()), x[begin:end])
    found = {"begin": begin, "read": read.tolist(), "right": int((read == y[begin:end]).sum())}
    Path("part.json").write_text(json.dumps(found) + "\n")
    print(f"images {begin} to {end - 1}: {found['right']} of {end - begin} right", flush=True)


def join(folder):
    parts = sorted((json.loads(p.read_text()) for p in Path(folder).glob("*/part.json")), key=lambda p: p["begin"])
    read = [digit for p in parts for digit in p["read"]]
    for before, after in zip(parts, parts[1:]):
        if before["begin"] + len(before["read"]) != after["begin"]:
            raise SystemExit(f"a part is missing before image {after['begin']}")
    right = sum(p["right"] for p in parts)
    print(f"{len(parts)} parts, test accuracy {right / len(read):.4f}")


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--data", default="digits.csv.gz")
    args.add_argument("--model", default="model.json")
    args.add_argument("--join", metavar="FOLDER", help="the folder that holds a folder for each member")
    args = args.parse_args()
    join(args.join) if args.join else part(args)


if __name__ == "__main__":
    main()
