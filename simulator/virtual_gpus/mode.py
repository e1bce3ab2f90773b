"""The mode of torch under which a rank with virtual GPUs runs.

It intercepts every function of torch that Python calls. Native code that it does not intercept (the Reducer, autograd's
own functions) computes with CPU tensors anyway: only the program needs the label, which is the number of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils._device as default_device
from torch import Tensor
from torch.nn import Parameter
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode, resolve_name

from ddpsim.simulator.process_group import gpu_labels
from ddpsim.simulator.virtual_gpus import sync_batch_norm
from ddpsim.simulator.virtual_gpus.gpus import CPU, VirtualDevices

Function = Callable[..., Any]
Handler = Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]

_PLAIN = (Tensor, Parameter)
"""The tensor classes of torch itself."""

_MISSING_KERNEL_WORDS = (
    "Could not run '",
    "not implemented for '",
    "no kernel",
    "only supported on CUDA",
    "PyTorch is not linked with",
)
"""Words in torch's errors that mean that an operation has no CPU kernel."""


_ON_ONE_DEVICE = (
    *("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "__add__", "__sub__", "__mul__", "__truediv__"),
    *("__radd__", "__rsub__", "__rmul__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__matmul__", "matmul"),
    *("mm", "bmm", "mv", "dot", "addmm", "linear", "conv1d", "conv2d", "mse_loss", "l1_loss", "cross_entropy"),
)
"""Functions whose tensors have to be on one device, by their names in Tensor, torch and torch.nn.functional."""


class VirtualGpuMode(TorchFunctionMode):
    """Simulates virtual GPUs in the thread that enters the mode."""

    def __init__(self, gpus: VirtualDevices) -> None:
        super().__init__()
        self._gpus = gpus
        self._constructors = frozenset(default_device._device_constructors())
        tensor: Any = Tensor
        owners = (tensor, torch, torch.nn.functional)
        named = [getattr(owner, name, None) for owner in owners for name in _ON_ONE_DEVICE]
        self._on_one_device = frozenset(filter(None, named))
        self._handlers: dict[Any, Handler] = {
            tensor.device.__get__: self._handle_device,
            tensor.is_cuda.__get__: lambda f, args, kwargs: self._visible_gpu(args[0]) is not None or f(*args),
            tensor.is_cpu.__get__: lambda f, args, kwargs: self._visible_gpu(args[0]) is None and f(*args),
            tensor.get_device: lambda f, args, kwargs: f(*args) if (gpu := self._visible_gpu(args[0])) is None else gpu,
            tensor.cuda: self._handle_cuda,
            tensor.cpu: lambda f, args, kwargs: self._label_moved_tensor(args[0], f(*args, **kwargs), None, named=True),
            tensor.to: self._handle_to,
            tensor.type: self._handle_type,
            tensor.data.__set__: self._handle_set_data,
            tensor.__reduce_ex__: _reduce_without_label,
            tensor.__repr__: self._handle_repr,
            **{kernel: _make_handler_calling(form) for kernel, form in sync_batch_norm.KERNELS.items()},
            scaled_dot_product_attention: _make_handler_calling(_compute_attention),
        }

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch on the CPU, and label its result with the GPU of its arguments."""
        kwargs = kwargs or {}
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(func, args, kwargs)
        if kwargs and kwargs.get("device") is not None:
            return self._create_on(kwargs["device"], func, args, kwargs)
        if default_device.CURRENT_DEVICE is not None and func in self._constructors:
            return self._create_on(default_device.CURRENT_DEVICE, func, args, kwargs)
        label = gpu_labels.first_gpu_number(args)
        if label is None and kwargs:
            label = gpu_labels.first_gpu_number(kwargs.values())
        if label is not None and func in self._on_one_device:
            _check_devices(args)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if label is not None and (problem := _missing_kernel_error(func, error)) is not None:
                raise problem from error
            raise
        if label is not None:
            is_written_in_place = isinstance(result, Tensor) and gpu_labels.is_surely_on_cpu(result)
            if not is_written_in_place:  # it stays on the CPU, as by copy_
                gpu_labels.put_results_on_gpu(result, label)
        elif func in self._constructors and not _holds_tensor((*args[:1], *kwargs.values())):
            gpu_labels.put_on_cpu(result)
        return result

    def _create_on(self, device: Any, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        label = self._gpus.label_for(device)
        if label is None:
            result = func(*args, **{**kwargs, "device": device})
            if device == "cpu":  # as a program names it; torch.load has an object, and reads tensors of GPUs, too
                gpu_labels.put_on_cpu(result)
            return result
        result = func(*args, **{**kwargs, "device": CPU})
        gpu_labels.put_results_on_gpu(result, label)
        return result

    def _label_moved_tensor(self, tensor: Tensor, result: Tensor, label: int | None, *, named: bool = False) -> Tensor:
        """Return the result of moving a tensor to a GPU: the tensor itself if nothing changes, else a labelled copy.

        `named`: the program names the device to which it moves.
        """
        if result is tensor and gpu_labels.gpu_number_of(tensor) != label:
            result = tensor.clone(memory_format=torch.preserve_format)
        if result is not tensor:
            gpu_labels.put_on_gpu(result, label)
            if label is None and (named or gpu_labels.is_surely_on_cpu(tensor)):
                gpu_labels.put_on_cpu(result)
        return result

    def _handle_cuda(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        return self._label_moved_tensor(args[0], args[0], self._gpus.index_of(device))

    def _handle_to(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Replace `Tensor.to`: keep the tensor on the CPU, and label it with the GPU that the arguments name."""
        tensor, label, named = args[0], gpu_labels.gpu_number_of(args[0]), False
        rest = []
        for value in args[1:]:
            if isinstance(value, (str, torch.device)):
                label, named = self._gpus.label_for(value), str(value) == "cpu"
                value = CPU if label is not None else value
            elif isinstance(value, Tensor):
                label = gpu_labels.gpu_number_of(value)
            rest.append(value)
        if (device := kwargs.get("device")) is not None:
            label, named = self._gpus.label_for(device), str(device) == "cpu"
            kwargs = {**kwargs, "device": CPU if label is not None else device}
        elif isinstance(other := kwargs.get("other"), Tensor):
            label = gpu_labels.gpu_number_of(other)
        return self._label_moved_tensor(tensor, func(tensor, *rest, **kwargs), label, named=named)

    def _handle_type(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, wanted = args[0], args[1] if len(args) > 1 else kwargs.get("dtype")
        label = gpu_labels.gpu_number_of(tensor)
        if wanted is None:
            name = str(func(tensor))
            return name if label is None else name.replace("torch.", "torch.cuda.", 1)
        if isinstance(wanted, str):
            label = self._gpus.current if ".cuda." in wanted else None
            wanted = wanted.replace(".cuda.", ".")
        return self._label_moved_tensor(tensor, func(tensor, wanted), label)

    def _handle_set_data(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func(*args, **kwargs)
        gpu_labels.put_on_gpu(args[0], gpu_labels.gpu_number_of(args[1]))

    def _handle_device(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        label = self._visible_gpu(args[0])
        return func(*args) if label is None else torch.device("cuda", label)

    def _handle_repr(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        with self:
            return str(torch._tensor_str._str(args[0], **kwargs))

    def _visible_gpu(self, tensor: Tensor) -> int | None:
        """Return the number of the GPU that a program sees for a tensor. A DTensor made by C++ has no label: its mesh's
        device counts."""
        if (label := tensor.__dict__.get(gpu_labels.LABEL)) is not None:
            return label  # type: ignore[no-any-return]
        spec = None if type(tensor) in _PLAIN else getattr(tensor, "_spec", None)
        return self._gpus.current if spec is not None and spec.mesh.device_type == "cuda" else None


def _check_devices(arguments: Iterable[Any]) -> None:
    """Raise CUDA's error if the tensors are known to be on two devices. A number on the CPU goes with any device."""
    devices = []
    for value in arguments:
        if isinstance(value, Tensor):
            if (label := gpu_labels.gpu_number_of(value)) is not None:
                devices.append(f"cuda:{label}")
            elif value.dim() and gpu_labels.is_surely_on_cpu(value):
                devices.append("cpu")
    other = next((device for device in devices if device != devices[0]), None)
    if other is not None:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted((devices[0], other), reverse=True))}!"
        )


def _holds_tensor(values: Iterable[Any]) -> bool:
    """Return whether one of the arguments is a tensor, or begins with one."""
    for value in values:
        while isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, Tensor):
            return True
    return False


def _reduce_without_label(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pickle a tensor as a CPU tensor, so that saved files can be read without ddpsim."""
    tensor = args[0]
    known = tensor.__dict__.keys() & {gpu_labels.LABEL, gpu_labels.ON_CPU}
    marks = {name: tensor.__dict__.pop(name) for name in known}
    try:
        return func(*args, **kwargs)
    finally:
        tensor.__dict__.update(marks)


def _make_handler_calling(form: Function) -> Handler:
    """Return a function that calls another function, and gives the result the GPU label of the arguments."""

    def handle(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        label = gpu_labels.first_gpu_number([*args, *kwargs.values()])
        result = form(*args, **kwargs)
        if label is not None:
            gpu_labels.put_results_on_gpu(result, label)
        return result

    return handle


def _compute_attention(query: Any, *arguments: Any, **options: Any) -> Any:
    """Compute `scaled_dot_product_attention`; for DTensors by matrix products and a softmax.

    DTensor can shard the fused kernels of GPUs, but not that of the CPU. The mask that torch makes for `is_causal` is a
    plain tensor, equal on all ranks.
    """
    if not hasattr(query, "_spec"):
        return scaled_dot_product_attention(query, *arguments, **options)
    from torch.distributed.tensor.experimental import implicit_replication

    with sdpa_kernel(SDPBackend.MATH), implicit_replication():
        return scaled_dot_product_attention(query, *arguments, **options)


def _missing_kernel_error(func: Function, error: RuntimeError) -> NotImplementedError | None:
    """Return a clearer error if torch's error means that the CPU has no kernel for a function, else None."""
    text = str(error)
    if not any(words in text for words in _MISSING_KERNEL_WORDS):
        return None
    name = resolve_name(func) or getattr(func, "__name__", repr(func))
    reason = text.splitlines()[0].strip()
    return NotImplementedError(
        f"{name} has no form on the CPU, where virtual GPUs compute ({reason}): take another dtype or implementation"
    )
