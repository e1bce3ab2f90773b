"""The streams of interleaved ranks are those of ranks that run alone, however they draw and with which functions."""

import itertools
import random
from random import gauss as early_gauss
from random import random as early_random

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import rand as early_rand
from numpy.random import standard_normal as early_normal

from ddpsim.simulator.runtime.isolation import numpy_random, python_random, torch_generators
from ddpsim.simulator.runtime.isolation.native_memory import GeneratorByPublicFunctions, NativeState
from ddpsim.simulator.runtime.isolation.numpy_random import NumpyByCopy, NumpyByPublicFunctions
from ddpsim.simulator.runtime.isolation.python_random import RandomByCopy
from ddpsim.simulator.runtime.isolation.torch_generators import CpuByCopy, cpu_generator

DRAWS = {
    "random": lambda: early_random(),
    "random-gauss": lambda: early_gauss(0, 1),
    "random-bits": lambda: random.getrandbits(40),
    "random-block": lambda: [random.random() for _ in range(312)][-1],  # as many words as the generator has
    "random-shuffle": lambda: random.sample(range(100), 100),
    "random-seed": lambda: random.seed(7),
    "random-reseed": lambda: random.setstate(random.Random(8).getstate()),
    "numpy": lambda: early_rand(),
    "numpy-normal": lambda: early_normal(),
    "numpy-integer": lambda: int(numpy.random.randint(1000)),
    "numpy-block": lambda: numpy.random.rand(312).tolist(),
    "numpy-seed": lambda: numpy.random.seed(7),
    "torch": lambda: torch.rand(1).item(),
    "torch-normal": lambda: torch.randn(1).item(),
    "torch-normals": lambda: torch.randn(20).tolist(),
    "torch-block": lambda: torch.rand(624).tolist(),
    "torch-permutation": lambda: torch.randperm(10).tolist(),
    "torch-seed": lambda: torch.default_generator.manual_seed(7).initial_seed(),
}
PUBLIC_WAY = {
    python_random: ("is_layout_known", lambda *args: False),
    numpy_random: ("checked_gauss_address", lambda *args: None),
    torch_generators: ("find_engine_offset", lambda *args: None),
}


@pytest.fixture(autouse=True)
def _found_anew():
    """Where generators keep their state, which is found once a process, and here for each test."""
    found = (python_random.is_layout_known, numpy_random.checked_gauss_address, torch_generators.find_engine_offset)
    for each in found:
        each.cache_clear()
    yield
    for each in found:
        each.cache_clear()


@pytest.fixture(params=["by-copy", "by-public-functions"])
def way(request, monkeypatch):
    if request.param == "by-public-functions":
        for module, (name, replacement) in PUBLIC_WAY.items():
            monkeypatch.setattr(module, name, replacement)
    return request.param


def drawing(names):
    def program(rank):
        drawn = []
        for name in names[rank]:
            drawn.append(DRAWS[name]())
            yield
        return drawn

    return program


@pytest.mark.parametrize("name", DRAWS)
def test_interleaved_is_as_alone(name, way, interleave):
    program = drawing([[name] * 5] * 3)
    together = interleave(program, 3)
    assert together == [interleave(program, 3, ranks=[rank])[0] for rank in range(3)]
    assert interleave(program, 3) == together


@settings(max_examples=60)
@given(names=st.lists(st.lists(st.sampled_from(sorted(DRAWS)), max_size=12), min_size=1, max_size=4))
def test_any_mixture_interleaved_is_as_alone(interleave, names):
    together = interleave(drawing(names), len(names))
    assert together == [interleave(drawing(names), len(names), ranks=[rank])[0] for rank in range(len(names))]


def test_streams_are_those_of_seeded_generators(way, interleave):
    def program(rank):
        drawn = []
        for _ in range(3):
            drawn += [random.random(), numpy.random.rand(), numpy.random.standard_normal(), torch.rand(1).item()]
            yield
        return drawn

    for drawn in interleave(program, 3):
        python, array = random.Random(0), numpy.random.RandomState(0)
        tensor = torch.Generator().manual_seed(torch_generators.DEFAULT_SEED)
        expected = [
            [python.random(), array.rand(), array.standard_normal(), torch.rand(1, generator=tensor).item()]
            for _ in range(3)
        ]
        assert drawn == list(itertools.chain(*expected))


