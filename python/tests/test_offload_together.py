"""What programs combine, with parameters, gradients, state and activations
below: two models of one loss, autocast, groups under a scheduler, a scaler,
operators of their own."""

import ctypes

import pytest
import torch

import terrace
from offloaded import (TOKENS, WIDTH, check_equal_values, check_same, mlp,
                       mlp_loss, sgd, token_loss, transformer, values)
from terrace._base.library import is_offloaded


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(TOKENS, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.1,
                                             batch_first=True)
            for _ in range(3))

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def head():
    return mlp(12, seed=2)


def train_two(encoder, decoder, optimizers, steps=4):
    """Losses of both models' one backward pass."""
    torch.manual_seed(11)  # of dropout
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        tokens = torch.randint(TOKENS, (3, 9), generator=generator)
        loss = decoder(encoder(tokens)).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def adamw(model, **options):
    return terrace.AdamW(model.parameters(), lr=1e-2, **options)


@pytest.mark.parametrize('paths', [1, 2])
@pytest.mark.parametrize('overlap', [None, False])
def test_two_models_of_one_loss(tmp_path, paths, overlap):
    """Each has its optimizer, which joins it; of one path, and of two."""
    plain = Encoder(), head()
    expected = train_two(*plain, [adamw(each) for each in plain])
    models, offloads = (Encoder(), head()), []
    for number, model in enumerate(models):
        path = tmp_path / str(number % paths)
        path.mkdir(exist_ok=True)
        offloads.append(terrace.offload(model, memory_budget='33%',
                                        nvme_path=str(path)))
    optimizers = [adamw(model, overlap=overlap) for model in models]
    check_same(train_two(*models, optimizers), expected)
    for model, offload, other in zip(models, offloads, plain):
        stats = offload.stats()
        assert stats['joined_bytes'] > 0 and stats['failures'] == 0
        assert stats['memory_peak_bytes'] <= stats['budget_bytes']
        assert stats['evictions'] > 0
        offload.close()
        check_equal_values(values(model), values(other))


@pytest.mark.parametrize('joins', [False, True])
def test_one_optimizer_of_two_models(tmp_path, joins):
    """By itself it joins none, and has its state elsewhere; or the one that is
    said, with the gradients of that one's parameters."""
    plain = Encoder(), head()
    expected = train_two(*plain, [adamw(torch.nn.ModuleList(plain))])
    models = Encoder(), head()
    offloads = [terrace.offload(model, memory_budget='33%',
                                nvme_path=str(tmp_path)) for model in models]
    optimizer = adamw(torch.nn.ModuleList(models),
                      offload=offloads[1] if joins else None)
    check_same(train_two(*models, [optimizer]), expected)
    optimizer.flush()
    for number, (model, other) in enumerate(zip(models, plain)):
        has_joined = joins and number == 1
        stats = offloads[number].stats()
        assert (stats['joined_bytes'] > 0) == has_joined
        assert stats['failures'] == 0 and stats['evictions'] > 0
        model.zero_grad()
        model(torch.zeros(2, 3, dtype=torch.int64) if number == 0
              else torch.randn(3, WIDTH)).sum().backward()
        assert all(is_offloaded(p.grad) == has_joined
                   for p in model.parameters())
        offloads[number].close()
        check_equal_values(values(model), values(other))


def test_one_model_that_is_closed_leaves_the_other(tmp_path):
    plain = Encoder(), head()
    reference = [adamw(each) for each in plain]
    expected = [train_two(*plain, reference) for _ in range(2)]
    models = Encoder(), head()
    offloads = [terrace.offload(model, memory_budget='33%',
                                nvme_path=str(tmp_path)) for model in models]
    optimizers = [adamw(model) for model in models]
    check_same(train_two(*models, optimizers), expected[0])
    state = optimizers[0].state_dict()
    offloads[0].close()
    optimizers[0] = adamw(models[0])
    optimizers[0].load_state_dict(state)
    check_same(train_two(*models, optimizers), expected[1])
    assert offloads[1].stats()['failures'] == 0
    offloads[1].close()
    for model, other in zip(models, plain):
        check_equal_values(values(model), values(other))


def everything_below(model, directory):
    return terrace.offload(model, memory_budget='2MiB',
                           nvme_path=str(directory), activations=True,
                           activations_above='4KiB')


def check_everything_below(tmp_path, build, run):
    """`run` leaves the same in memory."""
    plain = build()
    expected = run(plain, plain.parameters())
    model = build()
    with everything_below(model, tmp_path) as offload:
        check_same(run(model, model.parameters()), expected)
        stats = offload.stats()
    check_equal_values(values(model), values(plain))
    assert stats['failures'] == 0
    assert stats['memory_peak_bytes'] <= stats['budget_bytes'] <= 2 << 20
    assert stats['activation_fetched_bytes'] > 0
    assert stats['bytes_read'] > stats['activation_fetched_bytes']


def trained_below(model, loss_of, optimizer, between=None, scaler=None):
    """Losses, and the norms of clipped gradients."""
    torch.manual_seed(11)  # of dropout
    generator = torch.Generator().manual_seed(5)
    left = []
    for _ in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            loss = loss_of(model, generator)
            (scaler.scale(loss) if scaler else loss).backward()
            left.append(loss.detach().clone())
        if scaler:
            scaler.unscale_(optimizer)
        left.append(terrace.clip_grad_norm_(model.parameters(), 0.1).clone())
        if scaler:
            scaler.step(optimizer)
            scaler.update()
            left.append(torch.tensor(scaler.get_scale()))
        else:
            optimizer.step()
        if between:
            between()
    return left


