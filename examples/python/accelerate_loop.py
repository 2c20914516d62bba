"""An accelerate loop with Terrace's AdamW: gradient accumulation, clipping, a
scheduler, and a checkpoint of model and optimizer.

    python examples/python/accelerate_loop.py --nvme-path /mnt/nvme0

Prints the loss of every step.
"""

import argparse
import tempfile

import accelerate
import torch

import terrace


def make_optimizer(parameters, arguments):
    if arguments.optimizer == 'torch':
        return torch.optim.AdamW(parameters, lr=arguments.lr)
    if not arguments.nvme_path:
        return terrace.AdamW(parameters, lr=arguments.lr)
    return terrace.AdamW(parameters, lr=arguments.lr,
                         memory_budget=arguments.memory_budget,
                         nvme_path=arguments.nvme_path)


def make_data(seed: int) -> torch.utils.data.TensorDataset:
    """A linear map and noise: 128 inputs of 96 numbers, their 12 outputs."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(128, 96, generator=generator)
    weights = torch.randn(96, 12, generator=generator) / 10
    noise = torch.randn(128, 12, generator=generator) / 100
    return torch.utils.data.TensorDataset(inputs, inputs @ weights + noise)


def train(arguments) -> list[float]:
    """The loss of each step, over all of its micro-batches."""
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=arguments.accumulate)
    accelerate.utils.set_seed(arguments.seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(96, 256), torch.nn.ReLU(), torch.nn.Linear(256, 12))
    optimizer = make_optimizer(model.parameters(), arguments)
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, 0.1, 1.0, arguments.steps)
    loader = torch.utils.data.DataLoader(
        make_data(arguments.seed), batch_size=8, shuffle=True,
        generator=torch.Generator().manual_seed(arguments.seed))
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, loader, scheduler)
    losses, parts = [], []
    while len(losses) < arguments.steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                parts.append(loss.item())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                losses.append(sum(parts) / len(parts))
                parts = []
                if len(losses) == arguments.steps // 2:
                    with tempfile.TemporaryDirectory() as folder:
                        accelerator.save_state(folder)
                        accelerator.load_state(folder)
                if len(losses) == arguments.steps:
                    break
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--optimizer', choices=['terrace', 'torch'],
                        default='terrace')
    parser.add_argument('--nvme-path', action='append')
    parser.add_argument('--memory-budget', default='200KiB')
    parser.add_argument('--steps', type=int, default=30)
    parser.add_argument('--accumulate', type=int, default=2)
    parser.add_argument('--lr', type=float, default=2e-3)
    parser.add_argument('--seed', type=int, default=1)
    for loss in train(parser.parse_args()):
        print(f'{loss:.6f}')


if __name__ == '__main__':
    main()
