import threading
from concurrent.futures import ThreadPoolExecutor

LOCK = threading.Lock()
WRITER = ThreadPoolExecutor(1)
seen = 0


def count(samples):
    global seen
    with LOCK:
        seen += samples
    return WRITER.submit(_write, seen)


def _write(total):
    with LOCK:
        return total
