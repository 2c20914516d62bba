"""What DeepSpeed's JSON does in DeepSpeed and in Terrace: the same model and
data, trained on one CPU as each file says.

    PYTHON deepspeed_files.py run deepspeed FILE... > deepspeed.jsonl
    PYTHON deepspeed_files.py run terrace FILE... > terrace.jsonl
    PYTHON deepspeed_files.py run terrace-as-stage-0 FILE... > stage_0.jsonl
    python deepspeed_files.py run train_gpt --program PATH FILE... > gpt.jsonl
    python deepspeed_files.py table ADDRESSES DEEPSPEED TERRACE STAGE_0 GPT

Each file in a process of its own, which ends after 120 seconds. PYTHON has
DeepSpeed 0.19.8 for the first, whose question whether this processor has fp16
instructions is answered with yes: without them the same is slower. "auto" is
filled in as transformers' Trainer does it; every nvme_path is a temporary
folder. A line of JSON a file: whether it ran, its error, the losses and the
learning rates of its steps. ADDRESSES has a line a file: its name, repository,
commit and path, with tabs between.

DeepSpeed does two things with 16-bit models at stage 0 alone, which Terrace
does not: it begins with a step of zero gradients, and in fp16 it divides
gradients by a scale that no loss was multiplied by. terrace-as-stage-0 does
both to such files, to see whether the rest is the same.
"""

import argparse
import copy
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback

_SECONDS = 120
_STEPS = 4
_MOST_BATCHES = 256  # forward passes a file
_MICRO_BATCH = 2
_WIDTH = 24
_RATE = 1e-3
# What a trainer fills in: path of the key, name in Terrace, value.
_AUTO = (
    ('gradient_clipping', 'gradient_clipping', 1.0),
    ('optimizer.params.lr', 'learning_rate', _RATE),
    ('optimizer.params.betas', None, [0.9, 0.999]),
    ('optimizer.params.eps', 'epsilon', 1e-8),
    ('optimizer.params.weight_decay', 'weight_decay', 0.0),
    ('scheduler.params.warmup_min_lr', 'warmup_min_lr', 0.0),
    ('scheduler.params.warmup_max_lr', 'warmup_max_lr', _RATE),
    ('scheduler.params.warmup_num_steps', 'warmup_num_steps', 2),
    ('scheduler.params.total_num_steps', 'total_num_steps', 20),
)
_BATCH = ('train_batch_size', 'train_micro_batch_size_per_gpu',
          'gradient_accumulation_steps')


def section_of(config, path):
    """The object that has the key, and the key's own name; None: none has."""
    *above, name = path.split('.')
    for part in above:
        config = config.get(part) if isinstance(config, dict) else None
    return (config if isinstance(config, dict) and name in config else None,
            name)


def filled(config):
    """As a trainer hands it to DeepSpeed: no "auto" where a number must be."""
    config = copy.deepcopy(config)
    for path, _, value in _AUTO:
        section, name = section_of(config, path)
        if section is not None and section[name] == 'auto':
            section[name] = value
    for name in ('fp16', 'bf16'):
        section, key = section_of(config, f'{name}.enabled')
        if section is not None and section[key] == 'auto':
            section[key] = False
    known = [name for name in _BATCH if isinstance(config.get(name), int)]
    for name in _BATCH:
        if config.get(name) == 'auto':
            del config[name]
    if not {'train_batch_size', 'train_micro_batch_size_per_gpu'} & set(known):
        config['train_micro_batch_size_per_gpu'] = _MICRO_BATCH
    return config


def known_numbers(config):
    """What a program passes to Terrace beside the same file."""
    known = {}
    for path, name, value in _AUTO:
        section, key = section_of(config, path)
        if section is not None and section[key] == 'auto' and name:
            known[name] = value
    if not any(isinstance(config.get(name), int) for name in _BATCH[:2]):
        known['micro_batch'] = _MICRO_BATCH
    return known


def copied(path, folder):
    """The file's copy in the folder, where its every nvme_path is too."""
    with open(path, encoding='utf-8') as file:
        text = re.sub(r'("nvme_path"\s*:\s*)"[^"]*"',
                      lambda match: match[1] + json.dumps(folder), file.read())
    path = os.path.join(folder, 'config.json')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
    return path


def without_comments(text):
    return re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/',
                  lambda match: match[1] or '', text, flags=re.DOTALL)


def model_and_data(micro_batch):
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.GELU(),
        torch.nn.LayerNorm(_WIDTH), torch.nn.Linear(_WIDTH, 1))
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(_STEPS, micro_batch, _WIDTH, generator=generator)
    return model, inputs, inputs[..., :1].sin()


def loss_of(model, dtype, inputs, targets):
    outputs = model(inputs.to(dtype)).float()
    return ((outputs - targets) ** 2).mean()


