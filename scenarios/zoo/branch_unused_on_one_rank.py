"""One rank's batch does not use a branch of the model, and the others wait for its part of the gradients.

The bucket never fills there; the rank learns of it at its next forward. Real gloo: rank 1 raises "Expected to have
finished reduction", the others see a closed connection.
"""

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddpsim.scenarios.model import Code, finds, repairs, scenario


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


def train(model: DistributedDataParallel, has_image: bool) -> None:
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
    """Rank 1 has no images."""
    train(DistributedDataParallel(TextAndImage()), has_image=rank != 1)


@repairs(branch_unused_on_one_rank)
def repaired(rank: int) -> None:
    """The wrapper looks for unused parameters, and the ranks agree on them."""
    train(DistributedDataParallel(TextAndImage(), find_unused_parameters=True), has_image=rank != 1)
