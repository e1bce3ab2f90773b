"""Loads torch's compiler when a program compiles something, and not with the first optimizer.

Optimizers, DDP and `init_process_group` import torch._dynamo, which takes half as long as the import of torch itself,
and do not need it unless the program compiles. So they get a module that is not executed yet, as by importlib's
LazyLoader. It is executed when any of its attributes is read, and then is an ordinary module. Only a few attributes
that torch's own modules read are answered without executing it.

That is correct because before it is executed nothing is compiled or traced, and no configuration is changed.
"""

import _thread
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

_DYNAMO = "torch._dynamo"
_KEPT = "__dynamo_disable"
"""The attribute in which `torch._disable_dynamo` keeps the version of a function for which dynamo is disabled."""
_KNOWN_BEFORE = ("__class__", "__file__", "__loader__", "__name__", "__package__", "__spec__")
"""Attributes that a module has before it is executed, because code that iterates over sys.modules reads them."""


@contextmanager
def dynamo_loaded_late(when_loaded: Callable[[], None]) -> Iterator[None]:
    """A context in which the first import of torch._dynamo returns a module that is not executed yet.

    `when_loaded` is called when the module is executed. If that never happens, the import is undone at the end.
    """
    finder = _DynamoFinder(when_loaded)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]
        module = sys.modules.get(_DYNAMO)
        if isinstance(module, _LateModule):
            _loader_of(module).undo_import()


class _DynamoFinder(MetaPathFinder):
    def __init__(self, when_loaded: Callable[[], None]) -> None:
        self._when_loaded = when_loaded

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _DYNAMO:
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _LateLoader(spec.loader, self._when_loaded)
            return spec
        if target is None and fullname.startswith(f"{_DYNAMO}.") and fullname in sys.modules:
            return ModuleSpec(fullname, _LoaderOfLoadedModule())
        return None


class _LoaderOfLoadedModule(Loader):
    """A loader for a submodule of torch._dynamo that was imported already, while torch._dynamo itself was executed."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = sys.modules[spec.name]
        self._spec = vars(module).get("__spec__")
        return module

    def exec_module(self, module: ModuleType) -> None:
        if "__spec__" in vars(module):  # absent from torch._dynamo.config, whose class is no ordinary module
            vars(module)["__spec__"] = self._spec


class _LateLoader(Loader):
    """Makes the module torch._dynamo without its content, and executes it later."""

    def __init__(self, loader: Loader, when_loaded: Callable[[], None]) -> None:
        self._loader = loader
        self._when_loaded = when_loaded
        self._lock = _thread.RLock()  # a real one, also in a rank
        self._is_executing = False
        self._disabled: WeakKeyDictionary[FunctionType, tuple[tuple[Any, ...], dict[str, Any]]] = WeakKeyDictionary()
        """Functions for which compilation was disabled before the execution, with the other arguments of `disable`."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        module.__spec__.loader_state = self
        module.__class__ = _LateModule

    def read_attribute(self, module: ModuleType, name: str, asking: str) -> Any:
        """Return an attribute of torch._dynamo; `asking` is the name of the module whose code reads it."""
        with self._lock:
            if _is_not_executed(module) and not self._is_executing:
                if (asking, name) == ("torch._compile", "disable"):
                    return self._disable_function
                if (asking, name) in _ANSWERS:
                    return _ANSWERS[asking, name]
                return getattr(self.execute_module(module), name)
        return ModuleType.__getattribute__(module, name)

    def execute_module(self, module: ModuleType) -> ModuleType:
        """Execute torch._dynamo and return it. If the run that imported it has ended, import it again."""
        with self._lock:
            if not _is_not_executed(module) or self._is_executing:
                return module
            if sys.modules.get(_DYNAMO) is not module:
                return importlib.import_module(_DYNAMO)
            self._is_executing = True
            try:
                self._loader.exec_module(module)
            except BaseException:
                sys.modules.pop(_DYNAMO, None)  # as after a failed import: the next one tries again
                raise
            finally:
                self._is_executing = False
            module.__class__ = ModuleType
            for function, (arguments, options) in list(self._disabled.items()):
                setattr(function, _KEPT, module.disable(function, *arguments, **options))
            self._disabled.clear()
            self._when_loaded()
            return module

    def undo_import(self) -> None:
        """Undo the import of torch._dynamo."""
        del sys.modules[_DYNAMO]
        parent, _, name = _DYNAMO.rpartition(".")
        vars(sys.modules[parent]).pop(name, None)
        for function in list(self._disabled):
            vars(function).pop(_KEPT, None)
        self._disabled.clear()

    def _disable_function(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Replace `torch._dynamo.disable` before the execution: nothing is traced, so the function stays as it is."""
        if not isinstance(function, FunctionType):
            return importlib.import_module(f"{_DYNAMO}.decorators").disable(function, *arguments, **options)
        self._disabled[function] = (arguments, options)
        return function


class _LateModule(ModuleType):
    """Stands for the module torch._dynamo before that module is executed."""

    def __getattribute__(self, name: str) -> Any:
        if name in _KNOWN_BEFORE:
            return ModuleType.__getattribute__(self, name)
        asking = str(sys._getframe(1).f_globals.get("__name__"))
        return _loader_of(self).read_attribute(self, name, asking)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _KNOWN_BEFORE or (module := _loader_of(self).execute_module(self)) is self:
            ModuleType.__setattr__(self, name, value)
        else:
            setattr(module, name, value)

    def __delattr__(self, name: str) -> None:
        ModuleType.__delattr__(_loader_of(self).execute_module(self), name)


def _is_not_executed(module: ModuleType) -> bool:
    return type(module) is _LateModule


def _loader_of(module: _LateModule) -> _LateLoader:
    spec: ModuleSpec = ModuleType.__getattribute__(module, "__spec__")
    loader: _LateLoader = spec.loader_state
    return loader


class _PartialSubmodule:
    """A submodule of torch._dynamo that answers a few attributes itself; reading any other loads the submodule."""

    def __init__(self, name: str, **answers: Callable[[], Any]) -> None:
        self._name = name
        self.__dict__.update(answers)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(f"{_DYNAMO}.{self._name}"), name)


def _do_nothing() -> None: ...


_ANSWERS = {
    ("torch.optim.optimizer", "graph_break"): _do_nothing,
    ("torch.nn.parallel.distributed", "utils"): _PartialSubmodule(
        "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"
    ),
    ("torch.distributed.distributed_c10d", "trace_rules"): _PartialSubmodule(
        "trace_rules", clear_lru_cache=_do_nothing
    ),
}
"""(module that reads, attribute of torch._dynamo) -> its value as long as no configuration has changed."""
