"""torch's default generators: the CPU's always, CUDA's once CUDA is initialised.

A fresh process seeds its CPU generator from the system's entropy. A rank starts from the seed that CUDA generators have
in a fresh process, the same on every rank: deterministic, and a program that wants another seed on each rank sets it
itself, as it has to in real processes.

`get_state` and `set_state` of the CPU generator take 1.4 us, a third of a whole switch, so its memory is copied as it
is, in 0.3 us (aten/src/ATen/CPUGeneratorImpl.h: `mt19937 engine_; optional<float> next_float_normal_sample_;
optional<double> next_double_normal_sample_`; ATen/core/MT19937RNGEngine.h: `uint64_t seed_; int left_; bool seeded_;
uint32_t next_; uint32_t state_[624]`). Where the engine lies, and that all of it is as written here, is checked at each
install on generators made for that; where it is not, the public methods do the work.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Protocol

import torch

from simulator.runtime.isolation.native_memory import window

DEFAULT_SEED = 67280421310721
"""`default_rng_seed_val` in c10/core/GeneratorImpl.h."""

SEED = Struct("Q")
ENGINE_BYTES = 8 + 4 + 4 + 4 + 4 * 624
CACHED_NORMAL = Struct("d?7x")
CACHED_NORMAL_OFFSET = ENGINE_BYTES + 4 + 8  # the engine is padded to 8 bytes; then the float
REGION_BYTES = CACHED_NORMAL_OFFSET + CACHED_NORMAL.size
HEADER_BYTES = 512
"""How far into the object the engine is looked for. The object is much larger, whatever its header."""

GeneratorStates = tuple[Any, tuple[torch.Tensor, ...], object]


class CpuGenerator(Protocol):
    """The CPU generator, one way or the other."""

    def fresh(self) -> Any:
        """Return the state after seeding with the default seed."""

    def save(self) -> Any:
        """Return the state in place."""

    def load(self, state: Any) -> None:
        """Put a state in place."""


class TorchGenerators:
    """The state of the default generators, and the seeds that wait for CUDA to be initialised.

    `torch.manual_seed` before CUDA is initialised queues a seed in `torch.cuda._lazy_seed_tracker`, also in builds
    without CUDA. Were it not swapped, a rank's seed would seed another rank's, or the host's, CUDA generators later.
    """

    def __init__(self) -> None:
        self._default = torch.default_generator
        self._cpu = cpu_generator(self._default)
        self._cuda: dict[str, Any] = vars(torch.cuda)
        self._fresh = self._cpu.fresh()

    def install(self) -> None:
        """Nothing to prepare."""

    def initial(self, rank: int) -> GeneratorStates:
        """Return the states of a process that has not drawn or seeded."""
        return (self._fresh, (), type(self._cuda["_lazy_seed_tracker"])())

    def save(self) -> GeneratorStates:
        """Return the states in place."""
        # `default_generators` is empty until CUDA is initialised.
        on_cuda = self._cuda["default_generators"]
        states = tuple([generator.get_state() for generator in on_cuda]) if on_cuda else ()
        return (self._cpu.save(), states, self._cuda["_lazy_seed_tracker"])

    def load(self, state: GeneratorStates) -> None:
        """Put states in place."""
        on_cpu, on_cuda, self._cuda["_lazy_seed_tracker"] = state
        self._cpu.load(on_cpu)
        if self._cuda["default_generators"]:
            self._load_cuda(on_cuda)

    def uninstall(self) -> None:
        """Nothing to undo."""

    def _load_cuda(self, states: tuple[torch.Tensor, ...]) -> None:
        generators = self._cuda["default_generators"]
        for generator, state in zip(generators, states, strict=False):
            generator.set_state(state)
        for generator in generators[len(states) :]:
            # CUDA was initialised while somebody else ran. `torch.manual_seed` seeds all devices alike.
            generator.manual_seed(self._default.initial_seed())


def cpu_generator(generator: torch.Generator) -> CpuGenerator:
    """Return the cheapest way to swap a CPU generator's state that is right for this torch."""
    offset = engine_offset()
    return CpuByState(generator) if offset is None else CpuByCopy(generator, offset)


def engine_offset() -> int | None:
    """Return where in a CPU generator its engine begins, if all of its state lies there and nothing else."""
    donor = torch.Generator().manual_seed(DEFAULT_SEED)
    offset = bytes(window(_address(donor), HEADER_BYTES)).find(SEED.pack(DEFAULT_SEED))
    if offset < 0:
        return None
    with torch._C._DisableTorchDispatch():  # the host may trace with fake tensors
        torch.randn(1, generator=donor, dtype=torch.float64, device="cpu")  # draws two, and keeps one
        twin = donor.clone_state()
        kept = torch.randn(1, generator=twin, dtype=torch.float64, device="cpu").item()
    region = window(_address(donor) + offset, REGION_BYTES)
    # Only once the region is known to end with the object may it be written to.
    if CACHED_NORMAL.unpack_from(region, CACHED_NORMAL_OFFSET) != (kept, True):
        return None
    receiver = torch.Generator().manual_seed(0)
    window(_address(receiver) + offset, REGION_BYTES)[:] = region
    return offset if _bytes_of(receiver.get_state()) == _bytes_of(donor.get_state()) else None


def _address(generator: torch.Generator) -> int:
    address: int = generator._cdata  # type: ignore[attr-defined]
    return address


def _bytes_of(state: torch.Tensor) -> bytes:
    return bytes(window(state.data_ptr(), state.nbytes))


class CpuByCopy:
    """Copies the engine and the normal variates kept behind it."""

    def __init__(self, generator: torch.Generator, engine_offset: int) -> None:
        self._offset = engine_offset
        self._region = window(_address(generator) + engine_offset, REGION_BYTES)

    def fresh(self) -> bytes:
        """Return the state after seeding with the default seed."""
        generator = torch.Generator().manual_seed(DEFAULT_SEED)
        return window(_address(generator) + self._offset, REGION_BYTES).tobytes()

    def save(self) -> bytes:
        """Return the state in place."""
        return self._region.tobytes()

    def load(self, state: bytes) -> None:
        """Put a state in place."""
        self._region[:] = state


class CpuByState:
    """The same through the generator's public methods."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def fresh(self) -> torch.Tensor:
        """Return the state after seeding with the default seed."""
        return torch.Generator().manual_seed(DEFAULT_SEED).get_state()

    def save(self) -> torch.Tensor:
        """Return the state in place."""
        return self._generator.get_state()

    def load(self, state: torch.Tensor) -> None:
        """Put a state in place."""
        self._generator.set_state(state)
