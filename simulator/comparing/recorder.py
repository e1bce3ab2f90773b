"""Records a training inside its ranks: samples, outputs of modules, losses, gradients, parameters, optimizer state.

Two things that one rank cannot repeat are switched off, and noted: dropout, and the batch statistics of BatchNorm
without synchronisation.
"""

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, distributed
from torch.nn import Module, SyncBatchNorm, functional, utils
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpsim.simulator.comparing.batches import BatchRecords
from ddpsim.simulator.comparing.records import (
    BY_HAND,
    COPIES,
    COPY,
    DIGEST_BYTES,
    UNNAMED,
    Entry,
    Inputs,
    Kind,
    Part,
    Recording,
    RecordWriter,
)
from ddpsim.simulator.model_tensors import (
    is_placed,
    local_part,
    name_without_wrappers,
    offsets_in_whole,
    optimizer_state_of,
    parameter_ids_of,
)
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.late_modules import ImportWatch, call_with_module
from ddpsim.simulator.runtime.replaced import ReplacedAttributes, Replacement
from ddpsim.simulator.transport.modes import suspend_modes

_MOST_ELEMENTS = 1 << 22
"""The size of an output up to which it is recorded."""


class _RankTraining:
    """What is known of the training of one rank."""

    def __init__(self, writer: RecordWriter) -> None:
        self.writer = writer
        self.paths: dict[int, tuple[ref[Module], str]] = {}
        """The names of modules by id."""
        self.roots: dict[str, ref[Module]] = {}
        """The modules that are part of no other, by the prefix of their names."""
        self.steps = 0
        self.forwards = self.evaluations = 0
        """How many forwards of modules were made with gradients, and without in evaluation."""
        self.is_stepping = False
        self.random: Tensor | None = None
        """The state of the random generator when the latest forward began."""
        self.given: Any = ()
        """The arguments of that forward, as the program gave them."""
        self.noted: set[str] = set()
        self.moved: set[int] = set()
        """The ids of parameters that were moved; a model may later be found to be part of another."""
        self.evaluated: dict[int, ref[Module]] = {}
        """By id, the modules that have run without gradients since the latest training forward."""
        self.versions: dict[int, int] = {}
        """By the id of a buffer, how often it had been written when it was recorded."""
        self.stepped: set[int] = set()
        """The ids of parameters that optimizers step."""
        self.copies: dict[int, tuple[ref[Tensor], str]] = {}
        """The parameters that optimizers step and no model has, with a name each, by id."""
        self.written = 0
        """How many steps had been made when the parameters were recorded that no optimizer steps."""
        self.sums: dict[int, tuple[float, float]] = {}
        """By the id of a parameter, sums of its elements at the start."""
        self.order: dict[str, int] = {}
        """By the name of a parameter, numbers that are in the order in which backward gives gradients."""
        self.events = 0
        self.by_hand: set[int] = set()
        """The ids of parameters that have changed, and that no optimizer steps."""
        self.random_before: Tensor | None = None
        """The state of the random generator at the latest forward of an evaluation; None in training."""

    def note_order(self, name: str, sign: int) -> None:
        """Note that a parameter has its gradient (sign 1), or that its module has run (-1), the last one first."""
        self.events += 1
        self.order[name] = sign * self.events

    def place_in_backward(self, name: str) -> tuple[int, bool]:
        """Return a key by which parameters are sorted in the order of backward; a bias goes behind its weight."""
        weight = f"{name.removesuffix('bias')}weight"
        return self.order.get(weight if name.endswith("bias") else name, self.order.get(name, 0)), name.endswith("bias")

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters of the models that have run, without those of lazy modules that have not."""
        for prefix, root in self.roots.items():
            if (module := root()) is not None:
                for name, each in module.named_parameters():
                    if not torch.nn.parameter.is_lazy(each):
                        yield prefix + name_without_wrappers(name), each

    def stepped_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters of the models that have run, and the copies that optimizers step."""
        yield from self.named_parameters()
        yield from ((name, copy) for known, name in self.copies.values() if (copy := known()) is not None)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers of floating numbers that have changed, of the models that have run."""
        for prefix, root in self.roots.items():
            for name, each in module.named_buffers() if (module := root()) is not None else ():
                is_new = self.versions.get(id(each)) != each._version
                self.versions[id(each)] = each._version
                if is_new and each.is_floating_point() and each.numel() <= _MOST_ELEMENTS:
                    yield prefix + name_without_wrappers(name), each


class TrainingRecorder:
    """Records the training of the ranks that run in this process."""

    def __init__(self, host: Host, recording: Recording, ranks: Iterable[int]) -> None:
        self._host = host
        self._recording = recording
        folder = Path(recording.folder)
        self._ranks = {rank: _RankTraining(RecordWriter(folder / f"{rank}.records")) for rank in ranks}

        self._batches = BatchRecords(
            host,
            recording,
            self._ranks,
            is_recording=lambda: self._recording_rank() is not None,
            forwards_of=lambda rank: (self._ranks[rank].forwards, self._ranks[rank].evaluations),
        )
        self._hooks: list[Any] = []
        self._replaced = ReplacedAttributes()
        self._watch: ImportWatch | None = None

    def start(self) -> list[Replacement]:
        """Install the hooks, and return the replacements of functions that are recorded, or switched off."""
        self._hooks = [
            register_module_forward_pre_hook(self._module_forward_begins),
            register_module_forward_hook(self._module_forward_ended, with_kwargs=True),
            register_optimizer_step_pre_hook(self._optimizer_step_begins),
        ]
        if self._recording.ranks:
            self._watch = call_with_module("accelerate.scheduler", self._step_schedulers_as_on_ranks)
        return [
            *self._batches.replacements(),
            (Tensor, "backward", self._wrap_backward),
            (utils, "clip_grads_with_norm_", self._wrap_clip),  # programs may call it with a norm of their own
            (utils.clip_grad, "_clip_grads_with_norm_", self._wrap_clip),
            (functional, "dropout", self._wrap_dropout),
            (functional, "scaled_dot_product_attention", self._wrap_attention),
            *((distributed, name, self._wrap_reduction) for name in ("all_reduce", "reduce")),
        ]

    def close(self) -> None:
        """Remove the hooks, and close the files."""
        if self._watch is not None:
            self._watch.uninstall()
        self._replaced.restore_attributes()
        for hook in self._hooks:
            hook.remove()
            _global_forward_hooks_with_kwargs.pop(
                hook.id, None
            )  # torch's handle leaves it, and torch.compile would warn
        for each in self._ranks.values():
            each.writer.close()
        self._batches.close()

    # --- forward ------------------------------------------------------------------------------------------------------

    def _module_forward_begins(self, module: Module, arguments: Any) -> Any:
        """Record that any module begins its forward: torch's global hook. Returns moved inputs, or None."""
        mine = self._recording_rank()
        if mine is not None and not torch.is_grad_enabled() and not module.training:
            mine.evaluations += 1
            self._record_evaluation(mine, module, arguments)
        if mine is None or not torch.is_grad_enabled() or torch._C._current_graph_task_id() >= 0:
            return None
        mine.forwards += 1
        mine.random_before = None
        mine.evaluated.clear()
        known = mine.paths.get(id(module))
        if known is None or known[0]() is not module:
            if next(module.parameters(), None) is None:
                return None
            self._record_root(mine, module)
        is_plain_norm = isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm)
        if is_plain_norm and module.training and self._recording.freezes_batch_norm:
            module.training = False
            self._note(mine, "BatchNorm without synchronisation uses its running statistics")
        if mine.written < mine.steps and not isinstance(module, DistributedDataParallel):  # it sends buffers first
            self._record_written(mine)
        if any(root() is module for root in mine.roots.values()):
            mine.random, mine.given = torch.get_rng_state(), arguments
            if self._recording.moved_by and not any(each.grad_fn for each in _tensors_in(arguments)):
                return tuple(_moved(each, f"input {i}", self._recording.moved_by) for i, each in enumerate(arguments))
        return None

    def _module_forward_ended(self, module: Module, arguments: Any, options: Any, output: Any) -> None:
        """Record the output of any module, and for a model the samples: torch's global hook."""
        mine = self._recording_rank()
        if mine is None or not torch.is_grad_enabled() or torch._C._current_graph_task_id() >= 0:
            return
        known = mine.paths.get(id(module))
        if known is None or known[0]() is not module:
            return
        for name in module._parameters:  # those of FSDP get their gradients from its hooks, not by backward
            mine.note_order(f"{known[1]}.{name}", -1)
        tensor = next((each for each in _tensors_in(output) if each.is_floating_point()), None)
        if tensor is not None and tensor.numel() <= _MOST_ELEMENTS:
            mine.writer.write(_tensor_entry(Kind.OUTPUT, known[1], tensor))
        prefix = next((prefix for prefix, root in mine.roots.items() if root() is module), None)
        if prefix is not None:
            inputs, mine.given = [*_tensors_in((mine.given, options))], ()
            is_inside = any(each.grad_fn is not None for each in inputs)
            mine.writer.write(Entry(Kind.SAMPLES, prefix, None if is_inside else _inputs_of(inputs)))

    def _record_root(self, mine: _RankTraining, module: Module) -> None:
        """Record a model that runs for the first time, with its parameters."""
        inside = {id(each) for each in module.modules()}
        for prefix, root in list(mine.roots.items()):
            if root() is None or id(root()) in inside:
                del mine.roots[prefix]
        prefix, number = "", 1
        while prefix in mine.roots:
            prefix, number = f"{type(module).__name__}{number if number > 1 else ''}:", number + 1
        mine.roots[prefix] = ref(module)
        for name, each in module.named_modules():
            mine.paths[id(each)] = ref(each), prefix + (name_without_wrappers(name).rstrip(".") or type(each).__name__)
        types = {base.__name__ for each in module.modules() for base in type(each).__mro__}
        for name, parameter in mine.named_parameters():
            if name.startswith(prefix):
                self._record_start(mine, Kind.START, name, parameter, is_hooked="FSDPModule" not in types)

    def _record_start(
        self, mine: _RankTraining, kind: Kind, name: str, parameter: Tensor, *, is_hooked: bool = True
    ) -> None:
        """Record a parameter's values at the start. FSDP runs the hooks of a unit in no order of backward."""
        mine.writer.write(_tensor_entry(kind, name, parameter))
        if parameter.requires_grad and is_hooked:
            parameter.register_post_accumulate_grad_hook(lambda _: mine.note_order(name, 1))
        if self._recording.moved_by and id(parameter) not in mine.moved:
            mine.moved.add(id(parameter))
            with torch.no_grad():
                local = local_part(parameter)
                local.copy_(_moved(local, name, self._recording.moved_by))
        mine.sums[id(parameter)] = _sums(parameter)

    def _record_written(self, mine: _RankTraining) -> None:
        """Record what the program writes after a step: buffers, and the parameters that change and that no optimizer
        steps. Check that all copies of parameters are in them."""
        mine.written = mine.steps
        for name, each in mine.named_buffers():
            mine.writer.write(_tensor_entry(Kind.BUFFER, name, each))
        found: dict[torch.dtype, list[Tensor]] = {}
        for name, each in mine.named_parameters():
            if id(each) in mine.stepped:
                continue
            if not mine.copies and id(each) not in mine.by_hand and _sums(each) != mine.sums.get(id(each), _sums(each)):
                mine.by_hand.add(id(each))
            if mine.copies or id(each) in mine.by_hand or (mine.by_hand and each.requires_grad):
                mine.writer.write(_tensor_entry(Kind.WRITTEN, name, each))
                found.setdefault(each.dtype, []).append(local_part(each).reshape(-1))
        if mine.by_hand:
            self._note(mine, BY_HAND)
        whole = [torch.cat([*each, each[0].new_zeros(1)]) for each in found.values()]  # a flat copy may be padded
        copies = [copy for known, _ in mine.copies.values() if (copy := known()) is not None]
        if not all(any(torch.isin(local_part(copy).to(own.dtype), own).all() for own in whole) for copy in copies):
            self._note(mine, UNNAMED)

    def _record_evaluation(self, mine: _RankTraining, module: Module, arguments: Any) -> None:
        """Record the samples that a model is evaluated with and, for the first ones, its parameters."""
        known = mine.evaluated.get(id(module))
        if known is None or known() is not module:
            inside = list(module.modules())
            mine.evaluated |= {id(each): ref(each) for each in inside[1:]}
            tensors = [*module.named_parameters(), *module.named_buffers()]
            for name, each in tensors if mine.random_before is None else ():
                mine.writer.write(_tensor_entry(Kind.EVALUATED, name_without_wrappers(name), each))
        else:
            return
        mine.random_before = torch.get_rng_state()
        mine.writer.write(Entry(Kind.SEEN, value=_inputs_of([*_tensors_in(arguments)])))

    def _wrap_reduction(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def reduction(*arguments: Any, **options: Any) -> Any:
            mine = self._recording_rank()
            before = None if mine is None else mine.random_before
            if mine is not None and before is not None and torch.equal(before, torch.get_rng_state()):
                tensor = arguments[0] if arguments else options.get("tensor")
                if isinstance(tensor, Tensor) and not tensor.is_complex():
                    mine.writer.write(Entry(Kind.METRIC, str(current_user_site()), float(tensor.double().sum())))
            return original(*arguments, **options)

        return reduction

    # --- backward and step --------------------------------------------------------------------------------------------

    def _wrap_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def backward(tensor: Tensor, *arguments: Any, **options: Any) -> None:
            mine = self._recording_rank()
            if mine is not None and mine.roots:
                self._record_random_draws(mine)
                if tensor.numel() == 1 and not is_placed(tensor):
                    mine.writer.write(Entry(Kind.LOSS, str(current_user_site()), float(tensor.detach())))
            original(tensor, *arguments, **options)

        return backward

    def _record_random_draws(self, mine: _RankTraining) -> None:
        if mine.random is not None and not torch.equal(mine.random, torch.get_rng_state()):
            mine.writer.write(Entry(Kind.RANDOM, str(current_user_site())))
        mine.random = None

    def _wrap_clip(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def clip(parameters: Any, max_norm: float, total_norm: Any, *arguments: Any, **options: Any) -> None:
            mine = self._recording_rank()
            if mine is not None and mine.roots:
                parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
                self._record_gradients(mine, Kind.UNCLIPPED, parameters)
                if not is_placed(total_norm) or total_norm.device_mesh.size() == 1:  # else it is not reduced yet
                    mine.writer.write(Entry(Kind.NORM, str(current_user_site()), float(local_part(total_norm))))
            original(parameters, max_norm, total_norm, *arguments, **options)

        return clip

    def _wrap_dropout(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
            mine = self._recording_rank()
            if mine is None or not training or not p:
                return original(input, p, training, inplace)
            self._note(mine, "dropout is off")
            return original(input, p, False, inplace)

        return dropout

    def _wrap_attention(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(original)
        def scaled_dot_product_attention(
            query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *more: Any, **options: Any
        ) -> Tensor:
            if dropout_p and (mine := self._recording_rank()) is not None:
                self._note(mine, "dropout is off")
                dropout_p = 0.0
            return original(query, key, value, attn_mask, dropout_p, *more, **options)

        return scaled_dot_product_attention

    def _optimizer_step_begins(self, optimizer: Any, *_: Any) -> None:
        """Record the gradients that an optimizer is about to use; steps inside a step are not recorded."""
        mine = self._recording_rank()
        if mine is None or not mine.roots or mine.is_stepping:
            return
        mine.is_stepping = True
        self._record_random_draws(mine)
        groups = optimizer.param_groups
        parameters = [each for group in groups for each in group["params"]]
        mine.stepped |= parameter_ids_of(optimizer)
        self._record_gradients(mine, Kind.GRADIENT, parameters)
        if mine.copies:
            for name, each in mine.named_parameters():
                if id(each) not in mine.stepped and each.grad is not None:
                    mine.writer.write(_tensor_entry(Kind.OWN_GRADIENT, name, each.grad))
        for number, group in enumerate(groups):
            mine.writer.write(Entry(Kind.RATE, f"group {number}", float(group.get("lr", 0.0))))

    def optimizer_step_ended(self, rank: int, optimizer: Any) -> None:
        """Record the parameters and the state of an optimizer that has stepped."""
        mine = self._ranks.get(rank)
        if mine is None or not (mine.roots or not self._batches.writers[rank].has_room):
            return
        mine.is_stepping = False
        if is_recording := self._recording_rank() is not None:
            own = parameter_ids_of(optimizer)  # a rank may get other parameters from the ranks that step them
            parameters = [pair for pair in mine.stepped_parameters() if id(pair[1]) in own]
            of_kinds = (
                (Kind.PARAMETER, parameters),
                (Kind.STATE, optimizer_state_of(parameters, optimizer)),
                (Kind.BUFFER, mine.named_buffers()),
            )
            for kind, tensors in of_kinds:
                for name, each in tensors:
                    mine.writer.write(_tensor_entry(kind, name, each))
        mine.steps += 1
        is_whole = is_recording and mine.writer.has_room
        mine.writer.write(Entry(Kind.STEP, str(current_user_site()), is_whole), always=True)
        if mine.steps == 1:
            mine.writer.end_first_step()

    def _record_gradients(self, mine: _RankTraining, kind: Kind, parameters: Sequence[Tensor]) -> None:
        names = {id(parameter): name for name, parameter in mine.stepped_parameters()}
        for each in sorted(parameters, key=lambda each: mine.place_in_backward(names.get(id(each), ""))):
            if each.grad is not None:
                if id(each) not in names:
                    name = names[id(each)] = f"{COPY}{len(mine.copies)}"
                    mine.copies[id(each)] = ref(each), name
                    self._note(mine, COPIES)
                    self._record_start(mine, Kind.COPY, name, each)
                mine.writer.write(_tensor_entry(kind, names[id(each)], each.grad))

    def _step_schedulers_as_on_ranks(self, module: Any) -> None:
        """Let accelerate's schedulers step as often as on the ranks: once for each batch of a process. A batch of the
        reference is the batches of all ranks."""
        original = module.AcceleratorState

        def state() -> Any:
            mine, ranks = self._recording_rank(), self._recording.ranks
            if mine is not None and original().num_processes != ranks:
                text = f"accelerate steps a scheduler {ranks} times a step, once for each rank: so does the reference"
                self._note(mine, text)
            return SimpleNamespace(num_processes=ranks)

        self._replaced.set_attribute(module, "AcceleratorState", state)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _recording_rank(self) -> _RankTraining | None:
        """Return the running rank's record; None outside ranks, in compilations, and once enough was recorded."""
        if torch.compiler.is_compiling() or not self._host.is_rank_thread():
            return None
        rank = self._host.running_thread.rank
        mine = self._ranks.get(rank)
        if mine is None or mine.steps >= self._recording.most_steps:
            return None
        return mine if mine.writer.has_room and self._batches.writers[rank].has_room else None

    def _note(self, mine: _RankTraining, text: str) -> None:
        if text not in mine.noted:
            mine.noted.add(text)
            mine.writer.write(Entry(Kind.NOTE, text))


def _tensor_entry(kind: Kind, name: str, tensor: Any) -> Entry:
    """Return the entry of a tensor, of a DTensor with the place of its local part."""
    part = None
    if is_placed(tensor):
        name += " (partial)" if any(each.is_partial() for each in tensor.placements) else ""
        part = Part(tuple(tensor.shape), offsets_in_whole(tensor))
    return Entry(kind, name, _array(tensor), str(tensor.dtype).removeprefix("torch."), part)


def _array(tensor: Tensor) -> Any:
    with suspend_modes():  # a mode of selective checkpointing expects what it sees again in the backward
        values = local_part(tensor).cpu()
        values = torch.view_as_real(values) if values.is_complex() else values
        is_narrow = values.is_floating_point() and values.dtype not in (torch.float32, torch.float64)
        return np.array((values.float() if is_narrow else values).numpy())  # a copy: the program goes on


def _sums(tensor: Tensor) -> tuple[float, float]:
    local = local_part(tensor).detach()
    return float(local.sum(dtype=torch.float64)), float(local.abs().sum(dtype=torch.float64))


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value, in order, through tuples, lists and mappings."""
    if isinstance(value, Tensor):
        if not is_placed(value):
            yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors_in(each)
    elif hasattr(value, "values") and callable(value.values):
        for each in value.values():
            yield from _tensors_in(each)


def _inputs_of(tensors: Sequence[Tensor]) -> Inputs:
    arrays = [_array(each) for each in tensors if each.dim()]
    rows = [each for each in arrays if len(each) == len(arrays[0])]
    digests = [b"".join(_digest([row[number]]) for row in rows) for number in range(len(rows[0]) if rows else 0)]
    columns = [i for i, each in enumerate(arrays) if len(each) == len(arrays[0])]
    form = (str(arrays[0].dtype), arrays[0].ndim) if arrays else ("", 0)
    in_order = [each.dtype.kind == "i" and bool((np.diff(each) > 0).all()) and each.size > 1 for each in arrays]
    return Inputs(digests, [_total(each) for each in arrays], form, in_order, columns)


def _total(values: Any) -> tuple[int, int]:
    """Return a sum of hashes of the elements, and their number: the parts of a tensor add up to the whole."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):  # the finalizer of MurmurHash3
        bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(factor)
    return int((bits ^ (bits >> np.uint64(33))).sum(dtype=np.uint64)), int(bits.size)


def _digest(values: Iterable[Any]) -> bytes:
    hashed = blake2b(digest_size=DIGEST_BYTES)
    for each in values:
        hashed.update(np.ascontiguousarray(each).tobytes())
    return hashed.digest()


def _moved(value: Any, name: str, by: float) -> Any:
    """Return a tensor whose elements are moved up or down by one rounding; equal names have equal directions."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or is_placed(value):
        return value
    with suspend_modes():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        signs = torch.randint(0, 2, value.shape, generator=generator).to(value.device, value.dtype) * 2 - 1
        return value + value.detach() * signs * by