def needs_host_adam(config):
    zero = config.get('zero_optimization')
    zero = zero if isinstance(zero, dict) else {}
    offload = zero.get('offload_optimizer') or {}
    return bool(zero.get('cpu_offload')) or (
        offload.get('device') in ('cpu', 'nvme'))


def train_deepspeed(path, note):
    import deepspeed
    import hjson
    import torch
    deepspeed.init_distributed('gloo')
    with open(path, encoding='utf-8') as file:
        config = filled(hjson.load(file, object_pairs_hook=dict))
    settings = deepspeed.DeepSpeedConfig(copy.deepcopy(config))
    steps = settings.gradient_accumulation_steps
    model, inputs, targets = model_and_data(
        settings.train_micro_batch_size_per_gpu)
    optimizer = None
    if 'optimizer' not in config:
        kind = (deepspeed.ops.adam.DeepSpeedCPUAdam if needs_host_adam(config)
                else torch.optim.AdamW)
        optimizer = kind(model.parameters(), lr=_RATE, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(
        model=model, config=config, optimizer=optimizer,
        model_parameters=model.parameters())
    dtype = (torch.float16 if settings.float16_config.enabled else
             torch.bfloat16 if settings.bfloat16_config.enabled else
             torch.float32)
    for step in range(min(_STEPS, max(1, _MOST_BATCHES // steps))):
        total = 0.0
        note('rates', engine.get_lr()[0] if engine.optimizer else None)
        for _ in range(steps):
            loss = loss_of(engine, dtype, inputs[step], targets[step])
            engine.backward(loss)
            engine.step()
            total += loss.item() / steps
        note('losses', total)


class Scale:
    """DeepSpeed's loss scale."""

    def __init__(self, numbers):
        self._numbers = numbers
        self.value = numbers['initial'] if numbers else 1.0
        self._left = numbers['hysteresis'] if numbers else 1
        self._step, self._bad = 0, -1

    def update(self, overflow):
        numbers = self._numbers
        if not numbers or not numbers['dynamic']:
            return
        if overflow:
            if self._left == 1:
                self.value = max(self.value / 2, numbers['least'])
            else:
                self._left -= 1
            self._bad = self._step
        else:
            if numbers['consecutive_hysteresis']:
                self._left = numbers['hysteresis']
            good_before = self._step - self._bad - 1
            if good_before > 0 and good_before % numbers['window'] == 0:
                self._left = numbers['hysteresis']
                self.value *= 2
        self._step += 1


def step_of_zeros(model, optimizer):
    """Moments stay 0; counters and decay are those of a step."""
    import torch
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def train_as_stage_0(path, note):
    train_terrace(path, note, as_stage_0=True)


def train_terrace(path, note, as_stage_0=False):
    import torch
    import terrace
    with open(path, encoding='utf-8') as file:
        text = file.read()
    config = json.loads(re.sub(r',(\s*[}\]])', r'\1', without_comments(text)))
    model, *_ = model_and_data(1)
    brought = None
    if 'optimizer' not in config:
        brought = torch.optim.AdamW(model.parameters(), lr=_RATE,
                                    weight_decay=0.0)
    optimizer, scheduler, settings = terrace.from_deepspeed_config(
        model, path, optimizer=brought, **known_numbers(config))
    _, inputs, targets = model_and_data(settings['micro_batch'])
    steps = settings['accumulation_steps']
    dtype = next(model.parameters()).dtype
    scale = Scale(settings['loss_scale'])
    as_stage_0 &= settings['stage'] == 0 and dtype != torch.float32
    if as_stage_0:
        step_of_zeros(model, optimizer)
    for step in range(min(_STEPS, max(1, _MOST_BATCHES // steps))):
        total = 0.0
        note('rates', optimizer.param_groups[0]['lr'])
        for _ in range(steps):
            loss = loss_of(model, dtype, inputs[step], targets[step])
            multiplier = 1.0 if as_stage_0 else scale.value
            (loss * (multiplier / steps)).backward()
            total += loss.item() / steps
        overflow = not all(bool(p.grad.isfinite().all())
                           for p in model.parameters() if p.grad is not None)
        if scale.value != 1:
            optimizer.grad_scale = torch.tensor(scale.value)
        optimizer.step()
        optimizer.zero_grad()
        scale.update(overflow)
        if scheduler is not None:
            scheduler.step()
        note('losses', total)
    if settings['offload'] is not None:
        settings['offload'].close()


def in_process(train, path):
    """A row, of a child of this process, which has the libraries loaded."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.dup2(2, 1)  # libraries say much
        signal.alarm(_SECONDS)
        row = {'losses': [], 'rates': []}
        try:
            with tempfile.TemporaryDirectory() as folder:
                train(copied(path, folder),
                      lambda name, value: row[name].append(value))
            row['error'] = None
        except BaseException as error:
            traceback.print_exc()
            row['error'] = f'{type(error).__name__}: {error}'[:400]
        with os.fdopen(writer, 'w') as file:
            json.dump(row, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {'error': f'ended with {status}'}


def in_train_gpt(program, path):
    row = {'error': None}
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(
                [program, '--config', copied(path, folder), '--steps', '1',
                 '--layers', '1', '--width', '32', '--heads', '2',
                 '--context', '8'],
                capture_output=True, text=True, timeout=_SECONDS, check=False)
            if ended.returncode:
                row['error'] = ended.stderr.strip()[-400:]
        except subprocess.TimeoutExpired:
            row['error'] = f'not done after {_SECONDS} s'
    return row


def run(arguments):
    os.environ.update(RANK='0', WORLD_SIZE='1', LOCAL_RANK='0',
                      MASTER_ADDR='127.0.0.1', OMP_NUM_THREADS='1')
    if arguments.door == 'deepspeed':
        os.environ['DS_ACCELERATOR'] = 'cpu'
        import deepspeed.ops.adam
        deepspeed.accelerator.get_accelerator().is_fp16_supported = (
            lambda: True)
    elif arguments.door != 'train_gpt':
        import terrace
        del terrace
    for number, path in enumerate(arguments.files):
        os.environ['MASTER_PORT'] = str(20000 + number)
        if arguments.door == 'train_gpt':
            row = in_train_gpt(arguments.program, path)
        else:
            train = {'deepspeed': train_deepspeed, 'terrace': train_terrace,
                     'terrace-as-stage-0': train_as_stage_0}
            row = in_process(train[arguments.door], path)
        print(json.dumps({'file': os.path.basename(path), **row}), flush=True)


def rows_of(path):
    with open(path, encoding='utf-8') as file:
        return {row['file']: row for row in map(json.loads, file)}


def are_close(ours, theirs, share):
    return len(ours) == len(theirs) and all(
        a is not None and b is not None and abs(a - b) <= share * max(
            abs(a), abs(b), 1e-9) for a, b in zip(ours, theirs))


def table(arguments):
    theirs, ours, stage_0, gpt = map(rows_of, (
        arguments.deepspeed, arguments.terrace, arguments.stage_0,
        arguments.train_gpt))
    ran = [name for name, row in theirs.items() if not row['error']]
    accepted = [name for name in ran if not ours[name]['error']]
    rates = [name for name in accepted if are_close(
        ours[name]['rates'], theirs[name]['rates'], 1e-6)]
    losses = [name for name in accepted if are_close(
        ours[name]['losses'], theirs[name]['losses'], 0.02)]
    begun = [name for name in accepted if name not in losses and are_close(
        stage_0[name]['losses'], theirs[name]['losses'], 1e-5)]
    trained = [name for name in ran if not gpt[name]['error']]
    print(f'{len(theirs)} files; DeepSpeed runs {len(ran)}; of those Terrace '
          f'accepts {len(accepted)} ({len(accepted) / len(ran):.1%}), the rates'
          f' of {len(rates)} and the losses of {len(losses)} are the same, of '
          f'{len(begun)} once both do what DeepSpeed does at stage 0; '
          f'train_gpt accepts {len(trained)} ({len(trained) / len(ran):.1%}).')
    print('\n| repository | commit | path | DeepSpeed | Terrace | train_gpt |')
    print('|---|---|---|---|---|---|')
    with open(arguments.addresses, encoding='utf-8') as file:
        for line in file:
            name, repository, commit, path = line.rstrip('\n').split('\t')
            name += '.json'
            marks = ['runs' if not theirs[name]['error'] else 'refuses']
            same = ('rates differ' if name not in rates else
                    'same' if name in losses else
                    'same with its stage 0' if name in begun else
                    'losses differ')
            marks.append('refuses' if ours[name]['error'] else
                         same if name in ran else 'accepts')
            marks.append('refuses' if gpt[name]['error'] else 'trains')
            print(f'| {repository} | {commit[:10]} | {path} | '
                  f'{" | ".join(marks)} |')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(required=True)
    runs = actions.add_parser('run')
    runs.add_argument('door', choices=(
        'deepspeed', 'terrace', 'terrace-as-stage-0', 'train_gpt'))
    runs.add_argument('--program', default='train_gpt')
    runs.add_argument('files', nargs='+')
    runs.set_defaults(action=run)
    tables = actions.add_parser('table')
    for name in ('addresses', 'deepspeed', 'terrace', 'stage_0', 'train_gpt'):
        tables.add_argument(name)
    tables.set_defaults(action=table)
    arguments = parser.parse_args()
    arguments.action(arguments)


if __name__ == '__main__':
    main()
