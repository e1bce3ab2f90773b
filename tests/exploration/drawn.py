"""Small programs of two ranks whose order can be observed, drawn from a seed.

They are written as text, so that each step has a line of its own: explorations tell polls apart by their lines.
"""

import random

import torch
import torch.distributed as dist

from tests.exploration.programs import store

_OF_KEYS = {
    "set": 'store().set("{key}", "{rank}{step}")',
    "get": 'seen.append(store().get("{key}"))',
    "add": 'seen.append(store().add("sum {key}", 1))',
    "check": 'seen.append(store().check(["{key}"]))',
    "delete": 'seen.append(store().delete_key("{key}"))',
}
_OF_MESSAGES = {
    "send": "dist.send(torch.tensor({value}), {other})",
    "isend": "works.append(dist.isend(torch.tensor({value}), {other}))",
    "receive": "seen.append(dist.recv(tensor := torch.zeros(()))); seen.append(tensor.item())",
    "ireceive": "works.append(dist.irecv(tensor := torch.zeros(()))); tensors.append(tensor)",
    "receive from": "dist.recv(tensor := torch.zeros(()), {other}); seen.append(tensor.item())",
    "barrier": "dist.barrier()",
}
_OF_WORKS = {
    "reduce": "works.append(dist.all_reduce(tensor := torch.tensor({value}), async_op=True)); tensors.append(tensor)",
    "poll": "seen.append(works[-1].is_completed() if works else None)",
    "wait": "works.pop(0).wait() if works else None",
}
_FAMILIES = (_OF_KEYS, _OF_MESSAGES, _OF_KEYS | _OF_MESSAGES, _OF_KEYS | _OF_WORKS)


def drawn_program(seed, world_size=2):
    """A function of the rank; its text stands in the attribute `text`."""
    chance = random.Random(seed)
    family = chance.choice(_FAMILIES)
    lines = ["def program(rank):", "    seen, works, tensors = [], [], []"]
    for rank in range(world_size):
        lines.append(f"    if rank == {rank}:")
        kinds = sorted(family)
        for step in range(chance.choice((1, 2, 2, 3))):
            kind = chance.choice(kinds)
            other = chance.choice([each for each in range(world_size) if each != rank])
            key, value = chance.choice("ab"), 10.0 * rank + step
            lines.append(f"        {family[kind].format(key=key, rank=rank, step=step, other=other, value=value)}")
    lines += ["    for work in works:", "        work.wait()", "    return seen, [each.item() for each in tensors]"]
    text = "\n".join(lines)
    names = {"store": store, "dist": dist, "torch": torch}
    exec(compile(text, f"drawn_{seed}.py", "exec"), names)
    program = names["program"]
    program.text = text
    return program
