"""Checkpoints of a Lightning Trainer whose optimizer state streams: a callback
and a CheckpointIO that write them with terrace.save, and resume from them.

    python examples/python/lightning_checkpoint.py --nvme-path /mnt/nvme0 \
        --output-dir runs --stop-after 2
    python examples/python/lightning_checkpoint.py --nvme-path /mnt/nvme0 \
        --output-dir runs --resume

Prints the loss of every step: the second run goes on from the last checkpoint
of the first, bit for bit.
"""

import argparse
import os
import pathlib
import shutil

import lightning
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

import terrace


class StreamedCheckpoints(lightning.pytorch.Callback):
    """Lightning keeps all of its .ckpt but the optimizer's state, of which it
    has the groups alone; that is in a folder beside it, NAME.ckpt.terrace, and
    goes where the file goes.

        streamed = StreamedCheckpoints()
        Trainer(callbacks=[streamed], plugins=[streamed.io])

    For one optimizer, and strategies that have all of the model in each
    process.
    """

    def __init__(self):
        self.io = StreamedIO()

    def setup(self, trainer, pl_module, stage):
        self.io.trainer = trainer
        trainer.strategy.optimizer_state = groups_alone

    def on_train_start(self, trainer, pl_module):
        if self.io.loaded is not None:
            terrace.load(self.io.loaded, pl_module, own_optimizer(trainer))
            self.io.loaded = None


class StreamedIO(TorchCheckpointIO):
    """Lightning's files and the folders beside them."""

    def __init__(self):
        super().__init__()
        self.trainer = None
        self.loaded = None  # the folder beside what was loaded last

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        # The folder first: a file that is there has one.
        if 'optimizer_states' in checkpoint:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            terrace.save(beside(path), self.trainer.lightning_module,
                         own_optimizer(self.trainer))
        super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path, *arguments, **keywords):
        checkpoint = super().load_checkpoint(path, *arguments, **keywords)
        self.loaded = (beside(path) if 'optimizer_states' in checkpoint
                       else None)
        return checkpoint

    def remove_checkpoint(self, path):
        super().remove_checkpoint(path)
        shutil.rmtree(beside(path), ignore_errors=True)


def beside(path):
    return f'{path}.terrace'


def own_optimizer(trainer):
    [optimizer] = trainer.optimizers
    return getattr(optimizer, 'optimizer', optimizer)


def groups_alone(optimizer):
    """Its state_dict() without state, of which no copy is made."""
    groups, first = [], 0
    for group in optimizer.param_groups:
        end = first + len(group['params'])
        groups.append({**group, 'params': list(range(first, end))})
        first = end
    return {'state': {}, 'param_groups': groups}


class Model(lightning.pytorch.LightningModule):
    def __init__(self, nvme_path: str) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Linear(96, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1),
            torch.nn.Linear(256, 12))
        self.nvme_path = nvme_path
        self.losses: list[float] = []

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.network(inputs), targets)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = terrace.AdamW(self.parameters(), lr=2e-3,
                                  memory_budget='256KiB',
                                  nvme_path=self.nvme_path)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [scheduler]


def make_data() -> torch.utils.data.TensorDataset:
    """A linear map and noise: 40 inputs of 96 numbers, their 12 outputs."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(40, 96, generator=generator)
    weights = torch.randn(96, 12, generator=generator) / 10
    noise = torch.randn(40, 12, generator=generator) / 100
    return torch.utils.data.TensorDataset(inputs, inputs @ weights + noise)


def last_checkpoint(folder: str) -> str:
    return str(max(pathlib.Path(folder).glob('*.ckpt'),
                   key=lambda path: path.stat().st_mtime_ns))


def train(arguments) -> list[float]:
    """The loss of each step of this run."""
    lightning.seed_everything(1, verbose=False)
    streamed = StreamedCheckpoints()
    kept = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=arguments.output_dir, save_top_k=2, monitor='epoch',
        mode='max')
    trainer = lightning.Trainer(
        accelerator='cpu', devices=1, logger=False,
        max_epochs=arguments.stop_after or arguments.epochs,
        enable_progress_bar=False, enable_model_summary=False,
        gradient_clip_val=1.0, callbacks=[streamed, kept],
        plugins=[streamed.io])
    model = Model(arguments.nvme_path)
    # Each epoch's order is its own, and the loader draws nothing from the
    # generator that dropout uses: Lightning begins it anew when it resumes.
    data = make_data()
    loader = torch.utils.data.DataLoader(
        data, batch_size=8, generator=torch.Generator(),
        sampler=torch.utils.data.DistributedSampler(data, num_replicas=1,
                                                    rank=0))
    trainer.fit(model, loader, ckpt_path=last_checkpoint(arguments.output_dir)
                if arguments.resume else None)
    if arguments.weights:
        torch.save(model.network.state_dict(), arguments.weights)
    return model.losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--nvme-path', required=True)
    parser.add_argument('--output-dir', required=True)
    parser.add_argument('--epochs', type=int, default=4)
    parser.add_argument('--stop-after', type=int, metavar='EPOCH')
    parser.add_argument('--resume', action='store_true')
    parser.add_argument('--weights', help='where they are saved at the end')
    for loss in train(parser.parse_args()):
        print(f'{loss:.6f}')


if __name__ == '__main__':
    main()
