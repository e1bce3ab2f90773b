"""An all-reduce by hand around a ring of send and recv, then with isend and irecv."""

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    total, moving = tensor.clone(), tensor.clone()
    for _ in range(size - 1):
        received = torch.empty_like(moving)
        request = dist.isend(moving, right)
        dist.recv(received, left)
        request.wait()
        total += received
        moving = received
    return total


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} ring {ring_all_reduce(torch.arange(3.0) + rank).tolist()}")
    token = torch.zeros(1)
    if rank == 0:
        token += 1
        dist.send(token, dst=1)
        dist.recv(token, src=size - 1)
    else:
        sender = dist.recv(token)
        print(f"rank {rank} token from {sender}")
        token *= 3
        dist.send(token, dst=(rank + 1) % size)
    print(f"rank {rank} token {token.item()}")
    outgoing, incoming = torch.full((2,), float(rank)), torch.empty(2)
    requests = [dist.irecv(incoming, (rank - 1) % size, tag=5), dist.isend(outgoing, (rank + 1) % size, tag=5)]
    for request in requests:
        request.wait()
    print(f"rank {rank} incoming {incoming.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
