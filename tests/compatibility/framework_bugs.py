"""Mistakes in programs of frameworks: calls that look local and communicate, made by one rank."""

from __future__ import annotations

from ddpsim import Code
from tests.compatibility.planted_bugs import PlantedBug

_ANOTHER_BRANCH = "rank 0 took another branch, left a loop earlier or later, or made one call more or fewer"
_LEFT_TRAINING = (
    "rank 0 left the training loop earlier than the others, skipped part of a step, or made a call that the others"
)

BUGS = (
    PlantedBug(
        "a gather under accelerator.is_main_process",
        "frameworks/accelerate_loop.py",
        (
            (
                '        print(f"rank {rank} epoch {epoch} loss',
                "        if accelerator.is_main_process:\n"
                "            losses = accelerator.gather(torch.tensor([loss], device=accelerator.device))\n"
                '            print(f"mean of {losses}")\n'
                '        print(f"rank {rank} epoch {epoch} loss',
            ),
        ),
        Code.MISMATCH_OPERATION,
        (0,),
        "losses = accelerator.gather",
        _ANOTHER_BRANCH,
    ),
    PlantedBug(
        "an evaluation that gathers for metrics under accelerator.is_main_process",
        "frameworks/accelerate_loop.py",
        (
            (
                "        accuracy, seen = evaluate(accelerator, model, test_loader)\n",
                "        accuracy, seen = 0.0, 0\n"
                "        if accelerator.is_main_process:\n"
                "            accuracy, seen = evaluate(accelerator, model, test_loader)\n",
            ),
        ),
        Code.MISMATCH_OPERATION,
        (0,),
        "predicted, labels = accelerator.gather_for_metrics",
        _ANOTHER_BRANCH,
    ),
    PlantedBug(
        "a callback of the Trainer that reduces on one rank",
        "frameworks/transformers_trainer.py",
        (
            (
                "        dist.all_reduce(total)\n",
                "        if state.is_world_process_zero:\n            dist.all_reduce(total)\n",
            ),
        ),
        Code.MISMATCH_OPERATION,
        (0,),
        "dist.all_reduce(total)",
        _ANOTHER_BRANCH,
    ),
    PlantedBug(
        "sync_dist on one rank, reduced in each step",
        "frameworks/lightning_trainer.py",
        (
            (
                '        self.log("train_loss", loss',
                '        if self.trainer.is_global_zero:\n            self.log("train_loss", loss',
            ),
        ),
        Code.MISMATCH_OPERATION,
        (0,),
        'self.log("train_loss"',
        _LEFT_TRAINING,
    ),
    PlantedBug(
        "sync_dist on one rank, reduced at the end of an epoch",
        "frameworks/lightning_trainer.py",
        (
            (
                '        self.log("val_accuracy"',
                '        if self.global_rank == 0:\n            self.log("val_accuracy"',
            ),
        ),
        Code.MISMATCH_OPERATION,
        (0,),
        "trainer.fit(model",  # by then no line of the module is on the stack
        _ANOTHER_BRANCH,
    ),
    PlantedBug(
        "fabric.save on rank 0",
        "frameworks/fabric_loop.py",
        (("        fabric.save(", "        if fabric.global_rank == 0:\n            fabric.save("),),
        Code.MISMATCH_OPERATION,
        (0,),
        "fabric.save(",
        _LEFT_TRAINING,
    ),
    PlantedBug(
        "an evaluator of ignite with metrics that runs on rank 0",
        "frameworks/ignite_engine.py",
        (
            (
                "        evaluator.run(test_loader)\n",
                "        if idist.get_rank() > 0:\n            return\n        evaluator.run(test_loader)\n",
            ),
        ),
        Code.MISMATCH_DTYPE,
        (0,),
        "evaluator.run(test_loader)",
        _LEFT_TRAINING,
    ),
    PlantedBug(
        "compute() of a metric on rank 0",
        "frameworks/torchmetrics_evaluation.py",
        (
            (
                '        print(f"rank {rank} epoch {epoch} loss',
                '        if rank == 0:\n            print(f"rank {rank} epoch {epoch} loss',
            ),
        ),
        Code.MISMATCH_OPERATION,
        (0,),
        'print(f"rank {rank} epoch {epoch} loss',
        _LEFT_TRAINING,
    ),
    PlantedBug(
        "evaluation with a collection of metrics on rank 0",
        "frameworks/torchmetrics_evaluation.py",
        (
            (
                "        found = evaluate(model, test_loader, metrics, correlation)\n",
                "        found = evaluate(model, test_loader, metrics, correlation) if rank == 0 else None\n",
            ),
        ),
        Code.MISMATCH_DTYPE,
        (0,),
        "found = metrics.compute()",
        "some ranks took another branch",
    ),
)
