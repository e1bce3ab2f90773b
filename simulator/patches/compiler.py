"""torch's compiler inside ranks: one rank compiles at a time, and the simulator's own functions are not compiled."""

import sys
import threading
from collections.abc import Callable
from typing import Any

from torch.nn.modules import module as modules

from ddpsim import simulator
from ddpsim.simulator.runtime.call_sites import is_simulator_file
from ddpsim.simulator.runtime.replaced import ReplacedAttributes

_MODULE = "torch._dynamo.convert_frame"


class CompilerLock:
    """Replaces the compiler's lock during a run: a rank that waits for its turn to compile lets other ranks run.

    torch makes its lock while the compiler is imported, for all threads of a process, and holds it for a whole
    compilation. Another thread may run meanwhile, as inductor waits for threads that it has started. At torch's own
    lock that thread would block without passing the baton, and the run would be stuck. One lock for each rank would be
    wrong: a compilation changes configuration of the whole process.
    """

    def __init__(self) -> None:
        self._replaced = ReplacedAttributes()
        self._of_run: Any = None
        """The lock that ranks use instead. The rank that compiles first makes it, so that waiting is simulated."""
        self._is_taken: list[bool] = []
        """Whether the lock was taken, for each entry that is not left yet."""

    def install(self) -> None:
        """Replace the lock of torch's compiler, if the compiler is loaded. May be called again."""
        module: Any = sys.modules.get(_MODULE)
        if module is not None and module.compile_lock is not self:
            self._replaced.set_attribute(module, "compile_lock", self)

    def uninstall(self) -> None:
        """Restore the lock of torch's compiler."""
        self._replaced.restore_attributes()

    def __enter__(self) -> None:
        # Dynamo also asks whether to compile what the simulator calls while it serves a request, such as constructors
        # that pickle calls, and skips these. Waiting for the lock is a request, too, which would mix with the other.
        is_taken = not is_simulator_file(sys._getframe(2).f_code.co_filename)
        if is_taken:
            if self._of_run is None:
                self._of_run = threading.RLock()
            self._of_run.__enter__()
        self._is_taken.append(is_taken)

    def __exit__(self, *exception: object) -> None:
        if self._is_taken.pop():
            self._of_run.__exit__(*exception)


def skip_simulator_in_dynamo() -> None:
    """Make dynamo skip the simulator's own functions, if dynamo is loaded; late_dynamo.py calls this again when it is.

    The collectives of torch's DDP are C++ code, which dynamo does not trace. The simulator has Python code there:
    traced, it would be compiled with the program, and so would its requests to the kernel (the scheduler).
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not any(simulator.__file__.startswith(folder) for folder in rules.SKIP_DIRS):
        rules.add(simulator.__name__)


def wrap_has_any_global_hook(ours: int, original: Callable[[], Any]) -> Callable[[], Any]:
    """Return the replacement of torch's `_has_any_global_hook`: it ignores the simulator's module hook, which has the
    id `ours`. With torch's own function, compiled modules would warn of that hook."""
    hooks: Any = modules._global_forward_pre_hooks

    def has_any_global_hook() -> Any:
        hook = hooks.pop(ours)
        try:
            return original()
        finally:
            hooks[ours] = hook
            hooks.move_to_end(ours, last=False)

    return has_any_global_hook
