"""A loss that gives rare positives more weight, by counts over all ranks which the model keeps as buffers.

Each rank counts what its own batch holds; after the forward the engine has added the ranks' counts up, both of them in
one collective. So every rank weighs alike, batches may differ in size and ranks in their number of batches, and a
checkpoint holds the totals.

`python examples/weighted_loss.py` trains on four simulated ranks;
`torchrun --nproc-per-node 4 examples/weighted_loss.py` does the same on four processes with gloo.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits

from ddpsim.ddp import DistributedDataParallel

FEATURES = 3


class Classifier(torch.nn.Module):
    """A linear classifier that counts positive and negative samples: of the last batches, and of all so far."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(FEATURES, 1)
        for name in ("positives", "negatives", "all_positives", "all_negatives"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))

    def forward(self, inputs, labels):
        """Count this rank's labels, and return a number for each sample."""
        self.positives.copy_(labels.sum())
        self.negatives.copy_((1 - labels).sum())
        return self.linear(inputs).squeeze(1)

    def loss(self, outputs, labels, ranks):
        """This rank's share, such that the average over `ranks` is the mean loss of the samples of all of them."""
        self.all_positives += self.positives
        self.all_negatives += self.negatives
        total = binary_cross_entropy_with_logits(outputs, labels, pos_weight=self.weight, reduction="sum")
        return total * ranks / (self.positives + self.negatives)

    @property
    def weight(self):
        """How much a positive counts, so that positives count as much as negatives in all."""
        return self.all_negatives / self.all_positives.clamp(min=1)


def train(batches, checkpoint=None):
    """Train a classifier on this rank's (inputs, labels), and return it; `checkpoint` is the state to go on from."""
    classifier = Classifier()
    if checkpoint is not None:
        classifier.load_state_dict(checkpoint)
    model = DistributedDataParallel(classifier)
    for name in ("positives", "negatives"):
        model.register_buffer_comm_hook(name, "sum", when="after")
    for name in ("all_positives", "all_negatives"):  # every rank adds up the same
        model.register_buffer_comm_hook(name, "none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for inputs, labels in batches:
            optimizer.zero_grad()
            classifier.loss(model(inputs, labels), labels, dist.get_world_size()).backward()
            optimizer.step()
    return classifier


def main(rank):
    """Train, and once more from the checkpoint; return the counts."""
    generator = torch.Generator().manual_seed(rank)
    batches = []
    for size in range(5, 7 + rank):  # rank 3 has five batches, rank 0 has two
        inputs = torch.randn(size, FEATURES, generator=generator)
        batches.append((inputs, (inputs.sum(1) > 1.5).to(inputs.dtype)))
    checkpoint = train(batches).state_dict()
    trained = train(batches, checkpoint)
    return f"rank {rank}: {trained.all_positives} positives, {trained.all_negatives} negatives, {trained.weight:.3f}"


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        print(main(dist.get_rank()))
        dist.destroy_process_group()
    else:
        from ddpsim import simulate

        result = simulate(main, world_size=4)
        result.raise_for_verdict()
        print(*result.returns, sep="\n")
