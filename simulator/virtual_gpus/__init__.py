"""Virtual GPUs: a rank's program computes on the CPU, while torch.cuda reports GPUs to it.

A tensor that a program moves to a GPU stays in the memory of the CPU, with the number of the GPU as its label
(`process_group/gpu_labels.py`). A mode of torch intercepts every function of torch that the program calls: it removes
"cuda" from the arguments, copies labels from arguments to results, and answers `tensor.device` and `is_cuda`
(`mode.py`). Functions of `torch.cuda` are replaced (`cuda_module.py`).

Begin in `install.py`. Virtual GPUs are installed in the process of one rank, and never removed.
"""
