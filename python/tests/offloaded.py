"""What the tests of terrace.offload share: models, training, comparison."""

import torch

import terrace

WIDTH = 128
TOKENS = 97


def mlp(layers=6, dtype=torch.float32, seed=7):
    """A layer is 64 KiB of float32."""
    torch.manual_seed(seed)
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts).to(dtype)


class Transformer(torch.nn.Module):
    """Its head is its embedding, its last layer is frozen, dropout is on."""

    def __init__(self, checkpointing=None):
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.1,
                                             batch_first=True)
            for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embedding.weight
        self.layers[2].requires_grad_(False)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            if self.checkpointing is None or not torch.is_grad_enabled():
                hidden = layer(hidden)
            else:
                hidden = torch.utils.checkpoint.checkpoint(
                    layer, hidden,
                    use_reentrant=self.checkpointing == 're-entrant')
        return self.head(hidden)


def transformer(checkpointing=None, seed=7):
    torch.manual_seed(seed)
    return Transformer(checkpointing)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9,
                           weight_decay=0.01)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def mlp_loss(model, generator):
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(5, WIDTH, generator=generator).to(dtype)
    return model(inputs).float().square().mean()


def token_loss(model, generator):
    tokens = torch.randint(TOKENS, (3, 9), generator=generator)
    return torch.nn.functional.cross_entropy(
        model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(model, loss_of, make=sgd, steps=4, micro=1, around=None):
    """The losses, and what a model in eval() answers, as tensors."""
    torch.manual_seed(11)  # dropout's
    generator = torch.Generator().manual_seed(5)
    optimizer = make(p for p in model.parameters() if p.requires_grad)
    left = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro):
            if around is None:
                loss = loss_of(model, generator)
            else:
                with around():
                    loss = loss_of(model, generator)
            loss.backward()
            left.append(loss.detach().clone())
        optimizer.step()
    model.eval()
    with torch.no_grad():
        left.append(loss_of(model, generator))
    with torch.inference_mode():
        left.append(loss_of(model, generator).clone())
    model.train()
    return left


def values(model):
    return {name: tensor.detach().clone()
            for name, tensor in model.named_parameters()}


def check_same(left, right):
    assert len(left) == len(right)
    for index, (mine, theirs) in enumerate(zip(left, right)):
        assert torch.equal(mine, theirs), index


def check_equal_values(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def check_identical(build, run, directory, budget='40%'):
    """`run` of a model below and of the same one in memory leave the same, and
    the same parameters; the counters of the one below."""
    stats = check_identical_runs(build, run, lambda model: terrace.offload(
        model, memory_budget=budget, nvme_path=str(directory)))
    assert stats['over_budget_bytes'] <= 0
    assert (stats['budget_bytes'] - stats['joined_bytes']
            < stats['parameter_bytes'])
    assert stats['evictions'] > 0 and stats['fetches'] > 0
    return stats


def check_identical_runs(build, run, offload):
    """The same of a model that is offloaded in any way."""
    plain = build()
    expected = run(plain)
    model = build()
    below = offload(model)
    check_same(run(model), expected)
    stats = below.stats()
    below.close()
    check_equal_values(values(model), values(plain))
    assert stats['failures'] == 0
    assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    return stats


def is_cold(tensor):
    """Asked for the address, as a library would."""
    try:
        return tensor.data_ptr() == 0
    except RuntimeError as error:  # from torch 2.12 on
        assert 'terrace:' in str(error)
        return True


def written_below(offload, go_through):
    """Bytes that went below as go_through() was repeated, in which tensors
    left."""
    go_through()
    before = offload.stats()
    go_through()
    go_through()
    after = offload.stats()
    assert after['evictions'] > before['evictions']
    return after['bytes_written'] - before['bytes_written']


def trained_in_groups(**options):
    """Parameters after steps of two groups under a scheduler."""
    network = mlp(6)
    parameters = list(network.parameters())
    optimizer = terrace.AdamW(
        [{'params': parameters[:4], 'lr': 1e-2},
         {'params': parameters[4:], 'weight_decay': 0.3, 'eps': 1e-5}],
        lr=1e-3, **options)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [1e-2, 1e-3], total_steps=9, cycle_momentum=True)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        mlp_loss(network, generator).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    optimizer.close()
    return parameters
