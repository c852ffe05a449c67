"""Batches are cut along documents, and are the same tokens however many processes share them."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speedrun_trainer import data
from speedrun_trainer.data import UNITS, Ahead, Batch, Documents, Portion, Share, cut, find_documents, join, pack, plan
from speedrun_trainer.shards import DataError, Tokens, TokenStream, check_ids, ensure_shard

VOCABULARY = 5000
BOS = VOCABULARY - 1


def documents_of(*lengths: int) -> np.ndarray:
    """Tokens of documents with so many tokens each, BOS included; all other tokens are different."""
    tokens = np.arange(sum(lengths), dtype=np.uint16)
    tokens[np.cumsum((0, *lengths[:-1]))] = BOS
    return tokens


def stream_of(folder: Path, *shards: np.ndarray) -> TokenStream:
    paths = [folder / f"x_train_{number:06d}.bin" for number in range(1, len(shards) + 1)]
    for path, tokens in zip(paths, shards, strict=True):
        ensure_shard(path, tokens)
    return TokenStream(paths, vocabulary=VOCABULARY)


@pytest.fixture
def stream(tmp_path: Path) -> TokenStream:
    """Three shards of documents of 2 to 60 tokens; the second begins with a document's rest, the last one is short."""
    random = np.random.default_rng(0)
    shards = [documents_of(*random.integers(2, 60, size=count)) for count in (60, 60, 9)]
    shards[1] = shards[1][3:]
    return stream_of(tmp_path, *shards)


def test_documents_begin_at_bos_and_end_before_the_next_or_with_the_shard(tmp_path: Path) -> None:
    second = documents_of(3, 2, 1)  # the last one has no token to predict
    stream = stream_of(tmp_path, documents_of(4, 2, 5), second[1:])
    found = join([find_documents(stream, number) for number in range(2)])
    assert found.starts.tolist() == [0, 4, 6, 13]
    assert found.lengths.tolist() == [4, 2, 4, 2]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=80),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 50), st.integers(1, 30)), min_size=1, max_size=3),
)
def test_units_are_full_and_made_of_documents_from_their_start(
    lengths: list[int], shapes: list[tuple[int, int, int]]
) -> None:
    """Against the plainest way to do it: one document after the other."""
    documents = Documents(np.cumsum([0, *lengths[:-1]]), np.array(lengths))
    portions = [Portion(*shape) for shape in shapes]
    expected: list[list[tuple[int, int]]] = []
    rest = list(zip(documents.starts.tolist(), lengths, strict=True))
    for portion in portions:
        for _ in range(portion.units):
            unit: list[tuple[int, int]] = []
            while rest and (room := portion.tokens - sum(length for _, length in unit)):
                start, length = rest.pop(0)
                unit.append((start, min(length, portion.longest, room)))
            if sum(length for _, length in unit) < portion.tokens:
                break
            expected.append(unit)
        else:
            continue
        break
    units = pack(documents, portions)
    got = [
        list(zip(units.starts[a:b].tolist(), units.lengths[a:b].tolist(), strict=True))
        for a, b in zip(units.firsts, units.firsts[1:], strict=False)
    ]
    assert got[: len(expected)] == expected
    if len(expected) == sum(portion.units for portion in portions):
        assert got == expected


def batches(stream: TokenStream, portion: Portion, world: int, most_tokens: int) -> list[list[Batch]]:
    """The batches of each rank, for all steps of the portion."""
    units = plan(stream, [portion])
    rooms = units.most_pieces()
    return [
        [
            batch
            for step in range(portion.units // UNITS)
            for batch in Share(rank, world, most_tokens).batches(
                stream, units, step * UNITS, UNITS, tokens=portion.tokens, documents=rooms
            )
        ]
        for rank in range(world)
    ]


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("most_tokens", [1, 100, 10_000])
def test_ranks_share_the_tokens_of_a_single_process(stream: TokenStream, world: int, most_tokens: int) -> None:
    """Also how many of them go through the model at once changes nothing."""
    portion = Portion(units=3 * UNITS, tokens=50, longest=40)
    [alone] = batches(stream, portion, 1, 50)
    shared = batches(stream, portion, world, most_tokens)
    each = 3 * UNITS // world // len(shared[0])  # units that go together
    assert {len(batch.tokens) for of_rank in shared for batch in of_rank} == {50 * each}
    for part in ("tokens", "targets", "positions"):
        steps = [np.concatenate([getattr(batch, part) for batch in of_rank]).reshape(3, -1) for of_rank in shared]
        together = np.concatenate(steps, axis=1)
        assert np.array_equal(together.ravel(), np.concatenate([getattr(batch, part) for batch in alone]))


def test_a_batch_tells_its_documents(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, documents_of(4, 3, 9, 5, 30))
    units = pack(find_documents(stream, 0), [Portion(units=2, tokens=8, longest=6)])
    share = Share(0, 1, 16)
    [batch] = share.batches(stream, units, 0, 2, tokens=8, documents=4)
    assert batch.tokens.tolist() == [BOS, 1, 2, 3, BOS, 5, 6, BOS, BOS, 17, 18, 19, 20, BOS, 22, 23]
    assert batch.targets.tolist() == [1, 2, 3, BOS, 5, 6, BOS, 8, 17, 18, 19, 20, BOS, 22, 23, 24]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 1, 2]
    assert batch.boundaries.tolist() == [0, 4, 7, 8, 13, 16, 16, 16, 16]


