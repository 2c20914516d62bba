"""Checkpoints of a Hugging Face Trainer whose optimizer state streams: a
TrainerCallback that writes them with terrace.save, and resumes from them.

    python examples/python/trainer_checkpoint.py --nvme-path /mnt/nvme0 \
        --output-dir runs --stop-after 12
    python examples/python/trainer_checkpoint.py --nvme-path /mnt/nvme0 \
        --output-dir runs --resume

Prints the loss of every step: the second run goes on from the last checkpoint
of the first, bit for bit. The model is made here with random weights; nothing
is downloaded.
"""

import argparse
import os

import torch
import transformers

import terrace


class StreamedCheckpoints(transformers.TrainerCallback):
    """The Trainer keeps all of its checkpoints but the optimizer's state, of
    which its optimizer.pt has the groups alone; that is beside it, in the
    folder `terrace` of each checkpoint, and is rotated with it.

    Args:
        resume_from: the checkpoint that train(resume_from_checkpoint=...) is
            given, where that lies elsewhere than in output_dir.
        shared: the optimizer has a process_group, so that every rank saves its
            share.
    """

    def __init__(self, resume_from=None, shared=False):
        self.resume_from = resume_from
        self.shared = shared

    def on_train_begin(self, args, state, control, model=None, optimizer=None,
                       **kwargs):
        # The Trainer's: accelerate's wrapper of ours.
        optimizer.state_dict = lambda: groups_alone(optimizer)
        if state.global_step > 0:
            folder = self.resume_from or checkpoint_folder(args, state)
            terrace.load(os.path.join(folder, 'terrace'), model,
                         unwrapped(optimizer))

    def on_save(self, args, state, control, model=None, optimizer=None,
                **kwargs):
        if state.is_world_process_zero or self.shared:
            folder = checkpoint_folder(args, state)
            terrace.save(os.path.join(folder, 'terrace'), model,
                         unwrapped(optimizer))


def checkpoint_folder(args, state):
    return os.path.join(args.output_dir, f'checkpoint-{state.global_step}')


def unwrapped(optimizer):
    return getattr(optimizer, 'optimizer', optimizer)


def groups_alone(optimizer):
    """Its state_dict() without state, of which no copy is made."""
    groups, first = [], 0
    for group in optimizer.param_groups:
        end = first + len(group['params'])
        groups.append({**group, 'params': list(range(first, end))})
        first = end
    return {'state': {}, 'param_groups': groups}


class Sequences(torch.utils.data.Dataset):
    """Sequences that count up from a random start."""

    def __init__(self, count: int, length: int, symbols: int) -> None:
        starts = torch.randint(symbols, (count, 1),
                               generator=torch.Generator().manual_seed(3))
        self.tokens = (starts + torch.arange(length)) % symbols

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {'input_ids': self.tokens[index], 'labels': self.tokens[index]}


class Interruption(transformers.TrainerCallback):
    """Ends the run as a user would stop it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step >= self.step


def train(arguments) -> list[float]:
    """The loss of each step of this run."""
    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=101, n_positions=32, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0))
    optimizer = terrace.AdamW(model.parameters(), lr=2e-3,
                              memory_budget='50%',
                              nvme_path=arguments.nvme_path)
    callbacks = [StreamedCheckpoints()]
    if arguments.stop_after:
        callbacks.append(Interruption(arguments.stop_after))
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=arguments.output_dir, max_steps=arguments.steps,
            per_device_train_batch_size=4, logging_steps=1,
            lr_scheduler_type='linear', warmup_steps=5, use_cpu=True,
            save_strategy='steps', save_steps=arguments.save_steps,
            save_total_limit=2, report_to=[], disable_tqdm=True),
        train_dataset=Sequences(48, 32, 101),
        optimizers=(optimizer, None), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=arguments.resume or None)
    if arguments.weights:
        torch.save(model.state_dict(), arguments.weights)
    done = trainer.state.log_history
    return [entry['loss'] for entry in done if 'loss' in entry]


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
