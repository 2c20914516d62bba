"""What terrace.from_deepspeed_config takes from its caller, and tells it."""

import logging
import math

import pytest
import torch

import terrace
from conftest import batches, largest_difference, model, train
from test_deepspeed import PLAIN

# As a Trainer's files have it: the optimizer and the batch are the program's.
OPEN = {'gradient_clipping': 0.0, 'zero_optimization': {'stage': 2}}


ADAM = {'learning_rate': 2e-3, 'beta1': 0.8, 'beta2': 0.99, 'epsilon': 1e-7,
        'weight_decay': 0.1}


def groups_of(network, **first):
    """Matrices decay, the rest does not."""
    matrices = [p for p in network.parameters() if p.dim() > 1]
    others = [p for p in network.parameters() if p.dim() <= 1]
    return [{'params': matrices, 'weight_decay': 0.2, **first},
            {'params': others, 'weight_decay': 0.0}]


def test_without_an_optimizer_it_is_adamw_of_the_callers_values():
    network, other = model(), model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, OPEN, micro_batch=12, learning_rate=2e-3, beta1=0.8,
        beta2=0.99, epsilon=1e-7, weight_decay=0.1)
    theirs = torch.optim.AdamW(other.parameters(), 2e-3, (0.8, 0.99), 1e-7, 0.1)
    train(network, optimizer, batches(10))
    train(other, theirs, batches(10))
    assert largest_difference(network, other) <= 1e-5
    assert settings['optimizer']['lr'] == 2e-3
    assert 'optimizer' in {note['path'] for note in settings['notes']}


def test_what_the_caller_does_not_say_of_it_is_adamws_default():
    optimizer, _, _ = terrace.from_deepspeed_config(
        model(), OPEN, micro_batch=12, learning_rate=2e-3)
    group, = optimizer.param_groups
    plain = terrace.AdamW(model().parameters(), lr=2e-3).param_groups[0]
    for key in ('lr', 'betas', 'eps', 'weight_decay'):
        assert group[key] == plain[key]


@pytest.mark.parametrize('params', [{}, dict.fromkeys(
    ('lr', 'betas', 'eps', 'weight_decay'), 'auto')])
