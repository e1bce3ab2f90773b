"""Trainings with one planted numeric bug each, which their argument names; with "" they are correct."""

import secrets
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(count=32, classes=3):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(count, 8, generator=generator)
    return features, torch.randint(0, classes, (count,), generator=generator)


def loader(batch=4, count=32, **options):
    data = TensorDataset(*samples(count))
    sampler = DistributedSampler(data, dist.get_world_size(), dist.get_rank())
    return DataLoader(data, batch_size=batch, sampler=sampler, **options)


def network(*extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), *extra, nn.ReLU(), nn.Linear(16, 3))


def reduce_gradients(model, bug="", group=None):
    """Average gradients by hand, or what `bug` makes of it."""
    size = dist.get_world_size()
    for number, parameter in enumerate(model.parameters()):
        if bug == "forgotten" and number == 2:
            continue
        if bug == "laid out otherwise" and size > 1 and parameter.dim() == 2:
            own = parameter.grad.mT.contiguous().mT
            dist.scatter(parameter.grad, [own] * size if dist.get_rank() == 0 else None)
        dist.all_reduce(parameter.grad, group=group)
        if bug != "summed":
            parameter.grad /= 2 if group else size
        if bug == "divided twice":
            parameter.grad /= size


def wrapped(rank, bug=""):
    """DDP, and what a program may do besides it."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for features, labels in loader():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(features), labels)
        if bug == "loss times world":
            loss = loss * dist.get_world_size()
        if bug == "loss times three" and dist.get_world_size() > 1:
            loss = loss * 3
        with model.no_sync() if bug == "not synchronised" else nullcontext():
            loss.backward()
        for parameter in model.parameters():
            if bug == "averaged twice":
                parameter.grad /= dist.get_world_size()
            if bug == "summed after":
                dist.all_reduce(parameter.grad)
        if bug == "weight decay of rank":
            optimizer.param_groups[0]["weight_decay"] = 0.1 * rank
        if bug == "rate of world":
            optimizer.param_groups[0]["lr"] = 0.01 * dist.get_world_size()
        optimizer.step()


def not_synchronised(rank, bug=""):
    """no_sync from the forward on, so that DDP does not reduce."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, labels in loader():
        optimizer.zero_grad()
        with model.no_sync() if bug else nullcontext():
            F.cross_entropy(model(features), labels).backward()
        optimizer.step()


def by_hand(rank, bug=""):
    """Gradients reduced by the program."""
    model = network()
    if bug == "start of world":
        model[2].weight.data *= dist.get_world_size()
    if bug == "other start":
        with torch.no_grad():
            model[0].weight += rank * 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pairs = (
        [dist.new_group([0, 1]), dist.new_group([2, 3])] if bug == "over pairs" and dist.get_world_size() == 4 else []
    )
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        if bug == "of rank 0":
            for parameter in model.parameters():
                dist.broadcast(parameter.grad, 0)
        elif bug != "not reduced":
            reduce_gradients(model, bug, pairs[rank // 2] if pairs else None)
        if bug == "zeroed" and rank == 1:
            model[2].weight.grad.zero_()
        optimizer.step()


def accumulated(rank, bug=""):
    """Gradients accumulated over two batches, and reduced once."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (features, labels) in enumerate(loader(batch=2)):
        (F.cross_entropy(model(features), labels) / 2).backward()
        if bug == "each time" and not number % 2:
            reduce_gradients(model, "summed")
        if number % 2:
            reduce_gradients(model)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def accumulated_in_ddp(rank, bug=""):
    """The same with DDP, which reduces in the last backward."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (features, labels) in enumerate(loader(batch=2)):
        is_last = bool(number % 2)
        with nullcontext() if is_last != (bug == "first only") else model.no_sync():
            (F.cross_entropy(model(features), labels) / 2).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


def clipped(rank, bug=""):
    """Gradients clipped by their norm."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        if bug == "before":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        reduce_gradients(model)
        if not bug:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if bug == "norm over replicas":
            square = sum(parameter.grad.square().sum() for parameter in model.parameters())
            dist.all_reduce(square)
            for parameter in model.parameters():
                parameter.grad *= min(1.0, 0.1 / square.sqrt().item())
        optimizer.step()


def mixed(rank, bug=""):
    """bfloat16 by autocast."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for features, labels in loader():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(features), labels)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad /= dist.get_world_size() if bug else 1
        optimizer.step()


def checkpointed(rank, bug=""):
    """Activation checkpointing that keeps what some operators computed, bfloat16 among it."""
    model, head = network()[:2], nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    kept = partial(create_selective_checkpoint_contexts, [torch.ops.aten._to_copy.default])
    for features, labels in loader():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            hidden = checkpoint(model, features, use_reentrant=False, context_fn=kept)
            loss = F.cross_entropy(head(hidden).float(), labels)
        loss.backward()
        reduce_gradients(model, bug)
        reduce_gradients(head, bug)
        optimizer.step()


class Mixing(nn.Module):
    """Rows that see the rows before them, as tokens of one sequence."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(8, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(self.table(tokens).reshape(-1, 4, 4).cumsum(1).reshape(-1, 4))


def mixing(rank, bug=""):
    """Samples of several rows, of which many are alike."""
    torch.manual_seed(0)
    model = Mixing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.arange(32) * torch.arange(32) % 7
    labels = torch.arange(32) % 3
    for batch in range(2):
        own = slice(batch * 16, (batch + 1) * 16)
        optimizer.zero_grad()
        rows = torch.arange(own.start, own.stop).chunk(dist.get_world_size())[rank]
        F.cross_entropy(model(tokens[rows]), labels[rows]).backward()
        reduce_gradients(model, bug)
        optimizer.step()


def scaled(rank, bug=""):
    """A GradScaler around gradients that are reduced by hand."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0 if not bug else 8.0 * (rank + 1))
    for features, labels in loader():
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(features), labels)).backward()
        reduce_gradients(model)
        scaler.step(optimizer)
        scaler.update()


