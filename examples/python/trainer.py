"""Hugging Face Trainer with Terrace's AdamW, on a small GPT-2 that is made
here with random weights: nothing is downloaded.

    python examples/python/trainer.py --nvme-path /mnt/nvme0

Prints the loss of every step. The one line that differs from a script with
torch.optim.AdamW is the optimizer's.
"""

import argparse
import tempfile

import torch
import transformers

import terrace


class Sequences(torch.utils.data.Dataset):
    """Sequences that count up from a random start: there is something to
    learn."""

    def __init__(self, count: int, length: int, symbols: int) -> None:
        starts = torch.randint(symbols, (count, 1),
                               generator=torch.Generator().manual_seed(3))
        self.tokens = (starts + torch.arange(length)) % symbols

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {'input_ids': self.tokens[index], 'labels': self.tokens[index]}


def make_optimizer(parameters, arguments):
    if arguments.optimizer == 'torch':
        return torch.optim.AdamW(parameters, lr=arguments.lr)
    if not arguments.nvme_path:
        return terrace.AdamW(parameters, lr=arguments.lr)
    return terrace.AdamW(parameters, lr=arguments.lr,
                         memory_budget=arguments.memory_budget,
                         nvme_path=arguments.nvme_path)


def train(arguments) -> list[float]:
    """The loss of each step."""
    transformers.set_seed(arguments.seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=101, n_positions=32, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0))
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=folder, max_steps=arguments.steps,
                per_device_train_batch_size=4, logging_steps=1,
                lr_scheduler_type='linear', warmup_steps=5, use_cpu=True,
                max_grad_norm=1.0, save_strategy='no', report_to=[],
                disable_tqdm=True, seed=arguments.seed,
                dataloader_num_workers=arguments.workers),
            train_dataset=Sequences(400, 32, 101),
            optimizers=(make_optimizer(model.parameters(), arguments), None))
        trainer.train()
    return [entry['loss'] for entry in trainer.state.log_history
            if 'loss' in entry]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--optimizer', choices=['terrace', 'torch'],
                        default='terrace')
    parser.add_argument('--nvme-path', action='append')
    parser.add_argument('--memory-budget', default='50%')
    parser.add_argument('--steps', type=int, default=30)
    parser.add_argument('--lr', type=float, default=2e-3)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--workers', type=int, default=0)
    for loss in train(parser.parse_args()):
        print(f'{loss:.6f}')


if __name__ == '__main__':
    main()
