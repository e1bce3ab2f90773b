"""torchmetrics on all ranks of an ordinary loop: counts that are reduced, lists that are gathered, a collection."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics import MeanMetric, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryF1Score


def make_data():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(96, 6, generator=generator)
    y = (x[:, 0] > x[:, 1]).long()
    return TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])


@torch.no_grad()
def evaluate(model, loader, metrics, correlation):
    model.eval()
    for x, y in loader:
        scores = model(x).squeeze(1).sigmoid()
        metrics.update(scores, y)
        correlation.update(scores, x[:, 0] - x[:, 1])
    found = metrics.compute()
    found["correlation"] = correlation.compute()
    metrics.reset()
    correlation.reset()
    model.train()
    return {name: f"{value.item():.5f}" for name, value in found.items()}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    train, test = make_data()
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=8, sampler=sampler)
    test_loader = DataLoader(test, batch_size=8, sampler=DistributedSampler(test, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    mean_loss = MeanMetric()
    metrics = MetricCollection([BinaryAccuracy(), BinaryF1Score(), BinaryAUROC()])
    correlation = PearsonCorrCoef()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y.float())
            loss.backward()
            optimizer.step()
            mean_loss.update(loss.detach(), weight=len(x))
        found = evaluate(model, test_loader, metrics, correlation)
        print(f"rank {rank} epoch {epoch} loss {mean_loss.compute().item():.5f} {found}")
        mean_loss.reset()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
