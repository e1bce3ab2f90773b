"""Lightning's Trainer: metrics reduced by sync_dist, checkpoints, early stopping, a collective in a hook, tested."""

import os

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.seen = 0

    def training_step(self, batch, index):
        x, y = batch
        self.seen += len(x)
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("train_loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        predicted = self.layers(x)
        self.log("val_loss", nn.functional.cross_entropy(predicted, y), sync_dist=True)
        self.log("val_accuracy", (predicted.argmax(dim=1) == y).float().mean(), sync_dist=True)

    def test_step(self, batch, index):
        x, y = batch
        self.log("test_loss", nn.functional.cross_entropy(self.layers(x), y), sync_dist=True)

    def on_train_epoch_end(self):
        seen = self.all_gather(torch.tensor(self.seen, device=self.device))
        print(f"rank {self.global_rank} epoch {self.current_epoch} seen {seen.tolist()}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def make_loader(first, last, **options):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(112, 6, generator=generator)
    y = (x[:, 0] > x[:, 1]).long()
    return DataLoader(TensorDataset(x[first:last], y[first:last]), batch_size=8, **options)


def main():
    L.seed_everything(5, verbose=False)
    checkpoint = ModelCheckpoint("checkpoints", monitor="val_loss", filename="{epoch}", save_top_k=1)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy="ddp",
        gradient_clip_val=1.0,
        callbacks=[checkpoint, EarlyStopping("val_loss", patience=2)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    test_loader = make_loader(64, 112)
    trainer.fit(model, make_loader(0, 64, shuffle=True), test_loader)
    metrics = {name: f"{value:.5f}" for name, value in sorted(trainer.callback_metrics.items())}
    print(f"rank {trainer.global_rank} after {trainer.global_step} steps {metrics}")
    (tested,) = trainer.test(model, test_loader, ckpt_path="best", verbose=False)
    best = checkpoint.best_model_path.rsplit("/")[-1]
    print(f"rank {trainer.global_rank} tested {tested['test_loss']:.5f} of {best}")


if __name__ == "__main__":
    main()
