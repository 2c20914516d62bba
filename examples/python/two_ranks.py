"""Several processes, one model: DistributedDataParallel over gloo.

    torchrun --nproc_per_node 2 examples/python/two_ranks.py \\
        --nvme-path /mnt/nvme0 --shard

Each rank computes on its part of every batch. With --shard each keeps AdamW's
state of its share of the parameters only (ZeRO-1); without, each keeps all of
it. In both cases they may have one path: every rank's files are in a folder of
its own there. Rank 0 prints the loss of every step, averaged over the ranks.
With --optimizer torch the same runs with torch.optim.AdamW.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import terrace


def make_optimizer(parameters, arguments):
    if arguments.optimizer == 'torch':
        return torch.optim.AdamW(parameters, lr=arguments.lr)
    settings = {}
    if arguments.nvme_path:
        settings = {'memory_budget': arguments.memory_budget,
                    'nvme_path': arguments.nvme_path}
    return terrace.AdamW(
        parameters, lr=arguments.lr, **settings,
        process_group=dist.group.WORLD if arguments.shard else None)


def make_model(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(32, width), torch.nn.GELU(),
        torch.nn.Linear(width, width), torch.nn.GELU(),
        torch.nn.LayerNorm(width), torch.nn.Linear(width, 1))


def train(arguments) -> list[float]:
    """The loss of each step."""
    torch.manual_seed(arguments.seed)  # the same model and data on all ranks
    # A group for it alone: threads of the one that a DistributedDataParallel has
    # outlive destroy_process_group(), and abort where they give a tensor of
    # Python's, as a loss is, back to an interpreter that has ended.
    model = DistributedDataParallel(
        make_model(arguments.width), process_group=dist.new_group())
    optimizer = make_optimizer(model.parameters(), arguments)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, arguments.steps)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = []
    for _ in range(arguments.steps):
        inputs = torch.randn(16 * ranks, 32)
        targets = inputs.square().mean(1, keepdim=True)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(
            model(inputs[rank::ranks]), targets[rank::ranks])
        loss.backward()  # averages the gradients over the ranks
        optimizer.step()
        scheduler.step()
        dist.all_reduce(mean := loss.detach() / ranks)
        losses.append(mean.item())
    if isinstance(optimizer, terrace.AdamW):
        optimizer.close()
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--optimizer', choices=['terrace', 'torch'],
                        default='terrace')
    parser.add_argument('--nvme-path', action='append')
    parser.add_argument('--memory-budget', default='50%')
    parser.add_argument('--shard', action='store_true')
    parser.add_argument('--steps', type=int, default=30)
    parser.add_argument('--width', type=int, default=256)
    parser.add_argument('--lr', type=float, default=2e-3)
    parser.add_argument('--seed', type=int, default=1)
    arguments = parser.parse_args()
    dist.init_process_group('gloo')
    losses = train(arguments)
    if dist.get_rank() == 0:
        for loss in losses:
            print(f'{loss:.6f}')
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
