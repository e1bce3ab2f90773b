"""torch's modes: per rank, per thread, or put back at the end; and one intra-op thread."""

import sys

import pytest
import torch


def test_modes_of_interleaved_ranks(interleave):
    def program(rank):
        if rank == 1:
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True, warn_only=True)
        yield
        with torch.autograd.set_detect_anomaly(rank == 2):
            yield
            return torch.ones(1).dtype, torch.get_deterministic_debug_mode(), torch.is_anomaly_enabled()

    assert interleave(program, 3) == [
        (torch.float32, 0, False),
        (torch.float64, 1, False),
        (torch.float32, 0, True),
    ]
    assert not sys.modules["torch._inductor.config"].deterministic


def test_what_is_per_thread_starts_with_the_defaults(interleave):
    # Ranks rely on this: no switch touches these.
    def program(rank):
        yield
        device = torch.empty(0).device.type
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), device

    host = torch.no_grad(), torch.inference_mode(), torch.autocast("cpu"), torch.device("meta")
    with host[0], host[1], host[2], host[3]:
        assert interleave(program, 2, own_threads=True) == [(True, False, False, "cpu")] * 2


def test_what_is_per_thread_stays_with_its_rank(interleave):
    def program(rank):
        with torch.set_grad_enabled(rank == 0), torch.autocast("cpu", enabled=rank == 1):
            yield
            return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    assert interleave(program, 2, own_threads=True) == [(True, False), (False, True)]


@pytest.mark.parametrize("host_threads", [1, 2, 3])
def test_one_intra_op_thread(host_threads, interleave, in_thread):
    def program(rank):
        at_start = torch.get_num_threads()
        torch.set_num_threads(4)
        yield
        return at_start, torch.get_num_threads()

    before = torch.get_num_threads()
    torch.set_num_threads(host_threads)
    try:
        assert interleave(program, 3) == [(1, 1)] * 3
        assert torch.get_num_threads() == host_threads
        assert in_thread(torch.get_num_threads) == host_threads
    finally:
        torch.set_num_threads(before)


def test_one_intra_op_thread_for_who_bound_the_function_before_and_in_new_threads(interleave, in_thread):
    def program(rank):
        early(4)
        yield
        return torch.get_num_threads(), in_thread(torch.get_num_threads)

    early = torch.set_num_threads
    assert interleave(program, 2) == [(1, 1), (1, 1)]
    assert torch.set_num_threads is torch._C.set_num_threads is early


def test_settings_are_put_back(isolation, monkeypatch):
    monkeypatch.setattr("torch.backends.__allow_nonbracketed_mutation_flag", True)  # torch's test classes freeze them
    isolation.switch_rank(None, 0)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True
    torch.set_warn_always(True)
    isolation.switch_rank(0, 1)
    isolation.uninstall()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.benchmark
    assert not torch.is_warn_always_enabled()


def test_settings_that_torch_does_not_tell(interleave):
    def program(rank):
        yield

    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        interleave(program, 2)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
