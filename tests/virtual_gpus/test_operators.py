"""Operators on a virtual GPU: the CPU's numbers, and CUDA's refusals."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ddpsim import simulate
from tests.kit.results import returned

COMPLEX = torch.tensor([[1 + 2j, 3 - 4j]])


def with_gradient(function, value):
    value = value.detach().requires_grad_()
    function(value).abs().square().sum().backward()
    return value.grad


def turned(x):
    """Rotary embeddings: a gradient through a conjugate."""
    angles = torch.polar(torch.ones(4, device=x.device), torch.arange(4.0, device=x.device))
    return torch.view_as_real(torch.view_as_complex(x.reshape(-1, 4, 2)) * angles)


def filtered(x):
    weight = torch.complex(torch.arange(5.0, device=x.device), torch.ones(5, device=x.device))
    return torch.fft.irfft(torch.fft.rfft(x) * weight)


def sparse_steps(x):
    model = nn.Embedding(3, 2, sparse=True, device=x.device)
    with torch.no_grad():
        model.weight.copy_(x[:6].view(3, 2))
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.tensor([0, 2, 2], device=x.device)).sum().backward()
    optimizer.step()
    return model.weight.grad.coalesce().values(), model.weight


def encoded(x):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    encoder = nn.TransformerEncoder(layer, 1).to(x.device)
    with torch.inference_mode():
        mask = torch.tensor([[False, False, True]], device=x.device)
        return encoder(x[:24].view(1, 3, 8), src_key_padding_mask=mask)[:, :2].clone()


def resized(x):
    x = x.clone()
    storage = x.untyped_storage()
    storage.resize_(0)
    storage.resize_(x.numel() * 4)
    return x.fill_(3), torch.add(x, 1, out=torch.empty(0, device=x.device)), x[2:].t_().view(torch.int32)


def normalized(x):
    """Gradients of RMSNorm, by the operator that a torch with CUDA takes where there is a GPU."""
    rows, weight = x.view(2, 2, 8), torch.linspace(1, 2, 8, device=x.device)
    if x.is_cuda:
        y, scale = torch.ops.aten._fused_rms_norm(rows, [8], weight, 1e-5)
        return torch.ops.aten._fused_rms_norm_backward(2 * y, rows, [8], scale, weight, [True, True])
    rows, weight = (each.detach().requires_grad_() for each in (rows, weight))
    nn.functional.rms_norm(rows, [8], weight, 1e-5).square().sum().backward()
    return rows.grad, weight.grad


NUMBERS = {
    "conjugate": lambda x: (z := COMPLEX.to(x.device)).conj() * 1 + (z.conj() @ z.t()),
    "conjugate, moved": lambda x: COMPLEX.to(x.device).conj().cpu(),
    "a number of a conjugate": lambda x: torch.tensor(COMPLEX.to(x.device).conj()[0, 1].imag.item()),
    "rotary embeddings": lambda x: with_gradient(turned, x[:16]),
    "a filter": lambda x: with_gradient(filtered, x[:8]),
    "second derivatives": lambda x: torch.func.hessian(lambda a: (a**3).sum())(x[:3]),
    "sparse gradients": sparse_steps,
    "an encoder with padding": encoded,
    "storages": resized,
    "group norm": lambda x: with_gradient(lambda y: nn.functional.group_norm(y.view(2, 4, 4), 2), x),
    "RMSNorm": normalized,
    "attention to nothing": lambda x: nn.functional.scaled_dot_product_attention(
        *[x.view(1, 2, 4, 4)] * 3, attn_mask=torch.zeros(4, 4, dtype=torch.bool, device=x.device)
    ),
}


def test_numbers():
    def program(rank):
        torch.cuda.set_device(0)
        x = torch.randn(32, generator=torch.Generator().manual_seed(1))
        return {name: [function(x.to(device)) for device in ("cuda:1", "cpu")] for name, function in NUMBERS.items()}

    (found,) = returned(program, 1, isolation="process", gpus=2)
    for name, (here, there) in found.items():
        torch.testing.assert_close(here, there, check_device=False, msg=lambda text, name=name: f"{name}: {text}")


def add_to_number():
    total = torch.tensor(0.0)
    total += torch.ones(1, device="cuda").sum()


def add_to_itself():
    x = torch.arange(4.0, device="cuda")
    x[1:].add_(x[:-1])


def copy_to_itself():
    x = torch.arange(4.0, device="cuda")
    x[1:].copy_(x[:-1])


def shuffled():
    torch.set_default_device("cuda")
    list(DataLoader(torch.arange(4), shuffle=True))


def freed():
    x = torch.ones(3, device="cuda")
    x.untyped_storage().resize_(0)
    x.sum()


TWO = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
OVERLAP = "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory"
REFUSED = {
    "a number of the CPU that is written": (add_to_number, TWO),
    "an output on the CPU": (lambda: torch.add(torch.ones(1).cuda(), 1, out=torch.ones(1)), TWO),
    "lists": (lambda: torch.stack([torch.ones(1), torch.ones(1).cuda()]), TWO),
    "an index of the GPU": (
        lambda: torch.ones(3)[torch.tensor([0, 1]).cuda()],
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    ),
    "writes that overlap": (add_to_itself, OVERLAP),
    "copies that overlap": (copy_to_itself, OVERLAP),
    "a generator of the CPU": (
        lambda: torch.randn(2, device="cuda", generator=torch.Generator()),
        "Expected a 'cuda' device type for generator but found 'cpu'",
    ),
    "a loader that shuffles there": (shuffled, "Expected a 'cuda' device type for generator but found 'cpu'"),
    "memory that was freed": (freed, "CUDA error: an illegal memory access was encountered"),
    "a storage of the CPU": (lambda: torch.ones(1).cuda().set_(torch.ones(1)), "the devices must match"),
    "too much memory": (lambda: torch.empty(1 << 36, device="cuda"), "CUDA out of memory. Tried to allocate"),
    "heads that are not shared": (
        lambda: nn.functional.scaled_dot_product_attention(
            *(torch.ones(1, heads, 2, 4, device="cuda", dtype=torch.half) for heads in (4, 2, 2))
        ),
        "must match the size of tensor b (2) at non-singleton dimension 1",
    ),
    "a process that was forked": (lambda: child_uses_gpu(), "Cannot re-initialize CUDA in forked subprocess"),
}


def child_uses_gpu():
    torch.ones(1, device="cuda")
    data = [0, 1]
    list(DataLoader(data, num_workers=1, multiprocessing_context="fork", collate_fn=lambda part: torch.ones(1).cuda()))


@pytest.mark.parametrize(("use", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(use, words):
    result = simulate(lambda rank: use() and None, 1, isolation="process", gpus=2)
    assert words in str(result)


def test_memory_is_counted():
    def program(rank):
        kept = torch.ones(1000, device="cuda:1")
        sums = kept * 2
        del sums
        return [torch.cuda.memory_allocated(1), torch.cuda.max_memory_allocated(1), torch.cuda.memory_allocated(0)]

    assert returned(program, 1, isolation="process", gpus=2) == ([4096, 8192, 0],)  # in blocks of 512 bytes


def test_gpus_that_a_rank_hides_from_itself():
    def program(rank):
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        return torch.cuda.device_count(), torch.ones(1).cuda().device.index

    assert returned(program, 2, isolation="process", gpus=4) == ((1, 0),) * 2