def test_validation_reads_everything_in_order(stream: TokenStream) -> None:
    units = cut(stream, 16, 100)
    for world in (1, 2, 4, 8):
        got = [
            batch
            for rank in range(world)
            for batch in Share(rank, world, 200).batches(
                stream, units, 0, 16, tokens=100, documents=units.most_pieces()
            )
        ]
        assert np.array_equal(np.concatenate([batch.tokens for batch in got]), stream.read(0, 1600))
        assert np.array_equal(np.concatenate([batch.targets for batch in got]), stream.read(1, 1600))
        for batch in got:
            starts = batch.boundaries[:-1][np.diff(batch.boundaries) > 0]
            assert set(np.flatnonzero(batch.tokens == BOS)) <= set(starts.tolist())
            assert set(starts.tolist()) - set(np.flatnonzero(batch.tokens == BOS)) <= {0, 100}


def test_a_run_that_the_shards_cannot_feed_is_refused_before_it_starts(stream: TokenStream) -> None:
    with pytest.raises(DataError, match=r"training 20 steps needs 8,001 tokens, but they hold"):
        plan(stream, [Portion(units=20 * UNITS, tokens=50, longest=60)])
    total = len(stream) // (50 * UNITS)
    with pytest.raises(DataError, match=rf"are too few to train {total} steps: they end in step \d .* fewer --steps"):
        plan(stream, [Portion(units=total * UNITS, tokens=50, longest=10)])


def test_each_shard_is_read_once(stream: TokenStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning is on the training clock; that documents' ends are dropped shows only when they are packed."""
    read: list[str] = []

    def noted(path: Path, tokens: Tokens, vocabulary: int) -> None:
        read.append(path.name)
        check_ids(path, tokens, vocabulary)

    monkeypatch.setattr(data, "check_ids", noted)
    longest_run = max(n for n in range(1, 12) if fits(stream, n))
    read.clear()
    plan(stream, [Portion(longest_run * UNITS, 50, 60)])
    assert read == [path.name for path in stream.paths]


def test_a_short_last_shard_is_joined_on(stream: TokenStream) -> None:
    """BR-090: no more shards are looked at than the run needs, and the short one is used when it is needed."""
    assert plan(stream, [Portion(UNITS, 50, 60)]).starts[-1] < stream.starts[1]
    longest_run = max(n for n in range(1, 12) if fits(stream, n))
    assert plan(stream, [Portion(longest_run * UNITS, 50, 60)]).starts[-1] >= stream.starts[2]


def fits(stream: TokenStream, steps: int) -> bool:
    try:
        plan(stream, [Portion(steps * UNITS, 50, 60)])
    except DataError:
        return False
    return True


@pytest.mark.parametrize(
    ("world", "most_tokens", "expected"),
    [(1, 1, 1), (1, 100, 1), (1, 200, 2), (1, 799, 4), (1, 800, 8), (2, 800, 4), (8, 10_000, 1), (4, 199, 1)],
)
def test_as_many_units_go_together_as_fit(world: int, most_tokens: int, expected: int) -> None:
    assert Share(0, world, most_tokens).at_once(UNITS, 100) == expected


@settings(deadline=None)
@given(st.lists(st.integers(), max_size=20), st.integers(1, 5))
def test_items_made_ahead_come_in_order(items: list[int], depth: int) -> None:
    assert list(Ahead(items, depth=depth)) == items


def test_what_fails_ahead_fails_at_its_turn() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise DataError("broken")

    ahead = Ahead(failing())
    assert next(ahead) == 1
    with pytest.raises(DataError, match="broken"):
        next(ahead)


def test_what_is_made_ahead_can_be_given_up() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    ahead = Ahead(endless(), depth=2)
    assert next(ahead) == 1
    ahead.close()
    assert not ahead._thread.is_alive()


def test_more_shards_than_are_needed_change_nothing() -> None:
    """BR-091: more shards on disk do not change the tokens of the first steps."""
    with TemporaryDirectory() as few, TemporaryDirectory() as many:
        shards = [documents_of(*[37] * 50) for _ in range(4)]
        small, large = stream_of(Path(few), *shards[:2]), stream_of(Path(many), *shards)
        portion = Portion(units=4 * UNITS, tokens=50, longest=60)
        one, other = plan(small, [portion]), plan(large, [portion])
        assert np.array_equal(one.starts, other.starts) and np.array_equal(one.lengths, other.lengths)