def token_mean(rank, bug=""):
    """A loss over the tokens that are not padding, of which ranks have different numbers."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, labels in loader():
        labels = torch.where(features[:, 0] > 0.3, -100, labels)
        optimizer.zero_grad()
        total = F.cross_entropy(model(features), labels, reduction="sum", ignore_index=-100)
        count = (labels != -100).sum().float()
        if not bug:
            dist.all_reduce(count)
            count /= dist.get_world_size()
        (total / count.clamp(min=1)).backward()
        reduce_gradients(model)
        optimizer.step()


def head_outside(rank, bug=""):
    """A head that DDP does not wrap."""
    torch.manual_seed(0)
    body, head = DistributedDataParallel(nn.Linear(8, 16)), nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(head(body(features).relu()), labels).backward()
        if not bug:
            reduce_gradients(head)
        optimizer.step()


def normalised(rank, bug=""):
    """BatchNorm, synchronised or not."""
    model = network(nn.BatchNorm1d(16), nn.Dropout(0.1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        optimizer.step()


def by_index(rank, bug=""):
    """Samples chosen by rank, without a loader."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features, labels = samples()
    size = dist.get_world_size()
    for batch in range(2):
        own = slice(batch * 16 + rank, (batch + 1) * 16, size)
        optimizer.zero_grad()
        F.cross_entropy(model(features[own]), labels[own]).backward()
        reduce_gradients(model, bug)
        optimizer.step()


