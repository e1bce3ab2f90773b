"""An import hook that calls a function with each module of some names, as soon as the module is imported."""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


class ImportWatch(MetaPathFinder):
    """Calls `function` with modules that are imported between `install` and `uninstall`."""

    def __init__(self, wants: Callable[[str], bool], function: Callable[[Any], None]) -> None:
        """`wants` says of a module's full name whether the module is given to `function`."""
        self._wants, self.function = wants, function

    def install(self) -> None:
        """Begin to watch imports."""
        sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """End it. May be called twice."""
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self]

    def find_spec(self, fullname: str, *rest: Any) -> Any:
        """Return the spec that the other finders have for a module, with a loader that also calls the function."""
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :] if self._wants(fullname) else []
        spec: Any = next(filter(None, (each.find_spec(fullname, *rest) for each in finders)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _WatchedLoader(spec.loader, self)
        return spec


class _WatchedLoader:
    def __init__(self, loader: Any, watch: ImportWatch) -> None:
        self._loader, self._watch = loader, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        """Execute the module, which has its own loader from now on, and call the function."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._watch.function(module)


def call_with_module(name: str, function: Callable[[Any], None]) -> ImportWatch:
    """Call a function with a module now if it is imported, else when it is; return the watch, to be uninstalled."""
    watch = ImportWatch(name.__eq__, function)
    module: ModuleType | None = sys.modules.get(name)
    if module is None:
        watch.install()
    else:
        function(module)
    return watch
