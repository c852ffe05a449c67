"""Everything about the data that is not training:

    python -m speedrun_trainer data make-synthetic --data data/synthetic     shards of known entropy, for the smoke run
    python -m speedrun_trainer data check --data data/synthetic              are the shards whole?

Training itself is `python -m speedrun_trainer.train`. Exit codes: 0 fine, 2 bad options, 4 the data cannot be used.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from speedrun_trainer.parsers import DEFAULT_FOLDER, Parser, whole
from speedrun_trainer.shards import DataError, TokenStream, ensure_shard, find_dataset, vocabulary_of
from speedrun_trainer.source import DEFAULT_SEED, DESCRIPTION, MarkovSource

EXIT_DATA = 4


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except DataError as error:
        print(f"speedrun_trainer: {error}", file=sys.stderr)
    except OSError as error:
        print(f"speedrun_trainer: cannot write the data: {error}", file=sys.stderr)
    return EXIT_DATA


def parser() -> Parser:
    """The command line; each command is a function below."""
    top = Parser(prog="speedrun_trainer", description=__doc__)
    data = top.add_subparsers(metavar="data", required=True).add_parser("data", help="make or check token shards")
    commands = data.add_subparsers(metavar="make-synthetic|check", required=True)

    make = commands.add_parser("make-synthetic", help="write shards of known entropy; what is right already is kept")
    add = make.add_argument
    add("--data", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER", help="where to; made if it is not there")
    add("--seed", type=whole(0), default=DEFAULT_SEED, metavar="N", help="of the source: its dice and its streams")
    add("--shards", type=whole(1), default=2, metavar="N", help="training shards")
    add("--shard-tokens", type=whole(1), default=600_000, metavar="N", help="tokens of each training shard")
    add("--val-tokens", type=whole(1), default=100_000, metavar="N", help="tokens of the validation shard")
    make.set_defaults(command=make_synthetic)

    check = commands.add_parser("check", help="verify name, header, size and token ids of every shard in a folder")
    check.add_argument("--data", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER", help="folder of the shards")
    check.set_defaults(command=check_shards)
    return top


def make_synthetic(options: Namespace) -> int:
    """The same options give the same bytes, so whatever is there can be compared with what should be."""
    source = MarkovSource(options.seed)
    options.data.mkdir(parents=True, exist_ok=True)
    names = [("markov_val_000000.bin", options.val_tokens)]
    names += [(f"markov_train_{number:06d}.bin", options.shard_tokens) for number in range(1, options.shards + 1)]
    for name, count in names:
        path = options.data / name
        print(f"{path}: {count:,} tokens, {ensure_shard(path, source.stream(name, count))}", flush=True)
    source.describe(options.data)
    print(f"{options.data / DESCRIPTION}: {source}")
    return 0


def check_shards(options: Namespace) -> int:
    """Every shard is read to its end, and every fault is told, not only the first."""
    dataset = find_dataset(options.data)
    vocabulary = vocabulary_of(options.data)
    faults = 0
    for path in (dataset.val, *dataset.train):
        try:
            stream = TokenStream([path], vocabulary=vocabulary)
            stream.check()
            print(f"{path}: {len(stream):,} tokens, ok", flush=True)
        except DataError as error:
            print(f"speedrun_trainer: {error}", file=sys.stderr, flush=True)
            faults += 1
    return EXIT_DATA if faults else 0


if __name__ == "__main__":
    sys.exit(main())