def own_samples(rank, bug=""):
    """Samples that only the rank draws: one rank never sees those of the others."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


class Shared(torch.autograd.Function):
    """The input of layers that are split: its gradient is the sum over the ranks."""

    @staticmethod
    def forward(context, value):
        return value.view_as(value)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Summed(torch.autograd.Function):
    """The sum of what the ranks have."""

    @staticmethod
    def forward(context, value):
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(context, gradient):
        return gradient


class Split(nn.Module):
    """Two layers split over all ranks, the first by columns and the second by rows."""

    def __init__(self, bug):
        super().__init__()
        torch.manual_seed(0)
        before, first, second = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 3)
        size, rank, self.bug = dist.get_world_size(), dist.get_rank(), bug
        self.before = before
        self.first_weight = nn.Parameter(first.weight.detach().chunk(size, 0)[rank].clone())
        self.first_bias = nn.Parameter(first.bias.detach().chunk(size, 0)[rank].clone())
        self.second_weight = nn.Parameter(second.weight.detach().chunk(size, 1)[rank].clone())
        self.second_bias = nn.Parameter(second.bias.detach().clone())

    def forward(self, features):
        hidden = self.before(features).relu()
        hidden = hidden if self.bug == "input not summed" else Shared.apply(hidden)
        hidden = F.linear(hidden, self.first_weight, self.first_bias).relu()
        if self.bug == "bias on each rank":
            return Summed.apply(F.linear(hidden, self.second_weight, self.second_bias))
        hidden = F.linear(hidden, self.second_weight)
        return (hidden if self.bug == "output not summed" else Summed.apply(hidden)) + self.second_bias


def split(rank, bug=""):
    """Tensor parallelism by hand."""
    model = Split(bug)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    features, labels = samples()
    for batch in range(2):
        own = slice(batch * 16, (batch + 1) * 16)
        optimizer.zero_grad()
        F.cross_entropy(model(features[own]), labels[own]).backward()
        if bug == "shards divided":
            model.first_weight.grad /= dist.get_world_size()
        if bug == "local norm":
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            for parameter in model.parameters():
                parameter.grad *= min(1.0, 0.1 / norm.item())
        if bug == "":
            squares = sum(p.grad.square().sum() for p in (model.first_weight, model.first_bias, model.second_weight))
            dist.all_reduce(squares)
            rest = sum(p.grad.square().sum() for p in (*model.before.parameters(), model.second_bias))
            for parameter in model.parameters():
                parameter.grad *= min(1.0, 0.1 / (squares + rest).sqrt().item())
        optimizer.step()


def local_steps(rank, bug=""):
    """Local SGD: another algorithm."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (features, labels) in enumerate(loader(batch=2)):
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        optimizer.step()
        if number % 2:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()


def averaged_parameters(rank, bug=""):
    """Parameters averaged after each step: the same as averaged gradients."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        optimizer.step()
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


def owned(rank, bug=""):
    """Each rank steps its own parameters, and sends them to the others."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        size = dist.get_world_size()
        for number, parameter in enumerate(model.parameters()):
            dist.reduce(parameter.grad, number % size)
            parameter.grad = parameter.grad / size if number % size == rank else None
        optimizer.step()
        for number, parameter in enumerate(model.parameters()):
            if not (bug and number == 1):
                dist.broadcast(parameter.data, number % size)


def resumed(rank, path=""):
    """Makes the second step only if there is no model of an earlier run in this file."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saved = Path(path or "saved.pt")
    if rank == 0:
        saved.parent.mkdir(parents=True, exist_ok=True)
    count = 1 if saved.exists() and saved.stat().st_size else 2
    dist.barrier()
    for features, labels in list(loader())[:count]:
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        reduce_gradients(model)
        optimizer.step()
        if rank == 0:
            torch.save(model.state_dict(), saved)


def cached(rank, bug=""):
    """Draws the samples once, without a seed, and keeps them in a file."""
    path = Path("cache.pt")
    if rank == 0 and not path.exists():
        torch.save([torch.randn(8, 8, generator=torch.Generator().manual_seed(secrets.randbits(60))), 0], path)
    dist.barrier()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.load(path)[0][rank :: dist.get_world_size()]).square().mean().backward()
    reduce_gradients(model)
    optimizer.step()


def continued(rank, bug=""):
    """A second model goes on with what the first one has learned."""
    first = network()
    train_by_hand(first, loader(), 2)
    second = network()
    second.load_state_dict(first.state_dict())
    if bug == "other start" and rank == 1:
        with torch.no_grad():
            second[0].weight.add_(0.01)
    train_by_hand(second, loader(), 2)


def train_by_hand(model, batches, count):
    """Make so many steps with gradients that are reduced by hand."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, labels in [*batches][:count]:
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        reduce_gradients(model)
        optimizer.step()


