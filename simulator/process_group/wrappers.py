"""DDP wrappers: which there are on each rank, which step each is at, and what its buckets hold.

torch's DistributedDataParallel runs as it is. While an execution runs, four of its functions tell where it stands:
`_ddp_init_helper` (there is a new Reducer), `Reducer.prepare_for_forward` and `prepare_for_backward` (the first and
the last that a synchronising forward does) and `_register_comm_hook` (so that what a communication hook calls is known
to be its bucket's).

Wrappers are numbered within their process group, because its members have to construct them in the same order; a
wrapper on another group, which only some of them have, shifts nothing.

Another engine is numbered at its first call (phases.py). check="replicas" compares its replicas if the wrapper has the
inner module as `module`, and knows more with a method `__ddp_progress__()` of the wrapper's, which returns a dict with
any of these keys. It is asked at each of the wrapper's calls that belongs to a step, and where replicas are compared:

- `step`: how many of its reductions have begun, those that it shadowed before the last end of a join included;
- `joined`: whether it shadows the others because its rank ran out of input;
- `aligned_step`: the step at which a join ended last;
- `reduced`: the names of the parameters that are in a bucket;
- `unreduced`: the number, and the parameters' names, of the first bucket that the step under way has not reduced;
- `buffers`: by name, when a buffer is synchronised that is an exception: "before" or "after" a forward, or "never".

Note [Steps]. A wrapper's step is the number of its synchronising forward, from 1. A forward in evaluation mode counts
only once a backward follows it: evaluating without no_grad on one rank, through a wrapper without buffers, disturbs
nobody. For another engine, which knows of backwards, it is the number of its reduction. Under join the steps of ranks
that ran out stand still, and all are even again at its end (`align`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from math import prod
from types import FrameType
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, ref

from simulator.calls import Signature

PROGRESS = "__ddp_progress__"

WrapperKey = tuple[str, int]
"""A wrapper on all its ranks: the label of its process group, and its number there."""


class Bucket(NamedTuple):
    """What one bucket of a Reducer holds."""

    elements: int
    parameters: tuple[str, ...]


class Wrapper:
    """One rank's DDP instance."""

    __slots__ = (
        "_buckets",
        "_module",
        "_names",
        "_next_bucket",
        "_observers",
        "_reduced",
        "_uncounted_forward",
        "_unreduced",
        "aligned_step",
        "chosen_buffers",
        "is_joined",
        "key",
        "rank",
        "step",
        "tells_steps",
    )

    def __init__(self, key: WrapperKey, rank: int, module: Any, observers: Sequence[Observer]) -> None:
        self.key = key
        self.rank = rank
        self.step = 0
        """See Note [Steps]."""
        self.tells_steps = False
        """Another engine's, which says itself what step a call belongs to, if any."""
        self.is_joined = False
        """Shadows the others because its rank ran out of input."""
        self.aligned_step = 0
        """The step at which join ended last."""
        self.chosen_buffers: Mapping[str, str] = {}
        """When buffers are synchronised that another engine treats as exceptions: "before", "after" or "never"."""
        self._module = ref(module)
        self._buckets: Sequence[Bucket] = ()
        self._reduced: Collection[str] = ()
        self._unreduced: tuple[int, Sequence[str]] | None = None
        """Of another engine: the first bucket not reduced."""
        self._observers = observers
        self._names: dict[int, str] = {}
        """By id of the parameter; they live as long as the module."""
        self._next_bucket = 0
        self._uncounted_forward = False

    @property
    def is_running(self) -> bool:
        """True inside a forward through the wrapper, which is on the stack then."""
        module = self.module
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "forward" and frame.f_locals.get("self") is module is not None:
                return True
            frame = frame.f_back
        return False

    @property
    def number(self) -> int:
        """Its number among the wrappers of its process group."""
        return self.key[1]

    @property
    def module(self) -> Any:
        """The DDP instance; None once it is gone."""
        return self._module()

    @property
    def inner(self) -> Any:
        """The module that it wraps; None once that is gone, or if it wraps none."""
        return getattr(self.module, "module", None)

    def launches(self, bucket: int) -> None:
        """The Reducer launches a bucket."""
        self._next_bucket = bucket + 1
        if self._uncounted_forward:
            self._uncounted_forward = False
            self.step += 1

    def begin_step(self, *, is_training: bool) -> None:
        """A synchronising forward begins: the Reducer's next call is for bucket 0."""
        self.is_joined = False
        self._next_bucket = 0
        self._uncounted_forward = not is_training
        self.step += is_training
        self._tell()

    def look(self, told_step: int = 0) -> None:
        """Ask another engine how far its wrapper is; `told_step` is what its call says, if it does."""
        if not self._observers:
            return
        progress: Mapping[str, Any] = getattr(self.module, PROGRESS, dict)()
        before, self.step = self.step, progress.get("step", max(self.step, told_step))
        self.is_joined = progress.get("joined", self.is_joined)
        self.aligned_step = progress.get("aligned_step", self.aligned_step)
        self.chosen_buffers = progress.get("buffers", self.chosen_buffers)
        self._reduced = progress.get("reduced", self._reduced)
        self._unreduced = progress.get("unreduced")
        if self.step > before:
            self._tell()

    def bucket_for(self, signature: Signature) -> int | None:
        """The bucket that the Reducer's next all_reduce is for; None if it does not look like one.

        Buckets are launched in order. One that no rank used may be left out (`skip_all_reduce_unused_params`), so it is
        the next one of this size.
        """
        if signature.operation != "all_reduce":
            return None
        buckets = self._buckets
        if not buckets:
            self.launches(self._next_bucket)
            return self._next_bucket - 1
        elements = prod(signature.shapes[0])
        for index in range(self._next_bucket, len(buckets)):
            if buckets[index].elements == elements:
                self.launches(index)
                return index
        return None

    def parameters(self, bucket: int) -> tuple[str, ...]:
        """The names of the parameters of a bucket, in bucket order."""
        return self._buckets[bucket].parameters if bucket < len(self._buckets) else ()

    def learn_buckets(self) -> None:
        """Ask the Reducer what its buckets hold, once per layout. Not inside backward, where the Reducer is locked."""
        if not self._buckets:
            module = self.module
            if not self._names:
                self._names = {id(parameter): name for name, parameter in module.module.named_parameters()}
            try:
                buckets = module.reducer._get_zeros_like_grad_buckets()
            except RuntimeError:
                return  # a sparse bucket has no tensor until its gradient comes; the names are left out
            self._buckets = [self._bucket(bucket) for bucket in buckets]
            self._reduced = frozenset(name for bucket in self._buckets for name in bucket.parameters)

    def is_reduced(self, parameter: str) -> bool:
        """False if the parameter is in none of the buckets that the Reducer made last."""
        return not self._reduced or parameter in self._reduced

    @property
    def unreduced_bucket(self) -> str:
        """The first bucket that was not launched in this step, in words; "" if all were."""
        index, names = self._unreduced or (self._next_bucket, self.parameters(self._next_bucket))
        return f"bucket {index} ({', '.join(names)})" if names else ""

    def rebuilds(self) -> None:
        """The Reducer makes new buckets."""
        self._buckets = ()

    def _tell(self) -> None:
        for observer in self._observers:
            observer.step_begins(self)

    def _bucket(self, bucket: Any) -> Bucket:
        names = self._names
        return Bucket(bucket.buffer().numel(), tuple([names.get(id(each), "?") for each in bucket.parameters()]))


