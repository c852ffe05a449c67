"""Everything about the data that is not training:

    python -m speedrun_trainer data get --data data/fineweb10B --shards 10       FineWeb 10B, GPT-2 tokens, from the Hub
    python -m speedrun_trainer data make --data data/own --vocabulary bytes FOLDER...      shards from any text
    python -m speedrun_trainer data make-synthetic --data data/synthetic         of known entropy, for the smoke run
    python -m speedrun_trainer data check --data data/synthetic                  are the shards whole?

Training itself is `python -m speedrun_trainer.train`. Exit codes: 0 fine, 2 bad options, 4 the data cannot be used,
130 interrupted.
"""

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from speedrun_trainer import fetch, text
from speedrun_trainer.parsers import DEFAULT_FOLDER, Parser, number, whole
from speedrun_trainer.shards import SHARD_NAME, DataError, TokenStream, ensure_shard, find_dataset, vocabulary_of
from speedrun_trainer.source import DEFAULT_SEED, DESCRIPTION, MarkovSource

EXIT_DATA = 4
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except DataError as error:
        print(f"speedrun_trainer: {error}", file=sys.stderr)
    except OSError as error:
        print(f"speedrun_trainer: cannot write the data: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("speedrun_trainer: interrupted; what is whole is kept, the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_DATA


def parser() -> Parser:
    """The command line; each command is a function below."""
    top = Parser(prog="speedrun_trainer", description=__doc__)
    data = top.add_subparsers(metavar="data", required=True).add_parser("data", help="get, make or check token shards")
    commands = data.add_subparsers(metavar="get|make|make-synthetic|check", required=True)

    get = commands.add_parser(
        "get", help="fetch FineWeb's shards; what is right already is kept", description=fetch.__doc__
    )
    add = get.add_argument
    add("--data", type=Path, required=True, metavar="FOLDER", help="where to; made if it is not there")
    add(
        "--shards",
        type=whole(1),
        default=10,
        metavar="N",
        help="training shards, of 100 million tokens and 200 MB each",
    )
    add("--repository", default=fetch.REPOSITORY, metavar="OWNER/NAME", help="dataset on the Hub")
    add("--verify", action="store_true", help="compare every file's SHA-256 again, also where that was done before")
    get.set_defaults(command=get_shards)

    make = commands.add_parser("make", help="write shards from text files", description=text.__doc__)
    add = make.add_argument
    add("sources", type=Path, nargs="+", metavar="TEXT", help="files, and folders whose files are taken")
    add("--data", type=Path, required=True, metavar="FOLDER", help="where to; made if it is not there")
    add("--name", type=dataset_name, default="text", help="first part of the shards' names")
    add("--vocabulary", default="bytes", metavar="V", help="bytes, or a folder with encoder.json and vocab.bpe")
    add("--shard-tokens", type=whole(1), default=100_000_000, metavar="N", help="tokens of a training shard")
    add("--val-share", type=number(1), default=0.02, metavar="X", help="of the files, for validation")
    make.set_defaults(command=make_shards)

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


def dataset_name(word: str) -> str:
    """An argument type: what a shard's name may begin with."""
    if not SHARD_NAME.fullmatch(f"{word}_val_000000.bin"):
        raise ArgumentTypeError(f"{word!r} is no name: letters, digits, - and _")
    return word


def get_shards(options: Namespace) -> int:
    if options.shards > fetch.MOST_SHARDS and options.repository == fetch.REPOSITORY:
        raise DataError(f"--shards {options.shards}: the dataset has {fetch.MOST_SHARDS}")
    fetch.get(options.data, options.shards, repository=options.repository, verify=options.verify, say=say)
    return 0


def make_shards(options: Namespace) -> int:
    gpt2 = options.vocabulary != "bytes"
    vocabulary = text.gpt2_vocabulary(Path(options.vocabulary)) if gpt2 else text.byte_vocabulary()
    sizes = {"shard_tokens": options.shard_tokens, "val_share": options.val_share}
    text.make(options.data, options.sources, vocabulary, name=options.name, **sizes, say=say)
    return 0


def say(line: str) -> None:
    print(line, flush=True)


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