def test_what_the_section_leaves_open_is_the_callers(params):
    network, other = model(), model()
    optimizer, _, settings = terrace.from_deepspeed_config(
        network, {'train_batch_size': 12, 'optimizer': {
            'type': 'AdamW', 'params': params}},
        gradient_clipping=0.05, **ADAM)
    theirs = torch.optim.AdamW(other.parameters(), 2e-3, (0.8, 0.99), 1e-7, 0.1)
    assert settings['gradient_clipping'] == 0.05
    for inputs, targets in batches(5):
        train(network, optimizer, [(inputs, targets)])
        theirs.zero_grad()
        torch.nn.functional.mse_loss(other(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.05)
        theirs.step()
    assert largest_difference(network, other) <= 1e-5


def test_what_the_scheduler_leaves_open_is_the_callers():
    _, scheduler, _ = terrace.from_deepspeed_config(
        model(), {**PLAIN, 'scheduler': {'type': 'WarmupDecayLR', 'params': {
            'warmup_type': 'linear'}}},
        warmup_min_lr=0.125, warmup_max_lr=0.625, warmup_num_steps=4,
        total_num_steps=8)
    rates = [scheduler._config.adam_at(step)[0] for step in range(2, 11)]
    assert rates == pytest.approx(
        [0.125, 0.25, 0.375, 0.5, 0.625, 0.5, 0.375, 0.25, 0.125])


def test_a_number_of_the_text_goes_before_the_callers_and_says_so(caplog):
    config = {**PLAIN, 'dump_state': True, 'steps_per_print': 1}
    said, settings = said_of(caplog, config, learning_rate=1e-5, beta1=0.8,
                             weight_decay=0.1, accumulation_steps=1)
    assert settings['optimizer']['lr'] == 2e-3
    assert sorted(said) == [
        '2 notes on the configuration; notes=True lists them, '
        'settings["notes"] has them',
        "optimizer.params.lr: 0.002 in the text; the caller's "
        'learning_rate=1e-05 is not used']


def test_the_caller_divides_a_batch_of_the_text():
    config = {**PLAIN, 'train_batch_size': 32}
    del config['train_micro_batch_size_per_gpu']

    def divided(**known):
        settings = terrace.from_deepspeed_config(model(), config, **known)[2]
        return settings['micro_batch'], settings['accumulation_steps']

    assert divided() == (32, 1)
    assert divided(micro_batch=4) == (4, 8)
    assert divided(accumulation_steps=4) == (8, 4)
    with pytest.raises(ValueError, match='32 is not .*micro_batch=5'):
        divided(micro_batch=5)
    with pytest.raises(ValueError, match='32 is not micro_batch=4 '
                       r'\* accumulation_steps=2'):
        divided(micro_batch=4, accumulation_steps=2)


@pytest.mark.parametrize('name', ADAM)
def test_numbers_beside_an_optimizer_are_named(name):
    network = model()
    with pytest.raises(ValueError, match=f'optimizer= .*{name}='):
        terrace.from_deepspeed_config(
            network, OPEN, micro_batch=12, **{name: ADAM[name]},
            optimizer=torch.optim.AdamW(network.parameters()))


def test_no_optimizer_at_all_names_what_to_pass():
    with pytest.raises(ValueError, match=r'learning_rate=.* or optimizer='):
        terrace.from_deepspeed_config(model(), OPEN, micro_batch=12)


@pytest.mark.parametrize('kind', [torch.optim.AdamW, torch.optim.Adam])
@pytest.mark.parametrize('on_disk', [False, True])
def test_the_callers_own_groups_are_stepped(kind, on_disk, tmp_path):
    network, other = model(300), model(300)
    config = {**OPEN}
    if on_disk:
        config['zero_optimization'] = {'stage': 2, 'offload_optimizer': {
            'device': 'nvme', 'nvme_path': str(tmp_path)}}
    own = kind(groups_of(network, lr=3e-3, betas=(0.8, 0.99)), lr=1e-3)
    theirs = kind(groups_of(other, lr=3e-3, betas=(0.8, 0.99)), lr=1e-3)
    optimizer, _, _ = terrace.from_deepspeed_config(
        network, config, optimizer=own, micro_batch=12)
    train(network, optimizer, batches(6, 300))
    train(other, theirs, batches(6, 300))
    assert largest_difference(network, other) <= 1e-5
    assert [group['lr'] for group in optimizer.param_groups] == [3e-3, 1e-3]
    names = dict(network.named_parameters())
    assert all(names[name] is parameter
               for group in optimizer.param_groups
               for name, parameter in zip(group['param_names'],
                                          group['params'], strict=True))
    assert (optimizer.stats()['disk_bytes'] > 0) == on_disk


def test_the_note_on_the_callers_optimizer_has_all_groups_numbers():
    network = model()
    settings = terrace.from_deepspeed_config(
        network, OPEN, micro_batch=12, optimizer=torch.optim.AdamW(
            groups_of(network, lr=3e-3, betas=(0.8, 0.99)), lr=1e-3))[2]
    note, = [note['text'] for note in settings['notes']
             if note['path'] == 'optimizer']
    assert note.endswith(
        'AdamW of lr 0.003, betas 0.8 and 0.99, eps 1e-08, weight_decay 0.2 in '
        'the first of 2 groups, which keep their own: lr 0.001 to 0.003, betas '
        '(0.8, 0.99) to (0.9, 0.999), weight_decay 0 to 0.2')
    alike = torch.optim.AdamW([{'params': [parameter]}
                               for parameter in network.parameters()])
    settings = terrace.from_deepspeed_config(
        network, OPEN, micro_batch=12, optimizer=alike)[2]
    assert any(note['text'].endswith('eps 1e-08, weight_decay 0.01')
               for note in settings['notes'])


def test_a_part_of_the_model_may_be_the_callers():
    network = model()
    before, moves = (network[i].weight.detach().clone() for i in (0, 4))
    own = torch.optim.AdamW(network[4].parameters())
    optimizer, _, _ = terrace.from_deepspeed_config(
        network, OPEN, optimizer=own, micro_batch=12)
    train(network, optimizer, batches(2))
    assert torch.equal(network[0].weight, before)
    assert not torch.isclose(network[4].weight, moves, rtol=0).any()


def stepped(network):
    optimizer = torch.optim.AdamW(network.parameters())
    train(network, optimizer, batches(1))
    return optimizer


def scheduled(network):
    optimizer = torch.optim.AdamW(network.parameters())
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    return optimizer


@pytest.mark.parametrize('make, change, exception, text', [
    (lambda n: torch.optim.SGD(n.parameters(), 0.1), {}, NotImplementedError,
     'SGD'),
    (lambda n: torch.optim.AdamW(n.parameters(), amsgrad=True), {},
     NotImplementedError, 'amsgrad'),
    (stepped, {}, ValueError, 'stepped'),
    (scheduled, {}, ValueError, 'has a scheduler'),
    (lambda n: torch.optim.AdamW(n.parameters()),
     {'optimizer': PLAIN['optimizer']}, ValueError, 'give one'),
    (lambda n: torch.optim.AdamW(groups_of(n, lr=0.5)),
     {'scheduler': {'type': 'WarmupLR', 'params': {'warmup_num_steps': 4}}},
     ValueError, 'one rate for all groups'),
])
def test_an_optimizer_that_cannot_be_taken_over(make, change, exception, text):
    network = model()
    with pytest.raises(exception, match=text):
        terrace.from_deepspeed_config(network, {**OPEN, **change},
                                      optimizer=make(network), micro_batch=12)


def test_the_rate_of_the_callers_own_is_the_schedules():
    network = model()
    own = torch.optim.AdamW(groups_of(network), lr=0.25)
    optimizer, scheduler, _ = terrace.from_deepspeed_config(
        network, {**OPEN, 'scheduler': {
            'type': 'WarmupLR', 'params': {'warmup_num_steps': 4}}},
        optimizer=own, micro_batch=12)
    for rate in (0, 0, 0.125, 0.25 * math.log(3, 4), 0.25, 0.25):
        assert [group['lr'] for group in optimizer.param_groups] == (
            pytest.approx([rate, rate]))
        train(network, optimizer, batches(1))
        scheduler.step()


def test_a_batch_that_is_not_in_the_text_is_the_callers():
    settings = terrace.from_deepspeed_config(
        model(), OPEN, learning_rate=1e-3, micro_batch=3,
        accumulation_steps=2)[2]
    assert settings['micro_batch'] == 3
    assert settings['accumulation_steps'] == 2
    with pytest.raises(ValueError, match='micro_batch='):
        terrace.from_deepspeed_config(model(), OPEN, learning_rate=1e-3)


@pytest.mark.parametrize('stage', [0, 2, 3])
def test_parameters_that_are_in_cpu_memory_are_offloaded_there(stage):
    settings = terrace.from_deepspeed_config(model(), {
        **PLAIN, 'zero_optimization': {
            'stage': stage, 'offload_param': {'device': 'cpu'}}})[2]
    assert 'zero_optimization.offload_param.device' in {
        note['path'] for note in settings['notes']}


def test_parameters_elsewhere_are_not_offloaded():
    network = model()
    network.register_parameter('far', torch.nn.Parameter(
        torch.empty(3, device='meta'), requires_grad=False))
    with pytest.raises(NotImplementedError, match='offload_param'):
        terrace.from_deepspeed_config(network, {
            **PLAIN, 'zero_optimization': {
                'stage': 3, 'offload_param': {'device': 'cpu'}}})


def test_a_message_names_a_line_of_a_file_and_none_of_a_dict(tmp_path):
    file = tmp_path / 'ds.json'
    file.write_text('{"train_batch_size": 1,\n"gradient_clipping": -1}')
    with pytest.raises(ValueError, match=r'\(line 2\)'):
        terrace.from_deepspeed_config(model(), file)
    for change in ({'gradient_clipping': -1}, {'bf16': {'enabeld': True}},
                   {'optimizer': {'type': 'AdamX'}},
                   {'scheduler': {'type': 'WarmUpLR'}},
                   {'zero_optimization': {'stage': 1, 'cpu_offload': True,
                                          'offload_optimizer': {}}}):
        with pytest.raises(ValueError) as caught:
            terrace.from_deepspeed_config(model(), {**PLAIN, **change})
        assert 'line' not in str(caught.value), str(caught.value)


def test_a_number_that_json_has_not():
    with pytest.raises(ValueError, match='terrace: gradient_clipping: nan'):
        terrace.from_deepspeed_config(
            model(), {**PLAIN, 'gradient_clipping': float('nan')})


def test_a_comma_after_the_last_item(tmp_path):
    file = tmp_path / 'ds.json'
    file.write_text('{"train_batch_size": 8,\n "optimizer": {"type": "AdamW", '
                    '"params": {"betas": [0.8, 0.9,],}},\n}')
    optimizer, _, _ = terrace.from_deepspeed_config(model(), file)
    assert optimizer.param_groups[0]['betas'] == (0.8, 0.9)


def said_of(caplog, config, **options):
    caplog.clear()
    with caplog.at_level(logging.INFO, 'terrace'):
        settings = terrace.from_deepspeed_config(model(), config, **options)[2]
    return [record.getMessage() for record in caplog.records], settings


def test_notes_are_one_line_unless_asked_for(tmp_path, caplog):
    file = tmp_path / 'ds.json'
    file.write_text('{"train_batch_size": 8, "steps_per_print": 1, '
                    '"dump_state": true, "optimizer": {"type": "AdamW"}, '
                    '"wall_clock_breakdown": true}')
    said, settings = said_of(caplog, file)
    assert len(settings['notes']) == 3
    line, = said
    assert '3 notes on ds.json' in line and 'notes=True' in line
    said, settings = said_of(caplog, file, notes=True)
    assert said == [f'{note["path"]}: {note["text"]}'
                    for note in settings['notes']]
    # One alone says itself; none says nothing.
    said, _ = said_of(caplog, {**PLAIN, 'dump_state': True})
    assert said == ['dump_state: accepted; no effect here: reports are the '
                    "training program's"]
    assert said_of(caplog, PLAIN)[0] == []
