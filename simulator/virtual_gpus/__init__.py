"""Virtual GPUs: a rank's program computes on the CPU, on tensors that torch knows as tensors of a GPU.

`device.cpp` is a CUDA device whose memory is the host's, for a torch without CUDA. It is built once per version of
torch (`building.py`). torch.cuda stays torch's own; `cuda_module.py` has the functions that it calls in torch._C.
Operators that torch has only for GPUs are in `gpu_kernels.py`.

Begin in `install.py`. Virtual GPUs are installed in the process of one rank, and never removed.
"""
