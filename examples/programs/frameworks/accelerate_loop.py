"""accelerate's loop: prepare, accumulation, gather_for_metrics, uneven inputs joined, state saved."""

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_loaders():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(90, 6, generator=generator)
    y = (x[:, 0] > x[:, 1]).long()
    train, test = TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])
    return DataLoader(train, batch_size=4, shuffle=True), DataLoader(test, batch_size=4)


def train(accelerator, model, optimizer, scheduler, loader):
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return accelerator.reduce(loss.detach(), reduction="mean").item()


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    hits, seen = 0, 0
    for x, y in loader:
        predicted, labels = accelerator.gather_for_metrics((model(x).argmax(dim=1), y))
        hits += (predicted == labels).sum().item()
        seen += len(labels)
    return hits / seen, seen


def train_on_uneven_inputs(accelerator, model, loader):
    """On GPUs rank 0 has a batch more than the others, who take part until it is through; on CPU all have as many."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            steps += 1
    return steps


def main():
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    set_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    model, optimizer, scheduler, loader, test_loader = accelerator.prepare(model, optimizer, scheduler, *make_loaders())
    rank = accelerator.process_index
    for epoch in range(2):
        loss = train(accelerator, model, optimizer, scheduler, loader)
        accuracy, seen = evaluate(accelerator, model, test_loader)
        print(f"rank {rank} epoch {epoch} loss {loss:.5f} accuracy {accuracy:.4f} of {seen}")
        accelerator.save_state("state")

    steps = train_on_uneven_inputs(accelerator, model, test_loader)
    weights = sum(p.double().sum().item() for p in accelerator.unwrap_model(model).parameters())
    print(f"rank {rank} took {steps} uneven steps weights {weights:.5f}")
    accelerator.wait_for_everyone()
    accelerator.load_state("state")
    accuracy, _ = evaluate(accelerator, model, test_loader)
    names = broadcast_object_list([f"of rank {rank}"])
    with accelerator.main_process_first():
        weights = sum(p.double().sum().item() for p in accelerator.unwrap_model(model).parameters())
    print(f"rank {rank} loaded {accuracy:.4f} weights {weights:.5f} name {names[0]}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