def scheduled(rank, bug=""):
    """accelerate's scheduler, in short: it steps once for each batch of a process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    state = sys.modules["accelerate.scheduler"].AcceleratorState
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        reduce_gradients(model)
        optimizer.step()
        for _ in range(dist.get_world_size() if bug == "by hand" else state().num_processes):
            scheduler.step()


def padded(rank, bug=""):
    """A step of a pass, in which a sample is read twice; the batches are read ahead or as they come."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for reads_ahead in (False, True):
        batches = loader(count=31)
        for features, labels in list(batches) if reads_ahead else batches:
            (F.cross_entropy(model(features), labels) / len(batches)).backward()
        reduce_gradients(model)
        if bug:
            reduce_gradients(model)
            for parameter in model.parameters():
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()


def fixed_count(rank, bug=""):
    """More steps on fewer ranks."""
    train_by_hand(network(), loader(), max(1, 2 // dist.get_world_size()))


def sharded(rank, bug=""):
    """FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    size = dist.get_world_size()
    if bug in ("replicas", "replicas divided") and size == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (size,))
    for layer in (model[0], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        for parameter in model.parameters():
            if bug in ("divided again", "replicas divided"):
                parameter.grad /= size
            if bug == "zero on a shard" and rank == 1:
                parameter.grad.to_local().zero_()
            if bug == "local norm":
                local = parameter.grad.to_local()
                local *= min(1.0, 0.01 / max(local.norm().item(), 1e-9))
        optimizer.step()


def in_parts(rank, bug=""):
    """Two parts of one model on each of several ranks, as in an interleaved pipeline, each of them sharded."""
    from torch.distributed.fsdp import fully_shard

    parts = [network(nn.LayerNorm(16)) for _ in range(2 if dist.get_world_size() > 1 else 1)]
    if len(parts) > 1:
        for part, removed in zip(parts, (("1", "2", "3"), ("0",)), strict=True):
            for name in removed:
                del part._modules[name]
    for part in parts:
        fully_shard(part)
    parameters = [each for part in parts for each in part.parameters()]
    if bug == "other start" and len(parts) > 1:
        with torch.no_grad():
            parts[1][-1].weight.mul_(2)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for features, labels in loader():
        optimizer.zero_grad()
        for part in parts:
            features = part(features)
        F.cross_entropy(features, labels).backward()
        if bug == "divided again":
            for each in parts[-1].parameters():
                each.grad /= dist.get_world_size()
        optimizer.step()


class Large(nn.Module):
    """A module with so many equal gradients that rounding shows in their norm."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1 << 18,), 0.01))

    def forward(self, inputs):
        return (self.weight * 1.1).sum() * inputs.mean()


def clipped_by_own_norm(rank, bug=""):
    """FSDP2, and a norm that the program makes of its parts."""
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(Large())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for features, _ in loader(count=16):
        optimizer.zero_grad()
        model(features.abs()).backward()
        norm = nn.utils.get_total_norm([each.grad for each in model.parameters()])
        if bug != "left to torch":
            norm = norm.full_tensor() * (dist.get_world_size() ** 0.5 if bug == "norm over replicas" else 1)
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)
        optimizer.step()


def zero(rank, bug=""):
    """ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for features, labels in loader():
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()
        for parameter in model.parameters():
            parameter.grad *= dist.get_world_size() if bug else 1
        optimizer.step()


def staged(rank, bug=""):
    """Two stages of a pipeline by hand, on two ranks; on one rank both."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)]
    size = dist.get_world_size()
    model = nn.Sequential(*(layers if size == 1 else layers[:2] if rank == 0 else layers[2:]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    features, labels = samples()
    for batch in range(2):
        optimizer.zero_grad()
        parts = [slice(batch * 16 + 8 * part, batch * 16 + 8 * part + 8) for part in range(2)]
        for part in parts:
            if size == 1:
                (F.cross_entropy(model(features[part]), labels[part]) / 2).backward()
            elif rank == 0:
                hidden = model(features[part])
                dist.send(hidden.detach(), 1)
                gradient = torch.empty_like(hidden)
                dist.recv(gradient, 1)
                hidden.backward(gradient)
            else:
                hidden = torch.empty(8, 16)
                dist.recv(hidden, 0)
                hidden.requires_grad_()
                (F.cross_entropy(model(hidden), labels[part]) / (1 if bug else 2)).backward()
                dist.send(hidden.grad, 0)
        optimizer.step()


def of_other_width(rank, bug=""):
    """A model that is wider on rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4 + rank), nn.Linear(4 + rank, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
