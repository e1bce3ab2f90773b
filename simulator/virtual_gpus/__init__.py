"""GPUs that are not there: a rank's program computes on the CPU, and is told what it expects to hear of CUDA.

A tensor that a program puts on a GPU stays in the memory of the CPU, and remembers the number of the GPU (`labels.py`).
A mode of torch sees every function of torch that the program calls: it takes "cuda" out of the arguments, hands labels
on from arguments to results, and answers `tensor.device` and `is_cuda` by them (`mode.py`). What stands in `torch.cuda`
and does not reach a tensor is replaced by functions that answer for the virtual GPUs (`cuda_module.py`).

Begin in `install.py`. It is for the process of one rank, and nothing of it is ever taken away again.
"""
