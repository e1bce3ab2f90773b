"""A distributed context as a singleton, by a metaclass, and a Borg that shares its state."""

import torch
import torch.distributed as dist


class Singleton(type):
    _instances = {}  # noqa: RUF012

    def __call__(cls, *args, **kwargs):
        if cls not in cls._instances:
            cls._instances[cls] = super().__call__(*args, **kwargs)
        return cls._instances[cls]


class DistributedContext(metaclass=Singleton):
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()


class Metrics:
    _shared_state = {}  # noqa: RUF012

    def __init__(self):
        self.__dict__ = self._shared_state
        self.__dict__.setdefault("values", [])

    def add(self, value):
        self.values.append(value)


def main():
    for _ in range(3):
        context = DistributedContext()
        Metrics().add(context.rank * 10 + len(Metrics().values))
    values = torch.tensor(Metrics().values, dtype=torch.float)
    print(f"rank {context.rank} values {values.tolist()}")
    dist.all_reduce(values)
    print(f"rank {context.rank} reduced {values.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