def test_ranks_do_not_depend_on_the_host(way, interleave):
    program = drawing([sorted(DRAWS)] * 2)
    first = interleave(program, 2)
    for draw in DRAWS.values():
        draw()
    early_gauss(0, 1), early_normal(), torch.randn(1)
    assert interleave(program, 2) == first


def test_the_host_does_not_see_ranks(way, interleave):
    def host_draws():
        return [draw() for name, draw in DRAWS.items() if "seed" not in name]

    def seed():
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
        # Leave half of each pair of normal variates for later.
        return [early_gauss(0, 1), early_normal(), torch.randn(1).item()]

    seed()
    expected = host_draws()
    seed()
    interleave(drawing([sorted(DRAWS)] * 2), 2)
    assert host_draws() == expected


SEEDED = {
    "random": (random.seed, random.random),
    "numpy": (numpy.random.seed, numpy.random.rand),
    "torch": (torch.manual_seed, lambda: torch.rand(1).item()),
}


@pytest.mark.parametrize("name", SEEDED)
def test_the_same_position_in_another_block_is_another_state(name, way, interleave):
    # A Mersenne twister hands out 624 words at a time: the positions in two blocks are alike, the words are not.
    blocks = {
        "random": lambda: random.getrandbits(32 * 624),
        "numpy": lambda: numpy.random.bytes(4 * 624),
        "torch": lambda: torch.rand(624),
    }
    seed, draw = SEEDED[name]

    def program(rank):
        seed(5)
        draw()
        yield
        for _ in range(rank):
            blocks[name]()
        yield
        return draw()

    together = interleave(program, 3)
    assert together == [interleave(program, 3, ranks=[rank])[0] for rank in range(3)]
    assert len(set(together)) == 3


def test_nothing_is_copied_while_nobody_draws(monkeypatch, isolation):
    isolation.switch_rank(None, 0)
    for kind in (RandomByCopy, NumpyByCopy, NativeState):
        monkeypatch.setattr(kind, "swap_state", lambda *args: pytest.fail("it was exchanged"))
    isolation.switch_rank(0, 1)
    isolation.switch_rank(1, 2)
    isolation.switch_rank(2, 0)
    monkeypatch.undo()


def test_ranks_that_drew_alike_need_no_copy(monkeypatch, isolation):
    isolation.switch_rank(None, 0)
    for rank in range(3):
        torch.rand(3), random.random(), numpy.random.rand()
        isolation.switch_rank(rank, (rank + 1) % 3)
    for kind in (RandomByCopy, NumpyByCopy, NativeState):
        monkeypatch.setattr(kind, "load_state", lambda *args: pytest.fail("it was loaded"), raising=False)
    isolation.switch_rank(0, 1)
    isolation.switch_rank(1, 2)
    monkeypatch.undo()


def test_the_cheap_way_is_the_one_taken_here():
    # Not a matter of right or wrong: if this fails, a layout has changed and context switches cost 100 us more.
    assert isinstance(python_random.python_generator(), RandomByCopy)
    assert isinstance(numpy_random.numpy_generator(), NumpyByCopy)
    assert isinstance(cpu_generator(torch.default_generator), CpuByCopy)


class OtherRandom(random.Random):
    """A generator of another make, whose memory is not known."""


def test_another_place_of_the_gauss_of_numpy(monkeypatch):
    # A place that looks right (no variate is kept) and is not; the check must leave the generator as it was.
    numpy.random.seed(1)
    before = numpy.random.get_state()
    elsewhere = bytearray(64)
    window = numpy_random.memory_view
    monkeypatch.setattr(numpy_random, "find_gauss_address", lambda random_state: -1)
    monkeypatch.setattr(
        numpy_random, "memory_view", lambda at, size: memoryview(elsewhere)[:size] if at < 0 else window(at, size)
    )
    assert isinstance(numpy_random.numpy_generator(), NumpyByPublicFunctions)
    assert str(numpy.random.get_state()) == str(before)


def torch_cpu():
    return cpu_generator(torch.default_generator)


