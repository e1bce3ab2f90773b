"""The DDP wrappers of each rank, and the replaced functions that report what torch's wrappers do.

torch's DistributedDataParallel is not changed, but four functions are replaced during an execution:
`_ddp_init_helper` (reports a new Reducer), `Reducer.prepare_for_forward` and `prepare_for_backward` (the first and the
last step of a synchronising forward) and `_register_comm_hook` (the calls of a hook belong to its bucket).

Wrappers are numbered within their process group, because its members construct them in the same order. A wrapper of
another engine gets its number at its first call (phases.py).
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from ddpsim.simulator.attribution.wrapper import PROGRESS, DdpWrapper, WrapperObserver
from ddpsim.simulator.diagnosis.rank_errors import FROZEN, REPLACED


class WrapperRegistry:
    """The wrappers of one execution."""

    def __init__(self, running_rank: Callable[[], int | None], latest_step: Callable[[str, int], int]) -> None:
        self.running_rank = running_rank
        """A function that returns the rank of the current thread; None outside ranks."""
        self.latest_step = latest_step
        """A function that returns a wrapper's latest step on any rank, from the group's label and the number there."""
        self._wrappers_by_owner_id: dict[int, DdpWrapper] = {}
        """The wrappers by the id of their DDP instance, which may be reused later; a WeakKeyDictionary is slower."""
        self.of_reducer: WeakKeyDictionary[Any, DdpWrapper] = WeakKeyDictionary()
        """The wrapper to which each Reducer belongs."""
        self._by_rank: dict[int, list[DdpWrapper]] = {}
        self._last_hooked: dict[int, DdpWrapper] = {}
        self._hooks: list[Any] = []
        self.observer: WrapperObserver | None = None

    def wrapper_of(self, owner: Any) -> DdpWrapper | None:
        """Return the record of the wrapper for a DDP instance or another engine's object; None if the object has no
        process group. The wrapper gets its number at its first call or at the end of its construction."""
        wrapper = self._wrappers_by_owner_id.get(id(owner))
        return wrapper if wrapper is not None and wrapper.module is owner else self._number_wrapper(owner)

    def wrappers_of_rank(self, rank: int) -> Sequence[DdpWrapper]:
        """Return a rank's wrappers, in order of construction."""
        return self._by_rank.get(rank, ())

    def wrappers_around(self, module: Any) -> Sequence[DdpWrapper]:
        """Return the running rank's DDP wrappers that wrap the module `module`."""
        rank = self.running_rank()
        return [] if rank is None else [each for each in self._by_rank.get(rank, ()) if each.inner_module is module]

    def reducing_wrapper(self, rank: int) -> DdpWrapper | None:
        """Return the DDP wrapper whose Reducer makes the current call, inside the rank's backward."""
        wrappers = self._by_rank.get(rank, ())
        return wrappers[0] if len(wrappers) == 1 else self._last_hooked.get(rank)

    def observe_backwards(self, wrapper: DdpWrapper) -> None:
        """Tell the observer when a backward of another engine's wrapper ends, as for torch's wrappers."""
        if hasattr(wrapper.module, PROGRESS):
            self._hook_parameters(wrapper)

    def replace_ddp_init_helper(self, original: Callable[..., None]) -> Callable[..., None]:
        """Replace `DistributedDataParallel._ddp_init_helper`, which makes the Reducer of new and copied instances."""

        @wraps(original)
        def ddp_init_helper(module: Any, *arguments: Any, **options: Any) -> None:
            original(module, *arguments, **options)
            wrapper = self.wrapper_of(module)
            if wrapper is not None:
                self.of_reducer[module.reducer] = wrapper
                wrapper.forget_buckets()
                wrapper.note_parameters()
                self._hook_if_needed(wrapper)
                if self.observer is not None:
                    self.observer.wrapper_constructed(wrapper)

        return ddp_init_helper

    def replace_prepare_for_forward(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        """Replace `Reducer.prepare_for_forward`, so that the beginning of a synchronising forward is noticed."""

        def prepare_for_forward(reducer: Any) -> None:
            if (wrapper := self.of_reducer.get(reducer)) is not None:
                wrapper.begin_step(is_training=wrapper.module.training)
            original(reducer)

        return prepare_for_forward

    def replace_prepare_for_backward(self, original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Replace `Reducer.prepare_for_backward`, so that the end of a synchronising forward is noticed."""

        def prepare_for_backward(reducer: Any, outputs: Any) -> None:
            if (wrapper := self.of_reducer.get(reducer)) is not None:
                wrapper.note_forward_returned()
                wrapper.read_bucket_contents()
            original(reducer, outputs)

        return prepare_for_backward

    def replace_register_comm_hook(self, original: Callable[..., None]) -> Callable[..., None]:
        """Replace `torch.distributed._register_comm_hook`, so that the stack shows when a communication hook runs."""

        def register_comm_hook(reducer: Any, state: Any, hook: Callable[[Any, Any], Any]) -> None:
            wrapper = self.of_reducer.get(reducer)
            if wrapper is not None:
                wrapper.has_hook = True

            def communication_hook(state: Any, bucket: Any) -> Any:
                assert wrapper is not None
                wrapper.note_bucket_launch(bucket.index())
                return hook(state, bucket)

            original(reducer, state, hook if wrapper is None else communication_hook)

        return register_comm_hook

    def remove_hooks(self) -> None:
        """Remove ddpsim's autograd hooks from the parameters, because a program may have returned them."""
        for hook in self._hooks:
            hook.remove()

    def _number_wrapper(self, owner: Any) -> DdpWrapper | None:
        rank = self.running_rank()
        label = getattr(getattr(owner, "process_group", None), "label", None)
        if rank is None or label is None:
            return None
        mine = self._by_rank.setdefault(rank, [])
        key = label, sum(other.key[0] == label for other in mine)
        wrapper = DdpWrapper(key, rank, owner, self.observer)
        self._wrappers_by_owner_id[id(owner)] = wrapper
        mine.append(wrapper)
        return wrapper

    def _hook_if_needed(self, wrapper: DdpWrapper) -> None:
        """Add hooks to the parameters of a rank with several wrappers, to know whose Reducer calls next in a backward.

        A post-accumulate-grad hook runs just before the Reducer's hook of the same parameter. A single wrapper needs
        hooks only if late gradients have to be noticed.
        """
        mine = self._by_rank[wrapper.rank]
        if self.observer is not None:
            self._hook_parameters(wrapper)
        elif len(mine) > 1:
            for other in mine if len(mine) == 2 else (wrapper,):
                self._hook_parameters(other)

    def _hook_parameters(self, wrapper: DdpWrapper) -> None:
        last_hooked, rank = self._last_hooked, wrapper.rank

        def note_gradient(parameter: Any) -> None:
            last_hooked[rank] = wrapper
            wrapper.note_gradient(parameter)

        if wrapper.module is not None:
            for parameter in wrapper.module.parameters():
                if parameter.requires_grad:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(note_gradient))


def reducer_parameter_names(wrappers: WrapperRegistry, rank: int, indices: Sequence[int]) -> tuple[str, ...]:
    """Return the names of parameters that an error of torch's Reducer gives as indices; () if the rank has several
    wrappers or its model was deleted.

    A Reducer counts the parameters that required a gradient when the model was wrapped, except ignored ones. FROZEN is
    added to the name of a parameter that no longer requires a gradient, REPLACED to that of one that is another now.
    """
    mine = wrappers.wrappers_of_rank(rank)
    names = _reduced_parameter_names(mine[0]) if len(mine) == 1 else []
    return tuple(names[index] for index in indices) if max(indices, default=0) < len(names) else ()


def _reduced_parameter_names(wrapper: DdpWrapper) -> list[str]:
    if wrapper.module is None:
        return []
    now = dict(wrapper.module.module.named_parameters())
    return [
        name + (REPLACED if id(now.get(name)) != made else FROZEN * (not now[name].requires_grad))
        for name, made in wrapper.counted.items()
    ]
