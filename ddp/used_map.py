"""Which parameters any rank has used: one small all_reduce beside the buckets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


class UsedMap:
    """The map of one backward, on its way."""

    __slots__ = ("_users", "_work")

    def __init__(self, used: Iterable[int], count: int, group: ProcessGroup, device: torch.device) -> None:
        users = torch.zeros(count, dtype=torch.int32)
        users[list(used)] = 1
        self._users: Tensor = users.to(device)
        """int32 [count]: how many ranks have used each parameter, once the work is done."""
        self._work: Any = dist.all_reduce(self._users, group=group, async_op=True)

    def wait(self) -> None:
        """Wait, and read nothing: on an accelerator the program need not stop for it."""
        self._work.wait()

    def unused(self) -> frozenset[int]:
        """Wait; return the indices of the parameters that no rank has used."""
        self._work.wait()
        return frozenset(index for index, users in enumerate(self._users.tolist()) if not users)
