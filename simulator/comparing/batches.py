"""The batches of a run's data loaders: recorded on each rank, and given to the loaders of the reference.

At its k-th batch a loader of the reference gets the k-th batches of all ranks, joined in the order of ranks; ranks that
read equal batches, as those of tensor parallelism do, count once. Loaders are recognised by the line that iterates over
them. After the last recorded step it gets as many batches, of as many samples, and these are its own.
"""

import functools
import io
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ddpsim.simulator.calls import Site
from ddpsim.simulator.comparing.records import Recording, RecordWriter, read_entries
from ddpsim.simulator.runtime.call_sites import current_user_site
from ddpsim.simulator.runtime.host import Host
from ddpsim.simulator.runtime.replaced import Replacement

_Key = tuple[str, str, int, int]
"""For a batch, the line that iterates and how often it had begun to; for a length, what decides it on one rank."""


class _Given(NamedTuple):
    """What a loader of the reference gives."""

    ranks: Sequence[Sequence[bytes]]
    """The recorded batches of the ranks that read different ones."""
    replicas: int
    """Among how many ranks of the reference the loader's sampler shares the samples."""
    own: int
    """The number of its rank among them."""
    parts: int
    """Among how many ranks the samples were shared."""
    number: int = 0
    """How many batches it has given."""


