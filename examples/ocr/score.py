#!/usr/bin/python3
"""Joins the texts of pages into one and scores it against the known text.

    score.py TRUTH PAGE...

Writes book.txt and score.json to the current folder. Exits with 1 where less than
--least of the characters were read right."""

import argparse
import json
import sys


def words(text):
    return text.replace("\f", " ").split()


def distance(a, b):
    """Least number of insertions, deletions and replacements that make b of a."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth")
    parser.add_argument("pages", nargs="+")
    parser.add_argument("--least", type=float, default=0.95)
    args = parser.parse_args()

    with open(args.truth, encoding="utf-8") as f:
        truth = words(f.read())
    pages = []
    for path in args.pages:
        with open(path, encoding="utf-8") as f:
            pages.append(f.read().replace("\f", "").strip())
    book = "\n\n".join(pages) + "\n"
    with open("book.txt", "w", encoding="utf-8") as f:
        f.write(book)

    read = words(book)
    wanted, got = " ".join(truth), " ".join(read)
    score = {
        "pages": len(pages),
        "characters": round(1 - distance(wanted, got) / len(wanted), 4),
        "words": round(1 - distance(truth, read) / len(truth), 4),
    }
    with open("score.json", "w", encoding="utf-8") as f:
        json.dump(score, f)
        f.write("\n")
    print(json.dumps(score))
    return 0 if score["characters"] >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())