def wide(model, generator):
    """Activations of a layer are 128 KiB."""
    inputs = torch.randn(256, WIDTH, generator=generator)
    return model(inputs).float().square().mean()


@pytest.mark.parametrize('checkpointing', [None, 're-entrant', 'other'])
def test_autocast(tmp_path, checkpointing):
    def loss_of(model, generator):
        with torch.autocast('cpu', torch.bfloat16):
            return token_loss(model, generator)

    def run(model, parameters):
        trained = [p for p in parameters if p.requires_grad]
        return trained_below(model, loss_of,
                             terrace.AdamW(trained, lr=1e-2))

    check_everything_below(tmp_path, lambda: transformer(checkpointing), run)


def test_autocast_of_wide_layers_with_a_scaler(tmp_path):
    def loss_of(model, generator):
        with torch.autocast('cpu', torch.bfloat16):
            return wide(model, generator)

    def run(model, parameters):
        scaler = torch.amp.GradScaler('cpu', init_scale=2.0 ** 8,
                                      growth_interval=2)
        return trained_below(model, loss_of,
                             terrace.AdamW(parameters, lr=1e-2),
                             scaler=scaler)

    check_everything_below(tmp_path, lambda: mlp(16), run)


@pytest.mark.parametrize('kind', ['one cycle', 'sequential', 'lambda'])
def test_groups_under_a_scheduler(tmp_path, kind):
    schedulers = torch.optim.lr_scheduler

    def scheduler_of(optimizer):
        if kind == 'one cycle':
            return schedulers.OneCycleLR(optimizer, [1e-2, 3e-3, 1e-3],
                                         total_steps=9, cycle_momentum=True)
        if kind == 'lambda':
            return schedulers.LambdaLR(optimizer, [
                lambda step, k=k: 1 / (step + k) for k in (1, 2, 3)])
        return schedulers.SequentialLR(
            optimizer, [schedulers.ConstantLR(optimizer, 0.1, 2),
                        schedulers.ExponentialLR(optimizer, 0.9)], [2])

    def run(model, parameters):
        parameters = list(parameters)
        optimizer = terrace.AdamW(
            [{'params': parameters[:9]},
             {'params': parameters[9:20], 'weight_decay': 0.3, 'lr': 3e-2},
             {'params': parameters[20:], 'betas': (0.8, 0.9), 'eps': 1e-5}],
            lr=1e-2)
        scheduler = scheduler_of(optimizer)
        left = trained_below(model, wide, optimizer, between=scheduler.step)
        return left + [torch.tensor(group['lr'], dtype=torch.float64)
                       for group in optimizer.param_groups]

    check_everything_below(tmp_path, lambda: mlp(16), run)


@torch.library.custom_op('terrace_tests::overwrite', mutates_args={'weight'})
def overwrite(weight: torch.Tensor, values: torch.Tensor) -> None:
    """By no operation of torch."""
    assert weight.is_contiguous() and weight.nbytes == values.nbytes
    ctypes.memmove(weight.data_ptr(), values.data_ptr(), weight.nbytes)


@torch.library.custom_op('terrace_tests::linear', mutates_args=())
def linear(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Reads the weight by no operation of torch."""
    read = torch.empty(weight.shape)
    ctypes.memmove(read.data_ptr(), weight.data_ptr(), weight.nbytes)
    return inputs @ read.t()


linear.register_autograd(
    lambda ctx, gradient: (gradient @ ctx.saved_tensors[1],
                           gradient.t() @ ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def test_what_an_operator_of_the_program_reads_is_there(tmp_path):
    def run(model):
        optimizer = sgd(model.parameters())
        generator = torch.Generator().manual_seed(5)
        for _ in range(3):
            hidden = torch.randn(5, WIDTH, generator=generator)
            for layer in model:
                hidden = (layer(hidden) if isinstance(layer, torch.nn.Tanh)
                          else linear(hidden, layer.weight) + layer.bias)
            hidden.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    plain, model = mlp(24), mlp(24)
    run(plain)
    offload = terrace.offload(model, memory_budget='1%',
                              nvme_path=str(tmp_path))
    run(model)
    assert offload.stats()['evictions'] > 0
    offload.close()
    check_equal_values(values(model), values(plain))


def test_what_an_operator_of_the_program_writes_survives(tmp_path):
    def run(model, optimizer):
        generator = torch.Generator().manual_seed(5)
        for step in range(3):
            drawn = torch.randn(WIDTH, WIDTH, generator=generator) / 16
            with torch.no_grad():
                overwrite(model[2 * step].weight, drawn)
            mlp_loss(model, generator).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            overwrite(model[8].weight, drawn)
        return drawn

    plain, model = mlp(24), mlp(24)
    run(plain, adamw(plain))
    offload = terrace.offload(model, memory_budget='1%',
                              nvme_path=str(tmp_path))
    drawn = run(model, adamw(model))
    before = offload.stats()['evictions']
    for layer in model[10:]:
        layer(torch.zeros(1, WIDTH))
    assert offload.stats()['evictions'] > before
    # Away, and back.
    assert torch.equal(model[8].weight, drawn)
    check_equal_values(values(model), values(plain))
    offload.close()
    check_equal_values(values(model), values(plain))
