"""Batches: which tokens a step trains on, cut along documents, and brought up ahead of time.

A step is UNITS units of equal size, and each unit is packed with whole documents from their BOS token on: a document
longer than the stage allows is cut, and so is the last one of a unit; what is cut off is dropped, since training on
sequences that start in the middle of a document was found to be worse (modded-nanogpt's record of 2025-07-14, "align
training batches with EoS"). Processes and gradient accumulation share out units, and no document lies in two of them,
so the tokens of a step and what each of them may look at are the same for 1, 2, 4 and 8 processes, however many units
go through the model at once.

The whole run is planned before it starts: shards that are too short, damaged or of another vocabulary are told then,
on every rank. Validation reads the first tokens of its shard in order, none dropped, in units of its own.
"""

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from speedrun_trainer.shards import DataError, TokenStream, check_ids

UNITS = 8  # a step; the most processes that can share one
CHUNK = 2**18  # tokens looked at together: what a core's cache holds

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
T = TypeVar("T")


@dataclass(frozen=True)
class Documents:
    """Where documents begin in a stream, and how many predictions each offers (its tokens that have a next one)."""

    starts: Int64
    lengths: Int64


def find_documents(stream: TokenStream, number: int) -> Documents:
    """Those of shard `number` of the stream, from 0. A document that the shard's end cuts ends there.

    Raises DataError if a token is not of the vocabulary.
    """
    shard, places = stream.shards[number], []
    for begin in range(0, len(shard), CHUNK):
        part = shard[begin : begin + CHUNK]
        check_ids(stream.paths[number], part, stream.vocabulary)
        places.append(np.flatnonzero(part == stream.bos) + begin)
    begins = np.concatenate(places)
    lengths = np.append(begins[1:], len(shard) - 1) - begins  # the shard's last token has no next one
    some = lengths > 0
    return Documents(begins[some] + int(stream.starts[number]), lengths[some])


def join(parts: Sequence[Documents]) -> Documents:
    return Documents(np.concatenate([part.starts for part in parts]), np.concatenate([part.lengths for part in parts]))


@dataclass(frozen=True)
class Portion:
    """So many units of so many tokens each, no document in them longer than `longest`."""

    units: int
    tokens: int
    longest: int


@dataclass(frozen=True)
class Units:
    """Portions of a stream as pieces of documents: unit u has the pieces from firsts[u] up to firsts[u + 1]."""

    firsts: Int64
    starts: Int64  # of each piece, in the stream
    lengths: Int64  # of each piece, in predictions

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def most_pieces(self, first: int = 0, count: int | None = None) -> int:
        """Of any one unit of `count` from `first` on."""
        counts = np.diff(self.firsts)[first:]
        return int(counts[:count].max(initial=1))


def pack(documents: Documents, portions: Sequence[Portion]) -> Units:
    """Fill units with documents, in order. Fewer units than asked for if the documents do not suffice."""
    firsts, lengths, document = [0], [], 0
    for portion in portions:
        allowed = np.minimum(documents.lengths[document:], portion.longest)
        ends = np.concatenate(([0], np.cumsum(allowed)))
        begin = 0
        for _ in range(portion.units):
            end = int(np.searchsorted(ends, ends[begin] + portion.tokens))  # first document that is not needed any more
            if end == len(ends):
                break
            allowed[end - 1] -= ends[end] - ends[begin] - portion.tokens
            firsts.append(document + end)
            begin = end
        lengths.append(allowed[:begin])
        document += begin
    return Units(np.array(firsts), documents.starts[:document], np.concatenate(lengths))


def plan(stream: TokenStream, portions: Sequence[Portion]) -> Units:
    """The units of a run. Raises DataError if the stream has too few tokens; reads no more shards than are needed."""
    wanted = sum(portion.units for portion in portions)
    tokens = sum(portion.units * portion.tokens for portion in portions)
    stream.require(tokens + 1, f"training {wanted // UNITS} steps")
    enough = int(np.searchsorted(stream.starts, tokens + 1))  # shards, if nothing is dropped
    found: list[Documents] = []
    for number in range(len(stream.shards)):
        found.append(find_documents(stream, number))
        if len(found) >= enough and len(units := pack(join(found), portions)) == wanted:
            return units
    raise DataError(
        f"{stream}: {len(stream):,} tokens are too few to train {wanted // UNITS} steps: they end in step "
        f"{len(units) // UNITS + 1} ({tokens:,} tokens are trained on; ends of long documents are dropped). "
        "Get more shards, or take fewer --steps"
    )


