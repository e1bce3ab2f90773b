"""Mistakes that people make, each put into one of the programs of examples/programs by an edit of its text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddpsim import Code
from tests.compatibility.cases import FOLDER

Edit = tuple[str, str]
"""What stands in the program, and what stands there instead."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A mistake in a program, and what has to be said of it."""

    name: str
    file: str
    edits: tuple[Edit, ...]
    code: Code
    ranks: tuple[int, ...]
    """The culprits."""
    line: str
    """The line of the user's that is told, as it begins."""
    cause: str
    """A part of what is told as the cause."""
    world_size: int = 3
    before: tuple[Edit, ...] = ()
    """What is edited with the mistake and without it."""

    def __str__(self) -> str:
        return self.name

    @property
    def name_of_file(self) -> str:
        """Under which name it is written into an empty folder."""
        return Path(self.file).name

    @property
    def repaired(self) -> str:
        """The program as it is in the repository, or with what it lacks there for such a mistake."""
        return self._edited((FOLDER / self.file).read_text(), self.before)

    @property
    def source(self) -> str:
        """The program with the mistake."""
        return self._edited(self.repaired, self.edits)

    def _edited(self, text: str, edits: tuple[Edit, ...]) -> str:
        for old, new in edits:
            assert text.count(old) == 1, f"{self.file} has {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        return text

    @property
    def place(self) -> str:
        """File and number of the line that is told."""
        lines = self.source.splitlines()
        (number,) = [number for number, line in enumerate(lines, 1) if line.strip().startswith(self.line)]
        return f"{self.name_of_file}:{number}"


_STATE = "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))"
_ON_RANK_0 = "evaluate(model, test_loader, len(test)) if rank == 0 else 0.0\n"
_LAYER_DROP = (
    "        logits = self.head(self.blocks(x))\n",
    "        for block in self.blocks:\n"
    "            if random.random() > 0.2:\n"
    "                x = block(x)\n"
    "        logits = self.head(x)\n",
)

_SYNC_BATCH_NORM = (
    ('init_process_group("gloo")', 'init_process_group("nccl")'),
    ("torch.randn(61, 6)", "torch.randn(61, 6).cuda()"),
    ("DDP(nn.Sequential(", "DDP(nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential("),
    ("nn.Linear(8, 2)))", "nn.Linear(8, 2))).cuda())"),
    ("dtype=hits.dtype)", 'dtype=hits.dtype, device="cuda")'),
    ("dtype=labels.dtype)", 'dtype=labels.dtype, device="cuda")'),
    ("hits.append(model(x)", "hits.append(model.module(x)"),
)
"""It runs on virtual GPUs then: there is no SyncBatchNorm for the CPU."""

BUGS = (
    PlantedBug(
        "evaluation through SyncBatchNorm on rank 0, which nobody has set to eval()",
        "evaluation.py",
        (("    model.eval()\n", ""), ("evaluate(model, test_loader, len(test))\n", _ON_RANK_0)),
        Code.MISMATCH_OPERATION,
        (0,),
        "hits.append(model.module(x)",
        "made a call that the others did not",
        before=_SYNC_BATCH_NORM,
    ),
    PlantedBug(
        "evaluation through the wrapper on rank 0",
        "evaluation.py",
        (("evaluate(model, test_loader, len(test))\n", _ON_RANK_0),),
        Code.MISMATCH_ORIGIN,
        (0,),
        "hits.append(model(x)",
        "a forward through the wrapper broadcasts buffers, in evaluation too; rank 0 ran one that the others did not",
    ),
    PlantedBug(
        "evaluation on rank 0 that gathers",
        "evaluation.py",
        (
            ("evaluate(model, test_loader, len(test))\n", _ON_RANK_0),
            ("hits.append(model(x)", "hits.append(model.module(x)"),
        ),
        Code.MISMATCH_OPERATION,
        (0,),
        "dist.all_gather_into_tensor(all_hits, hits)",
        "made a call that the others did not make, and then called all_gather_into_tensor",
    ),
    PlantedBug(
        "a rank stops early by its own loss",
        "early_stopping.py",
        (
            (
                "        if rank == 0 and stopping.should_stop(mean.item()):\n"
                "            stop += 1\n"
                "        dist.all_reduce(stop)\n"
                "        if stop.item() > 0:\n",
                "        if stopping.should_stop(loss.item()):\n",
            ),
        ),
        Code.DEADLOCK_MISSING_RANK,
        (1,),
        "loss.backward()",
        "rank 1 ran out of input, or stopped, before the others",
    ),
    PlantedBug(
        "uneven data without join",
        "uneven_join.py",
        (("    with model.join():", "    if True:"),),
        Code.DEADLOCK_MISSING_RANK,
        (0,),
        "loss = model(x)",
        "rank 0 ran out of input, or stopped, before the others",
    ),
    PlantedBug(
        "a state dict of FSDP2 on rank 0",
        "fsdp2.py",
        (
            (
                f"    state = {_STATE}\n    if rank == 0:\n",
                f"    if rank == 0:\n        state = {_STATE}\n",
            ),
        ),
        Code.DEADLOCK_MISSING_RANK,
        (0,),
        "state = get_model_state_dict",
        "rank 0 made all_gather_into_tensor_coalesced #31, and the others did not: only some ranks take that branch",
    ),
    PlantedBug(
        "a distributed checkpoint on rank 0",
        "dcp_save.py",
        (('    dcp.save({"model"', '    if rank == 0:\n        dcp.save({"model"'),),
        Code.MISMATCH_OPERATION,
        (0,),
        "dcp.save(",
        "while the others save or load a distributed checkpoint: ranks 1, 2 did not, or the state_dict() of an object",
    ),
    PlantedBug(
        "layers dropped by chance, which no rank has seeded",
        "small_gpt.py",
        (_LAYER_DROP, ("import os\n", "import os\nimport random\n")),
        Code.RANK_ERROR,
        (0, 3),
        "_, loss = model(*get_batch())",
        "in the step before, blocks.0.ln1.weight",
        world_size=4,
    ),
    PlantedBug(
        "a barrier in the branch of the rank that saves",
        "train.py",
        (("        dist.barrier()\n    load(", "            dist.barrier()\n    load("),),
        Code.MISMATCH_OPERATION,
        (0,),
        "dist.barrier()",
        "made a call that the others did not make, and then called barrier",
    ),
    PlantedBug(
        "metrics reduced in the order of a set",
        "train.py",
        (
            (
                "        dist.all_reduce(total)\n",
                '        metrics = {"loss": total[:1], "accuracy": torch.zeros(2, 2)}\n'
                "        for name in set(metrics):\n"
                "            dist.all_reduce(metrics[name])\n",
            ),
        ),
        Code.MISMATCH_SHAPE,
        (1,),
        "dist.all_reduce(metrics[name])",
        "",
    ),
)