@pytest.mark.parametrize(
    ("module", "name", "value", "make", "kind"),
    [
        (random, "_inst", OtherRandom(3), python_random.python_generator, GeneratorByPublicFunctions),
        (
            python_random,
            "memory_view",
            lambda at, n: memoryview(bytearray(n)),
            python_random.python_generator,
            GeneratorByPublicFunctions,
        ),
        (
            numpy_random,
            "find_gauss_address",
            lambda random_state: None,
            numpy_random.numpy_generator,
            NumpyByPublicFunctions,
        ),
        (torch_generators, "HEADER_BYTES", 16, torch_cpu, GeneratorByPublicFunctions),
        (
            torch_generators,
            "CACHED_NORMAL_OFFSET",
            torch_generators.CACHED_NORMAL_OFFSET - 8,
            torch_cpu,
            GeneratorByPublicFunctions,
        ),
        (torch_generators, "_tensor_bytes", lambda state: object(), torch_cpu, GeneratorByPublicFunctions),
    ],
    ids=["another-random", "random", "numpy", "torch-no-engine", "torch-other-end", "torch-not-all-of-it"],
)
def test_another_layout_is_noticed(monkeypatch, module, name, value, make, kind):
    monkeypatch.setattr(module, name, value)
    assert isinstance(make(), kind)


def test_another_bit_generator_in_a_rank(way, interleave):
    def program(rank):
        if rank == 1:
            own = numpy.random.get_bit_generator()
            numpy.random.set_bit_generator(numpy.random.PCG64(5))
        drawn = []
        for _ in range(4):
            drawn += [numpy.random.rand(), numpy.random.standard_normal()]
            yield
        if rank == 1:
            numpy.random.set_bit_generator(own)
        yield
        return [*drawn, numpy.random.rand()]

    together = interleave(program, 3)
    assert together == [interleave(program, 3, ranks=[rank])[0] for rank in range(3)]
    expected = numpy.random.RandomState(numpy.random.PCG64(5))
    assert together[1][0] == expected.rand()
    assert isinstance(numpy.random.get_bit_generator(), numpy.random.MT19937)


def test_another_bit_generator_in_the_host(interleave):
    mersenne = numpy.random.get_bit_generator()
    other = numpy.random.PCG64(5)
    numpy.random.set_bit_generator(other)
    try:
        expected = numpy.random.RandomState(numpy.random.PCG64(5))
        assert numpy.random.rand() == expected.rand()
        drawn = interleave(drawing([["numpy"]] * 2), 2)
        assert drawn == [[numpy.random.RandomState(0).rand()]] * 2
        assert numpy.random.get_bit_generator() is other
        assert numpy.random.rand() == expected.rand()
    finally:
        numpy.random.set_bit_generator(mersenne)


class TestCuda:
    """CUDA's default generators, with CPU generators in their place: they have the same methods."""

    @pytest.fixture
    def initialise(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "default_generators", ())
        generators = (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2))

        def initialise():
            torch.cuda.default_generators = generators
            return generators

        return initialise

    def test_initialised_before(self, initialise, interleave):
        devices = initialise()

        def program(rank):
            drawn = []
            for _ in range(3):
                drawn.append([torch.rand(1, generator=device).item() for device in devices])
                yield
            return drawn

        host = [device.get_state().tolist() for device in devices]
        together = interleave(program, 3)
        fresh = torch.Generator().manual_seed(torch_generators.DEFAULT_SEED)
        alone = [[torch.rand(1, generator=fresh).item()] * 2 for _ in range(3)]
        assert together == [alone] * 3
        assert [device.get_state().tolist() for device in devices] == host

    def test_initialised_by_a_rank(self, initialise, isolation):
        isolation.switch_rank(None, 0)
        isolation.switch_rank(0, 1)
        torch.default_generator.manual_seed(5)
        isolation.switch_rank(1, 2)
        devices = initialise()
        isolation.switch_rank(2, 0)
        assert [device.initial_seed() for device in devices] == [torch_generators.DEFAULT_SEED] * 2
        isolation.switch_rank(0, 1)
        # What `torch.manual_seed` in this rank would have seeded, had CUDA been initialised then.
        assert [device.initial_seed() for device in devices] == [5, 5]
        isolation.switch_rank(1, 2)
        assert [device.initial_seed() for device in devices] == [1, 2]

    def test_a_seed_waits_in_its_own_rank(self, initialise, isolation):
        before = torch.cuda._lazy_seed_tracker
        isolation.switch_rank(None, 0)
        torch.cuda.manual_seed_all(5)
        own = torch.cuda._lazy_seed_tracker
        assert own.manual_seed_all_cb is not None
        isolation.switch_rank(0, 1)
        assert torch.cuda._lazy_seed_tracker.manual_seed_all_cb is None
        isolation.switch_rank(1, 0)
        assert torch.cuda._lazy_seed_tracker is own
        isolation.uninstall()
        assert torch.cuda._lazy_seed_tracker is before
