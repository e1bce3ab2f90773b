"""transformers' Trainer: a tiny model of random weights, evaluation, checkpoints, a callback that reduces, resumed."""

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Sequences(Dataset):
    """Numbers that count up from a random one."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.starts = torch.randint(0, 48, (count,), generator=generator)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        ids = (self.starts[index] + torch.arange(8)) % 48
        return {"input_ids": ids, "labels": ids.clone()}


class TokenCounter(TrainerCallback):
    """Counts what all ranks have seen, and has the sum of all at the end of an epoch."""

    def __init__(self):
        self.steps = 0
        self.of_all = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def on_epoch_end(self, args, state, control, **kwargs):
        total = torch.tensor(float(self.steps), device=args.device)
        dist.all_reduce(total)
        self.of_all = int(total)


def accuracy(prediction):
    hits = prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]
    return {"accuracy": float(hits.mean())}


def make_trainer(callback, epochs):
    set_seed(11)
    config = GPT2Config(vocab_size=48, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        output_dir="trained",
        num_train_epochs=epochs,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_steps=2,
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Sequences(64, seed=1),
        eval_dataset=Sequences(22, seed=2),
        compute_metrics=accuracy,
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def main():
    counter = TokenCounter()
    trainer = make_trainer(counter, epochs=2)
    rank = trainer.args.process_index
    trained = trainer.train()
    print(f"rank {rank} loss {trained.training_loss:.4f} steps {trained.global_step} of all {counter.of_all}")
    found = trainer.evaluate()
    print(f"rank {rank} evaluation {found['eval_loss']:.4f} accuracy {found['eval_accuracy']:.4f}")
    best = trainer.state.best_model_checkpoint
    print(f"rank {rank} best {best and best.rsplit('/')[-1]}")

    again = make_trainer(TokenCounter(), epochs=3)
    trained = again.train(resume_from_checkpoint=True)
    print(f"rank {rank} resumed to {trained.global_step} loss {again.evaluate()['eval_loss']:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
