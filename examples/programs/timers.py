"""Watchdogs beside training: a threading.Timer that is cancelled, one that fires, a heartbeat, an alarm."""

import signal
import threading

import torch
import torch.distributed as dist


class Heartbeat(threading.Thread):
    def __init__(self, interval):
        super().__init__(daemon=True)
        self.interval, self.beats, self.stopped = interval, 0, threading.Event()

    def run(self):
        while not self.stopped.wait(self.interval):
            self.beats += 1


def on_alarm(signum, frame):
    raise TimeoutError("took too long")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    heartbeat = Heartbeat(0.05)
    heartbeat.start()
    fired = threading.Event()
    threading.Timer(0.2, fired.set).start()
    watchdog = threading.Timer(600, lambda: print("hangs"))
    watchdog.start()
    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(60)
    value = torch.ones(2)
    dist.all_reduce(value)
    signal.alarm(0)
    print(f"rank {rank} fired in time {fired.wait(timeout=20)} value {value.tolist()}")
    watchdog.cancel()
    heartbeat.stopped.set()
    heartbeat.join()
    print(f"rank {rank} beats {heartbeat.beats > 1} timers left {threading.active_count() - 1 - watchdog.is_alive()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
