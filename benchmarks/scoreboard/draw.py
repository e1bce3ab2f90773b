"""What a template draws: sizes, ranks, calls, and calls without a mistake that stand around the mistake."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

COLLECTIVES = {
    "all_reduce": "dist.all_reduce({value})",
    "broadcast": "dist.broadcast({value}, src=0)",
    "reduce": "dist.reduce({value}.clone(), dst=0)",  # elsewhere the tensor has no defined value then
    "all_gather": "dist.all_gather([torch.empty_like({value}) for _ in range(size)], {value})",
    "all_gather_into_tensor": "dist.all_gather_into_tensor({value}.repeat(size), {value})",
    "gather": "dist.gather({value}, [torch.empty_like({value}) for _ in range(size)] if rank == 0 else None, dst=0)",
    "scatter": "dist.scatter({value}, [{value}.clone() for _ in range(size)] if rank == 0 else None, src=0)",
    "reduce_scatter_tensor": "dist.reduce_scatter_tensor(torch.empty_like({value}), {value}.repeat(size))",
    "all_to_all_single": "dist.all_to_all_single({value}.repeat(size), {value}.repeat(size))",
    "barrier": "dist.barrier()",
    "all_gather_object": "dist.all_gather_object([None] * size, rank)",
}
"""A call of each, for a tensor of one dimension."""
SYNCHRONISING = ("all_reduce", "all_gather", "barrier", "all_gather_into_tensor", "all_to_all_single")
"""In which no rank is done before all have come."""
REDUCING = ("all_reduce", "reduce", "reduce_scatter_tensor")


@dataclass(frozen=True, slots=True)
class Draw:
    """One draw. What is read twice is the same."""

    random: Random
    size: int
    """World size, 2 to 5."""
    odd: int
    """The rank that does something else."""
    numel: int
    dtype: str

    @classmethod
    def of(cls, random: Random, smallest: int) -> Draw:
        """A draw of at least so many ranks."""
        size = random.randint(smallest, max(5, smallest))
        dtype = random.choice(("float32", "float64", "int64"))
        return cls(random, size, random.randrange(size), random.randint(2, 9), dtype)

    @property
    def value(self) -> str:
        """A new tensor."""
        return f"torch.ones({self.numel}, dtype=torch.{self.dtype})"

    def one_of(self, *options: str) -> str:
        """One of those."""
        return self.random.choice(options)

    def collective(self, *names: str, value: str = "value") -> str:
        """A call of one of those collectives, or of any."""
        return COLLECTIVES[self.random.choice(names or tuple(COLLECTIVES))].format(value=value)

    def two_collectives(self, *names: str) -> tuple[str, str]:
        """Calls of two different ones."""
        first, second = self.random.sample(names or tuple(COLLECTIVES), 2)
        return COLLECTIVES[first].format(value="value"), COLLECTIVES[second].format(value="value")

    def surroundings(self) -> tuple[str, str]:
        """Up to two calls before and after the mistake, alike on all ranks; each a line or none."""
        return self._calls("early"), self._calls("late")

    def _calls(self, name: str) -> str:
        calls = [self.collective(value=name) for _ in range(self.random.randint(0, 2))]
        return "\n".join([f"{name} = {self.value}", *calls]) if calls else ""
