"""Swaps torch's default generators: the CPU's always, CUDA's once CUDA is initialised.

A fresh process seeds its CPU generator from the system's entropy. A rank starts from the seed that CUDA generators have
in a fresh process, the same on every rank. This is deterministic; a program that wants a different seed on each rank
sets it itself, as in real processes.

`get_state` and `set_state` of the CPU generator take 1.4 us, a third of a whole switch, so its memory is copied
instead (`NativeState`; aten/src/ATen/CPUGeneratorImpl.h: `mt19937 engine_; optional<float> next_float_normal_sample_;
optional<double> next_double_normal_sample_`; ATen/core/MT19937RNGEngine.h: `uint64_t seed_; int left_; bool seeded_;
uint32_t next_; uint32_t state_[624]`). The engine's offset and this layout are checked once per process, on generators
made for that. If the check fails, the public methods are used.
"""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from struct import Struct
from typing import Any

import torch

from ddpsim.simulator.runtime.isolation.native_memory import (
    GeneratorByPublicFunctions,
    GeneratorStateCopy,
    NativeState,
    memory_view,
)

DEFAULT_SEED = 67280421310721
"""`default_rng_seed_val` in c10/core/GeneratorImpl.h."""

SEED = Struct("Q")
ENGINE_BYTES = 8 + 4 + 4 + 4 + 4 * 624
CACHED_NORMAL = Struct("d?7x")
CACHED_NORMAL_OFFSET = ENGINE_BYTES + 4 + 8  # the engine is padded to 8 bytes; then the float
REGION_BYTES = CACHED_NORMAL_OFFSET + CACHED_NORMAL.size
MARKS = Struct(f"60s{CACHED_NORMAL_OFFSET - 8 - 60}x24s")
"""Fields that differ if states differ: the seed, words left, the next index, the first words, the normal variates."""

HEADER_BYTES = 512
"""The Mersenne twister engine is searched in this many bytes from the generator's start; the object is much larger."""


class CudaGenerators:
    """The states of CUDA's default generators, and the seeds that are queued until CUDA is initialised.

    Before CUDA is initialised, `torch.manual_seed` queues the seed in `torch.cuda._lazy_seed_tracker`, also in builds
    without CUDA. It is swapped: otherwise one rank's seed would later seed the CUDA generators of another rank.
    """

    def __init__(self) -> None:
        self._cpu = torch.default_generator
        self._cuda: dict[str, Any] = vars(torch.cuda)
        self.new_lazy_seeds: Callable[[], object] = type(self._cuda["_lazy_seed_tracker"])
        """A function that makes a `torch.cuda._lazy_seed_tracker` as in a fresh process."""

    def save_states(self) -> tuple[torch.Tensor, ...]:
        """Return the current states of the CUDA generators: an empty list until CUDA is initialised."""
        return tuple([generator.get_state() for generator in self._cuda["default_generators"]])

    def swap_states(self, states: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Restore saved states of the CUDA generators and return the previous ones; the CPU's is swapped first."""
        outgoing = self.save_states()
        generators = self._cuda["default_generators"]
        for generator, state in zip(generators, states, strict=False):
            generator.set_state(state)
        for generator in generators[len(states) :]:
            # CUDA was initialised while another rank ran. `torch.manual_seed` gives all devices the same seed.
            generator.manual_seed(self._cpu.initial_seed())
        return outgoing


def cpu_generator(generator: torch.Generator) -> "CpuByCopy | GeneratorByPublicFunctions":
    """Return the fastest swapper of a CPU generator's state that is correct for this torch version."""
    offset = find_engine_offset()
    if offset is not None:
        return CpuByCopy(generator, offset)
    return GeneratorByPublicFunctions(
        generator.get_state,
        generator.set_state,
        lambda seed: torch.Generator().manual_seed(seed).get_state(),
        DEFAULT_SEED,
    )


@cache
def find_engine_offset() -> int | None:
    """Return the offset of the Mersenne twister engine in a CPU generator; None if it is not laid out as expected."""
    donor = torch.Generator().manual_seed(DEFAULT_SEED)
    offset = bytes(memory_view(_generator_address(donor), HEADER_BYTES)).find(SEED.pack(DEFAULT_SEED))
    if offset < 0:
        return None
    with torch._C._DisableTorchDispatch():  # the host may trace with fake tensors
        torch.randn(1, generator=donor, dtype=torch.float64, device="cpu")  # draws two, and keeps one
        twin = donor.clone_state()
        kept = torch.randn(1, generator=twin, dtype=torch.float64, device="cpu").item()
    region = memory_view(_generator_address(donor) + offset, REGION_BYTES)
    # Only once the region is known to end with the object may it be written to.
    if CACHED_NORMAL.unpack_from(region, CACHED_NORMAL_OFFSET) != (kept, True):
        return None
    receiver = torch.Generator().manual_seed(0)
    memory_view(_generator_address(receiver) + offset, REGION_BYTES)[:] = region
    return offset if _tensor_bytes(receiver.get_state()) == _tensor_bytes(donor.get_state()) else None


def _generator_address(generator: torch.Generator) -> int:
    address: int = generator._cdata  # type: ignore[attr-defined]
    return address


def _tensor_bytes(state: torch.Tensor) -> bytes:
    return bytes(memory_view(state.data_ptr(), state.nbytes))


class CpuByCopy:
    """Swaps the state of torch's CPU generator by copying its engine and the kept normal variates after the engine."""

    def __init__(self, generator: torch.Generator, engine_offset: int) -> None:
        region = memory_view(_generator_address(generator) + engine_offset, REGION_BYTES)
        engine = NativeState(region, partial(MARKS.unpack_from, region))
        self.probe, self.save_state, self.swap_state = engine.probe, engine.save_state, engine.swap_state
        self._engine_offset = engine_offset
        self.start = self.seeded_state(DEFAULT_SEED)

    def seeded_state(self, seed: int) -> GeneratorStateCopy:
        """Return the state of a generator that was just seeded."""
        return _seeded_state(self._engine_offset, seed)


@lru_cache(maxsize=16)
def _seeded_state(engine_offset: int, seed: int) -> GeneratorStateCopy:
    start = torch.Generator().manual_seed(seed)  # must outlive the copying
    content = memory_view(_generator_address(start) + engine_offset, REGION_BYTES).tobytes()
    return GeneratorStateCopy(MARKS.unpack_from(content), content)
