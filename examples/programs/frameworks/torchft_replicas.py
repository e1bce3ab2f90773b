"""Replica groups of one rank each, as in torchft's train_ddp.py, on made-up data. Rank 0 has the lighthouse.

A replica fails in step 2 and is started again, as a supervisor would: it gets the model of the other one.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport
from torchft.coordination import LighthouseServer

STEPS = 5


class Failure(Exception):
    pass


def batch_of(step, replica):
    generator = torch.Generator().manual_seed(100 * step + replica)
    return torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)


def train(replica, lighthouse, *, fails, transport):
    def load_state_dict(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def state_dict():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupGloo(timeout=timedelta(seconds=5))
    by_group = PGTransport(group, timeout=timedelta(seconds=10), device="cpu") if transport == "pg" else None
    manager = Manager(
        pg=group,
        min_replica_size=2,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"replica_{replica}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        timeout=timedelta(seconds=30),
        checkpoint_transport=by_group,
    )
    torch.manual_seed(replica)
    model = DistributedDataParallel(manager, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters()))
    try:
        while manager.current_step() < STEPS:
            inputs, labels = batch_of(manager.current_step(), replica)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            if fails and manager.current_step() == 2:
                raise Failure
            optimizer.step()
        return [each.detach().clone() for each in model.parameters()]
    finally:
        manager.shutdown(wait=False)


def main(transport="pg"):
    replica = int(os.environ["RANK"])
    dist.init_process_group("gloo")  # only to tell where the lighthouse is, and to compare at the end
    server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000) if replica == 0 else None
    addresses = [server.address() if server else None]
    dist.broadcast_object_list(addresses)
    try:
        parameters = train(replica, addresses[0], fails=replica == 1, transport=transport)
    except Failure:
        print(f"replica {replica} starts again")
        parameters = train(replica, addresses[0], fails=False, transport=transport)
    total = sum(each.double().sum().item() for each in parameters)
    print(f"replica {replica} weights {total:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