class BatchRecords:
    """Records the batches of ranks, or gives those that another run recorded."""

    def __init__(
        self,
        host: Host,
        recording: Recording,
        ranks: Iterable[int],
        is_recording: Callable[[], bool],
        forwards_of: Callable[[int], tuple[int, int]],
    ) -> None:
        """`is_recording` tells whether the running rank's steps are still recorded, `forwards_of` how many forwards of
        modules a rank made, with gradients and without."""
        self._host, self._is_recording, self._forwards_of = host, is_recording, forwards_of
        self._folder = os.path.join(os.getcwd(), "")
        self._times: Counter[tuple[int, Site]] = Counter()
        self._keys: WeakKeyDictionary[Any, _Key] = WeakKeyDictionary()
        self._given: WeakKeyDictionary[Any, _Given] = WeakKeyDictionary()
        self._parts = 1
        """Among how many ranks the latest loader shared its samples."""
        self._replayed = _read_batches(Path(recording.batches_of)) if recording.batches_of else None
        self._passes = passes = _read_passes(Path(recording.batches_of)) if recording.batches_of else {}
        self._padded = {
            ("batch", *key[:3])
            for key, orders in passes.items()
            if all(orders.values()) and sum(map(len, orders)) > key[3]
        }
        """The evaluations in which samples were read twice, so that all ranks get equally many."""
        folder = Path(recording.folder)
        self.writers = {rank: RecordWriter(folder / f"{rank}.batches") for rank in ranks}
        self._index_writers = {rank: RecordWriter(folder / f"{rank}.indices") for rank in self.writers}
        self._indices: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()
        """By iterator, the numbers of the samples that its sampler has drawn."""
        self._forwards_before: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        """By iterator, how many forwards its rank had made when it began."""

    def close(self) -> None:
        """Close the files."""
        for each in (*self.writers.values(), *self._index_writers.values()):
            each.close()

    def replacements(self) -> list[Replacement]:
        """Return the replacements of functions of data loaders."""
        return [
            (_BaseDataLoaderIter, "__init__", self._wrap_begin),  # torchdata's loaders have their own __iter__
            (_BaseDataLoaderIter, "_reset", self._wrap_begin),
            (DataLoader, "__len__", self._wrap_len),
            (_BaseDataLoaderIter, "__next__", self._wrap_next),
            (_BaseDataLoaderIter, "_next_index", self._wrap_next_index),
        ]

    def _batch_key(self) -> _Key:
        rank, site = self._host.running_thread.rank, current_user_site()
        self._times[rank, site] += 1
        return "batch", site.path.removeprefix(self._folder), site.line, self._times[rank, site]

    def _wrap_begin(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def begin(iterator: Any, loader: Any, *arguments: Any, **options: Any) -> None:
            original(iterator, loader, *arguments, **options)
            if self._host.is_rank_thread():
                key = self._keys[iterator] = self._batch_key()
                self._forwards_before[iterator] = self._forwards_of(self._host.running_thread.rank)
                self._given.pop(iterator, None)
                ranks = [] if self._replayed is None else _distinct(self._replayed.get(key, []))
                if ranks and key not in self._padded:
                    size = len(loader.dataset) if isinstance(loader.dataset, Sized) else 0
                    orders = len(self._passes.get((*key[1:], size), ())) or self._parts
                    self._parts = len(ranks) if all(each[0] for each in ranks) else orders
                    self._given[iterator] = _Given(ranks, *_share_of(loader), self._parts)

        return begin

    def _wrap_len(self, original: Callable[[Any], int]) -> Callable[[Any], int]:
        @functools.wraps(original)
        def length(loader: Any) -> int:
            found = original(loader)
            if not self._host.is_rank_thread() or not isinstance(loader.dataset, Sized):
                return found
            key = "length", str(loader.batch_size), len(loader.dataset), int(loader.drop_last)
            if self._replayed is not None:
                known = {value for rank in self._replayed.get(key, ()) for value in rank}
                return known.pop() if len(known) == 1 else found  # else loaders of one size share it in several ways
            self.writers[self._host.running_thread.rank].write((key, found))
            return found

        return length

    def _wrap_next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def following(iterator: Any) -> Any:
            if not self._host.is_rank_thread() or iterator not in self._keys:
                return original(iterator)
            if iterator in self._given:
                given = self._given[iterator]
                self._given[iterator] = given._replace(number=given.number + 1)
                return _batch_of_reference(original, iterator, given)
            try:
                batch = original(iterator)
            except StopIteration:
                if iterator in self._indices and isinstance(iterator._dataset, Sized):
                    rank, numbers = self._host.running_thread.rank, tuple(self._indices.pop(iterator))
                    passed = *self._keys[iterator][1:], len(iterator._dataset)
                    pairs = zip(self._forwards_of(rank), self._forwards_before[iterator], strict=True)
                    of_training, without_gradients = (now > before for now, before in pairs)
                    self._index_writers[rank].write((passed, (numbers, without_gradients and not of_training)))
                raise
            key, writer = self._keys[iterator], self.writers[self._host.running_thread.rank]
            if self._is_recording():
                writer.write((key, _as_bytes(join_batches([batch]))))
            if not self._is_recording():  # it did not fit, either
                writer.write((key, b""), always=True)
            return batch

        return following

    def _wrap_next_index(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def next_index(iterator: Any) -> Any:
            found = original(iterator)
            numbers = found if isinstance(found, (list, tuple)) else [found]
            if iterator in self._keys and all(isinstance(each, int) for each in numbers):
                self._indices.setdefault(iterator, []).extend(numbers)
            return found

        return next_index


def _batch_of_reference(original: Callable[[Any], Any], iterator: Any, given: _Given) -> Any:
    """Return the next batch of a loader of the reference. If not all ranks have recorded theirs, as after the last step
    that is compared, it is as large, and of the loader's own samples: the program counts on each sample being read."""
    ranks, number = given.ranks, given.number
    now = [rank[number] for rank in ranks if number < len(rank)]
    if not now:
        raise StopIteration
    if not all(now):
        share = max(1, given.parts // given.replicas)
        while iterator._num_yielded < number * share:
            original(iterator)
        own = list[Any]()
        with suppress(StopIteration):
            while len(own) < share:
                own.append(original(iterator))
        if not own:
            raise StopIteration
        return join_batches(own)
    if len(ranks) % given.replicas:
        raise ValueError(f"{len(ranks)} different batches cannot be shared by {given.replicas} ranks")
    share = len(ranks) // given.replicas
    mine = [rank[number] for rank in ranks[given.own * share : (given.own + 1) * share] if number < len(rank)]
    if not mine:
        raise StopIteration
    return join_batches([pickle.loads(each) for each in mine])


def describe_overlap(folder: Path) -> tuple[str, dict[str, str]] | None:
    """Return a line on ranks that divide a data set among them, but not so that each sample is read once, and by label
    the cause and what to do; else None."""
    for (path, line, _, size), ranks in _read_passes(folder).items():
        place = f"in a pass over the data loader of {Path(path).name}:{line}"
        reads = Counter(number for own in ranks for number in set(own))
        several = sum(times > 1 for times in reads.values())
        if any(_continues(own, other) for own in ranks for other in ranks if own is not other):
            text = f"{several} of the {len(reads)} samples that are read are read by several ranks, {place}"
            return text, {
                "cause": "ranks take parts of one order that overlap",
                "do": "give each rank a part of its own",
            }
        read = sum(map(len, ranks))
        is_divided = len(ranks) > 1 and 0.75 * size < read < size + len(ranks)
        if is_divided and read - len(reads) >= len(ranks) and all(len(set(own)) == len(own) for own in ranks):
            text = (
                f"{several} of the {size} samples are read by several ranks, and {size - len(reads)} by none, {place}"
            )
            cause = "ranks draw from the data set in different orders"
            return text, {"cause": cause, "do": "give all samplers the same seed, and set_epoch() the same epoch"}
    return None


def _continues(own: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return True if one order begins in another's first half, and goes on as that: a shorter part may be padding, and
    ranks that read the same samples, each from another one on, do not divide them."""
    if set(own) == set(other):
        return False
    starts = (start for start in range(1, len(own) // 2 + 1) if own[start] in other[:1])
    return any(own[start:] == other[: len(own) - start] and len(set(own[start:])) > 3 for start in starts)


class _BatchPickler(pickle.Pickler):
    """Pickles equal tensors as equal bytes, which torch does not: it writes an address."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.device.type != "cpu" or value.is_sparse or not value.numel():
            return NotImplemented
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _tensor_of, (data, value.dtype, tuple(value.shape))


def _as_bytes(batch: Any) -> bytes:
    written = io.BytesIO()
    _BatchPickler(written).dump(batch)
    return written.getvalue()


def _tensor_of(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _read_batches(folder: Path) -> Mapping[_Key, list[list[Any]]]:
    """Return what the ranks of a run recorded: by key, a list for each rank that has the key."""
    found: dict[_Key, dict[int, list[Any]]] = {}
    for file in sorted(folder.glob("*.batches"), key=lambda each: int(each.stem)):
        for key, value in read_entries(file):
            found.setdefault(key, {}).setdefault(int(file.stem), []).append(value)
    return {key: list(ranks.values()) for key, ranks in found.items()}


def _read_passes(folder: Path) -> Mapping[tuple[str, int, int, int], Mapping[tuple[int, ...], bool]]:
    """Return the orders in which ranks read a data set, those that are equal once, and whether each was an evaluation.

    The key is the line that iterates, how often it had begun to, and the size of the data set. A pass that was over
    before a model ran, as of a loader that is read ahead, counts as training.
    """
    passes: dict[tuple[str, int, int, int], dict[tuple[int, ...], bool]] = {}
    for file in folder.glob("*.indices"):
        for key, (numbers, is_evaluation) in read_entries(file):
            passes.setdefault(key, {})[numbers] = is_evaluation
    return passes


def _distinct(ranks: Sequence[Sequence[bytes]]) -> Sequence[Sequence[bytes]]:
    """Return the batches of the ranks without those of ranks that read the same as an earlier rank.

    Batches count up to the first that is not recorded on some rank.
    """
    end = min((each.index(b"") for each in ranks if b"" in each), default=None)
    return list({(len(each), *each[:end]): each for each in ranks}.values())


def _share_of(loader: Any) -> tuple[int, int]:
    """Return among how many ranks of the reference a loader's sampler shares the samples, and the own number."""
    sampler = loader.sampler
    return int(getattr(sampler, "num_replicas", 1)), int(getattr(sampler, "rank", 0))


def join_batches(batches: Sequence[Any]) -> Any:
    """Return one batch that has the samples of several, as collating makes them: tensors, mappings and sequences."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(list(batches)) if first.dim() else first.clone()
    if isinstance(first, Mapping):
        joined = {key: join_batches([each[key] for each in batches]) for key in first}
        return joined if type(first) is dict else type(first)(joined)  # type: ignore[call-arg]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(join_batches, zip(*batches, strict=True)))
    if isinstance(first, (tuple, list)):
        has_tensors = any(isinstance(each, (Tensor, Mapping, tuple, list)) for each in first)
        parts = map(join_batches, zip(*batches, strict=True)) if has_tensors else (x for each in batches for x in each)
        return type(first)(parts)
    return first