def cut(stream: TokenStream, count: int, tokens: int) -> Units:
    """The first `count` units of a stream in order, nothing dropped: documents end at BOS and at a unit's end.

    Raises DataError if there are fewer tokens, or one is not of the vocabulary.
    """
    stream.require(count * tokens + 1, "validation")
    everything = stream.read(0, count * tokens + 1)
    check_ids(stream.paths[0], everything, stream.vocabulary)
    edges = np.arange(count + 1) * tokens
    starts = np.union1d(np.flatnonzero(everything[:-1] == stream.bos), edges[:-1])
    return Units(np.searchsorted(starts, edges), starts, np.diff(np.append(starts, edges[-1])))


@dataclass(frozen=True)
class Batch:
    """What goes through the model at once: n predictions of several documents, one after the other.

    `boundaries` says where documents begin and end; empty documents at the end fill it up to its size.
    """

    tokens: Int32  # (n,)
    targets: Int32  # (n,) the tokens that follow
    positions: Int32  # (n,) each token's place in its document
    boundaries: Int32  # (documents + 1,)


def assemble(stream: TokenStream, units: Units, first: int, count: int, *, documents: int) -> Batch:
    """Units [first, first + count) as a batch with room for `documents` documents."""
    pieces = slice(int(units.firsts[first]), int(units.firsts[first + count]))
    starts, lengths = units.starts[pieces], units.lengths[pieces]
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    positions = np.arange(total) - np.repeat(ends - lengths, lengths)
    begin = int(starts[0])
    span = stream.read(begin, int(starts[-1] + lengths[-1]) + 1 - begin)
    places = positions + np.repeat(starts - begin, lengths)
    boundaries = np.full(documents + 1, total, dtype=np.int32)
    boundaries[0] = 0
    boundaries[1 : len(ends) + 1] = ends
    return Batch(
        tokens=span[places].astype(np.int32),
        targets=span[places + 1].astype(np.int32),
        positions=positions.astype(np.int32),
        boundaries=boundaries,
    )


@dataclass(frozen=True)
class Share:
    """One process's part of the units, and how many tokens it puts through the model at once."""

    rank: int
    world: int
    most_tokens: int

    def at_once(self, units: int, tokens: int) -> int:
        """How many of its units go through the model together, of `units` (of all ranks) of `tokens` each."""
        mine = units // self.world
        fitting = [part for part in range(2, mine + 1) if mine % part == 0 and part * tokens <= self.most_tokens]
        return max(fitting, default=1)

    def batches(
        self, stream: TokenStream, units: Units, first: int, count: int, *, tokens: int, documents: int
    ) -> Iterator[Batch]:
        """This process's batches of the units [first, first + count); `world` must divide `count`."""
        mine, together = count // self.world, self.at_once(count, tokens)
        begin = first + self.rank * mine
        for unit in range(begin, begin + mine, together):
            yield assemble(stream, units, unit, together, documents=together * documents)


class Ahead(Generic[T]):
    """An iterator whose items are made by a thread, a few ahead of their use. What the thread raises is raised here."""

    def __init__(self, items: Iterable[T], *, depth: int = 4) -> None:
        self._queue: queue.Queue[T | BaseException | None] = queue.Queue(depth)
        self._closed = False
        self._thread = threading.Thread(target=self._make, args=(items,), name="batches ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self._queue.get()
        if item is None:
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """No more items are wanted."""
        self._closed = True
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.01)
            except queue.Empty:
                continue

    def _make(self, items: Iterable[T]) -> None:
        try:
            for item in items:
                if self._closed:
                    return
                self._queue.put(item)
            self._queue.put(None)
        except BaseException as error:
            self._queue.put(error)
