"""ignite: engines, its distributed helpers (idist), metrics that are reduced, a handler for rank 0, a checkpoint."""

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.metrics import Accuracy, Loss, RunningAverage
from torch import nn
from torch.utils.data import TensorDataset


def make_data():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(96, 6, generator=generator)
    y = (x[:, 0] > x[:, 1]).long()
    return TensorDataset(x[:64], y[:64]), TensorDataset(x[64:], y[64:])


def training(local_rank, epochs):
    torch.manual_seed(5)
    device = idist.device()
    train, test = make_data()
    loader = idist.auto_dataloader(train, batch_size=8, shuffle=True, drop_last=True)
    test_loader = idist.auto_dataloader(test, batch_size=8, shuffle=False)
    model = idist.auto_model(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=0.02))
    criterion = nn.CrossEntropyLoss()

    trainer = create_supervised_trainer(model, optimizer, criterion, device)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    metrics = {"accuracy": Accuracy(device=device), "loss": Loss(criterion, device=device)}
    evaluator = create_supervised_evaluator(model, metrics, device)
    checkpoint = Checkpoint(
        {"model": model, "optimizer": optimizer},
        DiskSaver("ignite_checkpoints", require_empty=False),
        n_saved=1,
        global_step_transform=lambda *_: trainer.state.epoch,
    )
    evaluator.add_event_handler(Events.COMPLETED, checkpoint)
    stopper = EarlyStopping(2, lambda engine: -engine.state.metrics["loss"], trainer)
    evaluator.add_event_handler(Events.COMPLETED, stopper)

    @trainer.on(Events.EPOCH_STARTED)
    def shuffle(engine: Engine):
        loader.sampler.set_epoch(engine.state.epoch)

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine: Engine):
        evaluator.run(test_loader)
        found = evaluator.state.metrics
        print(
            f"rank {idist.get_rank()} epoch {engine.state.epoch} running {engine.state.metrics['loss']:.4f} "
            f"loss {found['loss']:.5f} accuracy {found['accuracy']:.4f}"
        )

    @trainer.on(Events.COMPLETED)
    @idist.one_rank_only(with_barrier=True)
    def summarize():
        print(f"done after {trainer.state.iteration} iterations, saved {checkpoint.last_checkpoint}")

    trainer.run(loader, max_epochs=epochs)
    gathered = idist.all_gather(torch.tensor([float(idist.get_rank() + 1)], device=device)).tolist()
    total = idist.all_reduce(idist.get_rank() + 1)
    name = idist.broadcast("of rank 0" if idist.get_rank() == 0 else None, safe_mode=True)
    print(f"rank {idist.get_rank()} of {idist.get_world_size()} gathered {gathered} total {total} name {name}")


def main():
    with idist.Parallel(backend="nccl" if torch.cuda.is_available() else "gloo") as parallel:
        parallel.run(training, epochs=2)


if __name__ == "__main__":
    main()
