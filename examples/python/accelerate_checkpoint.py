"""Checkpoints of an accelerate loop whose optimizer state streams: hooks of
save_state() and load_state() that call terrace.save and terrace.load.

    python examples/python/accelerate_checkpoint.py --nvme-path /mnt/nvme0 \
        --output-dir runs --stop-after 12
    python examples/python/accelerate_checkpoint.py --nvme-path /mnt/nvme0 \
        --output-dir runs --resume

Prints the loss of every step: the second run goes on from the last checkpoint
of the first, bit for bit.
"""

import argparse
import os
import pathlib

import accelerate
import torch

import terrace


def stream_checkpoints(accelerator, model, optimizer, shared=False):
    """save_state() and load_state() keep what is accelerate's own: schedulers,
    scalers, samplers, random states. The model and the optimizer's state are
    in the folder `terrace` beside them; optimizer.bin has the groups alone.

    Args:
        model, optimizer: as prepare() returned them.
        shared: the optimizer has a process_group, so that every rank saves its
            share.
    """
    optimizer.state_dict = lambda: groups_alone(optimizer)
    inner = accelerator.unwrap_model(model)

    def save(models, weights, folder):
        if accelerator.is_main_process or shared:
            terrace.save(os.path.join(folder, 'terrace'), inner,
                         optimizer.optimizer)
        weights.clear()  # they are there

    def load(models, folder):
        terrace.load(os.path.join(folder, 'terrace'), inner,
                     optimizer.optimizer)
        models.clear()
        # What accelerate loads next would begin the state anew.
        optimizer.load_state_dict = lambda _: None

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def groups_alone(optimizer):
    """Its state_dict() without state, of which no copy is made."""
    groups, first = [], 0
    for group in optimizer.param_groups:
        end = first + len(group['params'])
        groups.append({**group, 'params': list(range(first, end))})
        first = end
    return {'state': {}, 'param_groups': groups}


def make_data() -> torch.utils.data.TensorDataset:
    """A linear map and noise: 80 inputs of 96 numbers, their 12 outputs."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(80, 96, generator=generator)
    weights = torch.randn(96, 12, generator=generator) / 10
    noise = torch.randn(80, 12, generator=generator) / 100
    return torch.utils.data.TensorDataset(inputs, inputs @ weights + noise)


class Progress:
    """How many steps were made; kept in every checkpoint."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {'steps': self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state['steps']


def last_checkpoint(folder: str) -> str:
    found = pathlib.Path(folder).glob('step-*')
    return str(max(found, key=lambda path: int(path.name.split('-')[1])))


def train(arguments) -> list[float]:
    """The loss of each step of this run."""
    accelerator = accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(
            use_seedable_sampler=True))
    accelerate.utils.set_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(96, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(256, 12))
    optimizer = terrace.AdamW(model.parameters(), lr=2e-3,
                              memory_budget='256KiB',
                              nvme_path=arguments.nvme_path)
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, 0.1, 1.0, arguments.steps)
    # With a generator of its own, a loader that begins in the midst of an epoch
    # draws nothing from the one that dropout uses.
    loader = torch.utils.data.DataLoader(make_data(), batch_size=8,
                                         shuffle=True,
                                         generator=torch.Generator())
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, loader, scheduler)
    stream_checkpoints(accelerator, model, optimizer)
    progress, losses = Progress(), []
    accelerator.register_for_checkpointing(progress)
    if arguments.resume:
        accelerator.load_state(last_checkpoint(arguments.output_dir))
    last = min(arguments.steps, arguments.stop_after or arguments.steps)
    while progress.steps < last:
        epoch, done = divmod(progress.steps, len(loader))
        loader.set_epoch(epoch)
        rest = accelerator.skip_first_batches(loader, done) if done else loader
        for inputs, targets in rest:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            progress.steps += 1
            if progress.steps % arguments.save_steps == 0:
                accelerator.save_state(os.path.join(
                    arguments.output_dir, f'step-{progress.steps}'))
            if progress.steps == last:
                break
    if arguments.weights:
        torch.save(accelerator.unwrap_model(model).state_dict(),
                   arguments.weights)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--nvme-path', required=True)
    parser.add_argument('--output-dir', required=True)
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--save-steps', type=int, default=5)
    parser.add_argument('--stop-after', type=int, metavar='STEP')
    parser.add_argument('--resume', action='store_true')
    parser.add_argument('--weights', help='where they are saved at the end')
    for loss in train(parser.parse_args()):
        print(f'{loss:.6f}')


if __name__ == '__main__':
    main()
