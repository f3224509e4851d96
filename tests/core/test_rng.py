"""Random bits: known answers, one number by every road, a generator that is three integers."""

import pickle
import threading

import numpy as np
import pytest
from scipy import stats

from probtorch.core import rng as rng_module
from probtorch.core.philox import (
    bits_to_uniform,
    consecutive_bits,
    philox_bits,
    philox_block,
    philox_pairs,
)
from probtorch.core.rng import Generator, default_generator, manual_seed
from probtorch.errors import ArgumentError

LARGEST = 2**64 - 1

# Random123 1.14, tests/kat_vectors, rows "philox4x32 10": counter words, key words, expected words.
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_block_gives_the_published_known_answers(counter, key, expected):
    assert philox_block(counter, key) == expected


@pytest.mark.parametrize("count", [1, 40, 300], ids=["one", "long integers", "arrays"])
@pytest.mark.parametrize(("words", "key", "expected"), KNOWN_ANSWERS)
def test_pairs_are_the_four_words_of_the_known_answers(words, key, expected, count):
    seed, counter, stream = (w[0] | w[1] << 32 for w in (key, words[:2], words[2:]))
    streams = np.full(count, stream, np.uint64)
    first, second = philox_pairs(seed, streams, np.full(count, counter, np.uint64))
    assert set(first.tolist()) == {expected[0] | expected[1] << 32}
    assert set(second.tolist()) == {expected[2] | expected[3] << 32}


@pytest.mark.parametrize("count", [0, 1, 2, 15, 256, 257, 8193])
def test_pairs_of_streams_are_those_of_their_blocks(count):
    rng = np.random.default_rng(count)
    seed = 2**64 - 3
    streams, counters = rng.integers(0, 2**64, (2, count), dtype=np.uint64, endpoint=False)
    found = philox_pairs(seed, streams, counters)
    for pair, stream, counter in zip(zip(*found), streams.tolist(), counters.tolist()):
        halves = [(x & 0xFFFFFFFF, x >> 32) for x in (counter, stream, seed)]
        a, b, c, d = philox_block(halves[0] + halves[1], halves[2])
        assert pair == (a | b << 32, c | d << 32)
    assert [x.dtype for x in found] == [np.uint64] * 2


@pytest.mark.parametrize(("words", "key", "expected"), KNOWN_ANSWERS)
def test_bits_are_the_first_two_words_of_the_known_answers(words, key, expected):
    seed, counter, stream = (
        key[0] | key[1] << 32,
        words[0] | words[1] << 32,
        words[2] | words[3] << 32,
    )
    bits = expected[0] | expected[1] << 32
    assert philox_bits(seed, stream, counter) == bits
    assert philox_bits(seed, stream, np.array([counter], dtype=np.uint64)).tolist() == [bits]


