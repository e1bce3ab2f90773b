"""Parameters that a rank's batch does not use."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import CLEAN, Code, every_rank, finds, odd_one_out, repairs, scenario

BUCKET_SIZE_MEGABYTES = 0.00004
"""So little that each layer has a bucket of its own."""


class SoundAndPicture(torch.nn.Module):
    """A layer for sound, one for pictures, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.sound = torch.nn.Linear(10, 10)
        self.picture = torch.nn.Linear(10, 10)
        self.head = torch.nn.Linear(10, 1)

    def forward(self, sound: Tensor, picture: Tensor | None) -> Tensor:
        """The loss over what there is."""
        features = self.sound(sound)
        if picture is not None:
            features = features + self.picture(picture)
        loss: Tensor = self.head(features).square().mean()
        return loss


def train_on_pictures(no_picture: Tensor | None, rank: int) -> None:
    """Two steps, with `no_picture` on rank 1 in the second, then the sum of the losses."""
    model = DistributedDataParallel(SoundAndPicture(), bucket_cap_mb=BUCKET_SIZE_MEGABYTES)
    for pictures in (torch.randn(8, 10), no_picture if rank == 1 else torch.randn(8, 10)):
        loss = model(torch.randn(8, 10), pictures)
        loss.backward()  # found here
    dist.all_reduce(loss.detach())  # found here


@scenario(
    expected=finds(Code.MISMATCH_SHAPE, ranks=odd_one_out(1)),
    reports=["pytorch/pytorch#20125", "facebookresearch/fairseq2#484"],
    tags=["reducer", "ddp"],
)
def branch_unused_in_several_buckets(rank: int) -> None:
    """One rank's last batch leaves a branch out, and its next collective meets the bucket of that branch.

    The buckets before it are reduced as ever, and no forward follows that would raise. Real gloo: tensors of
    different sizes meet, and one process aborts.
    """
    train_on_pictures(None, rank)


@repairs(branch_unused_in_several_buckets)
def branch_unused_in_several_buckets_repaired(rank: int) -> None:
    """A batch without pictures has black ones."""
    train_on_pictures(torch.zeros(8, 10), rank)


class TextAndImage(torch.nn.Module):
    """A layer for text, and one for the image that not every batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.text = torch.nn.Linear(10, 1)
        self.image = torch.nn.Linear(10, 1)

    def forward(self, text: Tensor, image: Tensor | None) -> Tensor:
        """The sum over what there is."""
        answer: Tensor = self.text(text)
        return answer if image is None else answer + self.image(image)


def train_on_text(model: DistributedDataParallel, has_image: bool) -> None:
    """Three steps, with or without images."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        image = torch.randn(8, 10) if has_image else None
        model(torch.randn(8, 10), image).square().mean().backward()  # found here
        optimizer.step()


@scenario(
    expected=finds(Code.RANK_ERROR, ranks=1),
    reports=[
        "lhotse-speech/lhotse#554",
        "pytorch/pytorch#20125",
        "modelscope/ms-swift#9443",
        "facebookresearch/fairseq2#484",
    ],
    tags=["reducer", "ddp"],
)
def branch_unused_on_one_rank(rank: int) -> None:
    """One rank's batch does not use a branch of the model, and the others wait for its part of the gradients.

    The bucket never fills there; the rank learns of it at its next forward. Real gloo: rank 1 raises "Expected to
    have finished reduction", the others see a closed connection.
    """
    train_on_text(DistributedDataParallel(TextAndImage()), has_image=rank != 1)


@repairs(branch_unused_on_one_rank)
def branch_unused_on_one_rank_repaired(rank: int) -> None:
    """The wrapper looks for unused parameters, and the ranks agree on them."""
    train_on_text(DistributedDataParallel(TextAndImage(), find_unused_parameters=True), has_image=rank != 1)


class WithAuxiliaryHead(torch.nn.Module):
    """A head, and a second one that is not asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(10, 1)
        self.auxiliary = torch.nn.Linear(10, 1)

    def forward(self, batch: Tensor) -> Tensor:
        """The answer of the first head."""
        answer: Tensor = self.head(batch)
        return answer


@scenario(
    expected=finds(Code.DIVERGENCE_PARAMETERS, ranks=every_rank),
    reports=["pytorch/pytorch#128949", "pytorch/pytorch#112152"],
    tags=["reducer", "ddp"],
)
def unused_on_all_ranks_single_step(rank: int) -> None:
    """A layer is used on no rank, and the only step of a run trains on gradients that were not averaged.

    The layer shares a bucket with the rest, which therefore stays open. Real gloo: no error before the next
    forward, so a run of one step (a smoke test, a checkpoint after it) ends with replicas that differ.
    """
    torch.manual_seed(rank)
    model = DistributedDataParallel(WithAuxiliaryHead())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 10)).square().mean().backward()
    optimizer.step()  # found here


@repairs(unused_on_all_ranks_single_step)
def unused_on_all_ranks_single_step_repaired(rank: int) -> None:
    """The wrapper looks for unused parameters."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(WithAuxiliaryHead(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 10)).square().mean().backward()
    optimizer.step()


class TwoHeads(torch.nn.Module):
    """A body with two heads, of which a batch uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(10, 10)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(10, 1), torch.nn.Linear(10, 1)])

    def forward(self, batch: torch.Tensor, head: int) -> torch.Tensor:
        """The answer of one head."""
        answer: torch.Tensor = self.heads[head](self.body(batch))
        return answer


@scenario(expected=CLEAN, tags=["ddp", "unused"])
def unused_parameters(rank: int) -> list[float]:
    """Unused parameters that differ by rank: with `find_unused_parameters=True` the ranks agree on which rank used what."""
    # Train head 0 on even ranks and head 1 on odd ones; all ranks end with the same parameters.
    torch.manual_seed(rank)
    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 10), head=rank % 2).square().mean().backward()
        optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
