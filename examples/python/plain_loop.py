"""A plain training loop: a small character model, AdamW's state on disk.

    python examples/python/plain_loop.py --nvme-path /mnt/nvme0

Prints the loss of every step. With --optimizer torch the same loop runs with
torch.optim.AdamW: the one line that differs is in make_optimizer.
"""

import argparse

import torch

import terrace

TEXT = ('It was the best of times, it was the worst of times, it was the age '
        'of wisdom, it was the age of foolishness, it was the epoch of belief, '
        'it was the epoch of incredulity. ') * 20


class CharacterModel(torch.nn.Module):
    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(symbols, width)
        self.recurrent = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, symbols)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) of symbols to (batch, length, symbols) of logits."""
        return self.head(self.recurrent(self.embedding(tokens))[0])


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
    torch.manual_seed(arguments.seed)
    symbols = sorted(set(TEXT))
    data = torch.tensor([symbols.index(c) for c in TEXT])
    model = CharacterModel(len(symbols), arguments.width)
    optimizer = make_optimizer(model.parameters(), arguments)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, arguments.steps)
    losses = []
    for _ in range(arguments.steps):
        starts = torch.randint(len(data) - 33, (8,))
        batch = torch.stack([data[s:s + 33] for s in starts])
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--optimizer', choices=['terrace', 'torch'],
                        default='terrace')
    parser.add_argument('--nvme-path', action='append')
    parser.add_argument('--memory-budget', default='25%')
    parser.add_argument('--steps', type=int, default=30)
    parser.add_argument('--width', type=int, default=128)
    parser.add_argument('--lr', type=float, default=2e-3)
    parser.add_argument('--seed', type=int, default=1)
    for loss in train(parser.parse_args()):
        print(f'{loss:.6f}')


if __name__ == '__main__':
    main()
