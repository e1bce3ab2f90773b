"""Convolutional networks: a plain one of adjustable size, and residual ones as deep as the published ones."""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from ddpsim import UsageError
from ddpsim.scenarios.training.models.network import Network


class Conv(Network):
    """`depth` convolutions of `channels` channels, of about 9 * channels**2 parameters each; then a linear layer."""

    def __init__(self, *, channels: int = 8, depth: int = 3, size: int = 8, outputs: int = 4) -> None:
        super().__init__()
        self.row = (3, size, size)
        widths = (3, *[channels] * depth)
        self.convolutions = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in pairwise(widths))
        self.head = nn.Linear(channels, outputs)

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        for convolution in self.convolutions:
            batch = F.relu(convolution(batch))
        return self.head(batch.mean(dim=(2, 3)))


# He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, 2015, table 1; 8 and 10 are as small as it gets.
_BLOCKS = {
    8: (1, 1, 1),
    10: (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_FIRST_WITH_BOTTLENECKS = 50


class Resnet(Network):
    """A residual network with batch normalisation, of `depth` layers with weights.

    The published networks have width 64. The first convolution is 3x3 without pooling, because that of the published
    networks shrinks an image to a sixteenth at once.
    """

    def __init__(self, *, depth: int = 8, width: int = 4, size: int = 16, outputs: int = 4) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise UsageError(f"depth is {depth}, expected one of {', '.join(map(str, _BLOCKS))}: take the nearest")
        self.row = (3, size, size)
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList()
        expansion = 4 if depth >= _FIRST_WITH_BOTTLENECKS else 1
        channels = width
        for stage, count in enumerate(_BLOCKS[depth]):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                block = _ResidualBlock(channels, width << stage, expansion=expansion, stride=stride)
                self.blocks.append(block)
                channels = block.channels
        self.head = nn.Linear(channels, outputs)

    def _compute_outputs(self, batch: Tensor, taken: tuple[str, ...]) -> Tensor:
        batch = F.relu(self.norm(self.stem(batch)))
        for block in self.blocks:
            batch = block(batch)
        features = batch.mean(dim=(2, 3))
        # Their squares sum to about their number. A larger sum would make the first steps of a wide network diverge.
        return self.head(features * features.shape[1] ** -0.5)


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a residual connection; with an expansion, one, between 1x1 ones."""

    def __init__(self, channels: int, width: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        self.channels = width * expansion
        if expansion == 1:
            layers = [(channels, width, 3, stride), (width, width, 3, 1)]
        else:
            layers = [(channels, width, 1, 1), (width, width, 3, stride), (width, self.channels, 1, 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel, step, padding=kernel // 2, bias=False)
            for inputs, outputs, kernel, step in layers
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _, outputs, _, _ in layers)
        self.shortcut = nn.Sequential()
        if stride > 1 or channels != self.channels:
            self.shortcut.append(nn.Conv2d(channels, self.channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(self.channels))

    def forward(self, batch: Tensor) -> Tensor:
        outputs, last = batch, len(self.norms) - 1
        for index, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            outputs = norm(convolution(outputs))
            if index < last:
                outputs = F.relu(outputs)
        return F.relu(outputs + self.shortcut(batch))