class Observer(Protocol):
    """Is told what wrappers do."""

    def step_begins(self, wrapper: Wrapper) -> None:
        """A synchronising forward, or another engine's reduction, begins."""


class Wrappers:
    """The wrappers of one execution."""

    def __init__(self, running_rank: Callable[[], int | None]) -> None:
        self._running_rank = running_rank
        """The rank whose thread asks; None outside ranks."""
        self._of_owner: dict[int, Wrapper] = {}
        """By id, which another object may have later; a dictionary of weak keys is slower."""
        self._of_reducer: WeakKeyDictionary[Any, Wrapper] = WeakKeyDictionary()
        self._by_key: dict[WrapperKey, list[Wrapper]] = {}
        self._by_rank: dict[int, list[Wrapper]] = {}
        self._last_hooked: dict[int, Wrapper] = {}
        self._hooks: list[Any] = []
        self.observers: list[Observer] = []

    def of(self, owner: Any) -> Wrapper | None:
        """The wrapper that a DDP instance, or what an engine says stands for one, is; None if it has no process group.

        It is numbered when it is first asked for, which is at its first call or at the end of its construction.
        """
        wrapper = self._of_owner.get(id(owner))
        return wrapper if wrapper is not None and wrapper.module is owner else self._number(owner)

    def of_reducer(self, reducer: Any) -> Wrapper | None:
        """The wrapper that a Reducer belongs to."""
        return self._of_reducer.get(reducer)

    def of_rank(self, rank: int) -> Sequence[Wrapper]:
        """A rank's wrappers, in order of construction."""
        return self._by_rank.get(rank, ())

    def around(self, module: Any) -> Sequence[Wrapper]:
        """The running rank's wrappers that have this as their inner module."""
        rank = self._running_rank()
        return [] if rank is None else [each for each in self._by_rank.get(rank, ()) if each.inner is module]

    def peers(self, key: WrapperKey) -> Sequence[Wrapper]:
        """A wrapper on the ranks that have made it so far."""
        return self._by_key.get(key, ())

    def reducing(self, rank: int) -> Wrapper | None:
        """The wrapper whose Reducer makes the call that comes out of the rank's backward."""
        wrappers = self._by_rank.get(rank, ())
        return wrappers[0] if len(wrappers) == 1 else self._last_hooked.get(rank)

    def align(self, wrapper: Wrapper) -> None:
        """The ranks meet at the end of join: those that ran out are at the others' step from here on."""
        wrapper.step = wrapper.aligned_step = max(peer.step for peer in self._by_key[wrapper.key])
        wrapper.is_joined = False

    # --- replacements -------------------------------------------------------------------------------------------------

    def reducer_maker(self, original: Callable[..., None]) -> Callable[..., None]:
        """For `DistributedDataParallel._ddp_init_helper`, which makes the Reducer, also of a copy."""

        @wraps(original)
        def ddp_init_helper(module: Any, *arguments: Any, **options: Any) -> None:
            original(module, *arguments, **options)
            wrapper = self.of(module)
            if wrapper is not None:
                self._of_reducer[module.reducer] = wrapper
                wrapper.rebuilds()
                self._tell_apart(wrapper)

        return ddp_init_helper

    def forward_marker(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        """For `Reducer.prepare_for_forward`."""

        def prepare_for_forward(reducer: Any) -> None:
            wrapper = self._of_reducer.get(reducer)
            if wrapper is not None:
                wrapper.begin_step(is_training=wrapper.module.training)
            original(reducer)

        return prepare_for_forward

    def backward_marker(self, original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """For `Reducer.prepare_for_backward`, the last that a synchronising forward does."""

        def prepare_for_backward(reducer: Any, outputs: Any) -> None:
            wrapper = self._of_reducer.get(reducer)
            if wrapper is not None:
                wrapper.learn_buckets()
            original(reducer, outputs)

        return prepare_for_backward

    def hook_marker(self, original: Callable[..., None]) -> Callable[..., None]:
        """For `torch.distributed._register_comm_hook`. The function that runs the hook is found on the stack."""

        def register_comm_hook(reducer: Any, state: Any, hook: Callable[[Any, Any], Any]) -> None:
            wrapper = self._of_reducer.get(reducer)

            def communication_hook(state: Any, bucket: Any) -> Any:
                assert wrapper is not None
                wrapper.launches(bucket.index())
                return hook(state, bucket)

            original(reducer, state, hook if wrapper is None else communication_hook)

        return register_comm_hook

    def uninstall(self) -> None:
        """Take the hooks off the parameters again, which a program may have returned."""
        for hook in self._hooks:
            hook.remove()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _number(self, owner: Any) -> Wrapper | None:
        rank = self._running_rank()
        label = getattr(getattr(owner, "process_group", None), "label", None)
        if rank is None or label is None:
            return None
        mine = self._by_rank.setdefault(rank, [])
        wrapper = Wrapper((label, sum(other.key[0] == label for other in mine)), rank, owner, self.observers)
        self._of_owner[id(owner)] = wrapper
        mine.append(wrapper)
        self._by_key.setdefault(wrapper.key, []).append(wrapper)
        return wrapper

    def _tell_apart(self, wrapper: Wrapper) -> None:
        """Note [Whose backward]. With several wrappers on a rank, their parameters say whose Reducer calls next.

        A post-accumulate-grad hook runs just before the Reducer's own hook of the same parameter.
        """
        mine = self._by_rank[wrapper.rank]
        if len(mine) > 1:
            for other in mine if len(mine) == 2 else (wrapper,):
                self._hook_parameters(other)

    def _hook_parameters(self, wrapper: Wrapper) -> None:
        last_hooked, rank = self._last_hooked, wrapper.rank

        def note(parameter: Any) -> None:
            last_hooked[rank] = wrapper

        if wrapper.module is not None:
            for parameter in wrapper.module.parameters():
                if parameter.requires_grad:
                    self._hooks.append(parameter.register_post_accumulate_grad_hook(note))