@pytest.mark.parametrize("count", [0, 1, 2, 15, 256, 257, 8191, 8193, 20000])
def test_arrays_and_plain_integers_agree(count):
    seed, stream, first = 2**63 + 5, 3**30, 2**40 - 7
    bits = consecutive_bits(seed, stream, first, count)
    assert bits.dtype == np.uint64
    assert bits.shape == (count,)
    assert np.array_equal(bits, philox_bits(seed, stream, np.arange(first, first + count)))
    some = range(0, count, max(1, count // 50))
    assert [philox_bits(seed, stream, first + i) for i in some] == [int(bits[i]) for i in some]


@pytest.mark.parametrize("count", [4, 400])
def test_counters_wrap_at_the_end(count):
    bits = consecutive_bits(1, 2, LARGEST - 1, count)
    assert bits[:4].tolist() == [philox_bits(1, 2, c) for c in (LARGEST - 1, LARGEST, 0, 1)]


def test_shape_is_kept_and_signed_counters_are_read_as_unsigned():
    counters = np.arange(-6, 6).reshape(3, 2, 2)[:, ::-1]
    bits = philox_bits(9, 0, counters)
    assert bits.shape == (3, 2, 2)
    assert np.array_equal(bits, philox_bits(9, 0, counters.astype(np.uint64)))


@pytest.mark.parametrize("bits", [0, 1, 2**11, 2**12, 2**63, LARGEST - 2**12, LARGEST])
def test_uniform_is_strictly_inside_the_unit_interval_and_a_cell_midpoint(bits):
    u = bits_to_uniform(bits)
    assert 0.0 < u < 1.0
    assert u == ((bits >> 12) + 0.5) * 2.0**-52  # exact: 52 bits and a half
    assert bits_to_uniform(np.array([bits], dtype=np.uint64))[0] == u
    assert bits_to_uniform(np.array([bits], dtype=np.uint64).view(np.int64))[0] == u


def test_uniform_reaches_both_ends():
    assert bits_to_uniform(0) == 2.0**-53
    assert bits_to_uniform(LARGEST) == 1.0 - 2.0**-53


def test_uniforms_are_uniform_along_counters_streams_and_seeds():
    # Fixed seeds; each of the three fails a correct generator with probability 1e-4.
    n = 20000
    along = {
        "counters": consecutive_bits(11, 0, 0, n),
        "streams": np.array([philox_bits(11, s, 0) for s in range(n)], dtype=np.uint64),
        "seeds": np.array([philox_bits(s, 0, 0) for s in range(n)], dtype=np.uint64),
    }
    for name, bits in along.items():
        assert stats.kstest(bits_to_uniform(bits), "uniform").pvalue > 1e-4, name


def test_advance_reserves_counters_in_order():
    rng = Generator(3)
    assert [rng.advance(2), rng.advance(0), rng.advance(5), rng.counter] == [0, 2, 2, 7]


def test_advance_refuses_to_go_back():
    with pytest.raises(ArgumentError, match=r"(?s)a count n >= 0.*n = -1.*get_state"):
        Generator(3).advance(-1)


def test_threads_never_receive_the_same_counter():
    rng, taken = Generator(0), []

    def take():
        taken.extend([rng.advance(1) for _ in range(2000)])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(8000))


def test_state_resumes_exactly_and_survives_pickling():
    rng = Generator(5, stream=2)
    rng.advance(10)
    state, twin = rng.get_state(), pickle.loads(pickle.dumps(rng))
    expected = rng.advance(3)
    assert state == (5, 2, 10)
    assert twin.advance(3) == expected
    rng.set_state(tuple(state))
    assert rng.advance(3) == expected


def test_set_state_refuses_anything_but_three_integers():
    with pytest.raises(ArgumentError, match=r"(?s)three integers.*5.*pass what get_state"):
        Generator(0).set_state(5)
    rng = Generator(1, 2, 3)
    with pytest.raises(ArgumentError, match="integer counter"):
        rng.set_state((7, 8, "9"))
    assert rng.get_state() == (1, 2, 3)


@pytest.mark.parametrize("seed", [0, -1, 2**64 + 3, np.int32(-7), np.uint64(LARGEST)])
def test_any_integer_is_a_seed_modulo_two_to_the_64(seed):
    assert Generator(seed).initial_seed() == int(seed) % 2**64


@pytest.mark.parametrize("seed", [1.0, "1", None], ids=repr)
def test_a_seed_that_is_no_integer_is_refused(seed):
    with pytest.raises(ArgumentError, match=r"(?s)an integer seed.*of type.*pass an int"):
        Generator(seed)


def test_manual_seed_starts_the_same_stream_over():
    rng = Generator(1, stream=4, counter=9)
    assert rng.manual_seed(8) is rng
    assert rng.get_state() == (8, 4, 0)


def test_seed_draws_a_new_seed_each_time():
    rng = Generator(1, counter=5)
    first, second = rng.seed(), rng.seed()
    assert first != second
    assert rng.get_state() == (second, 0, 0)


def test_spawned_streams_are_distinct_reproducible_and_do_not_repeat():
    rng = Generator(6)
    family = rng.spawn(3) + rng.spawn(2)
    family += family[0].spawn(2) + [rng]
    assert len({child.stream for child in family}) == 8
    assert {child.initial_seed() for child in family} == {6}
    again = Generator(6)
    assert [c.stream for c in again.spawn(5)] == [c.stream for c in family[:5]]


def test_default_generator_follows_manual_seed():
    state = default_generator.get_state()
    try:
        assert manual_seed(123) is rng_module.default_generator
        assert default_generator.get_state() == (123, 0, 0)
    finally:
        default_generator.set_state(state)


def test_generators_without_a_seed_start_alike():
    first, second = Generator(), Generator(device="cpu")
    assert first.get_state() == second.get_state()
    assert first.initial_seed() == 67280421310721  # as in PyTorch
    assert first.manual_seed(3).get_state() == Generator(3).get_state()
    assert first.seed() != 3
