"""Several threads use one offloaded model, and one of them closes it.

What a fault would end is a child process, and each test looks at how it ended.
"""

import subprocess
import sys
import textwrap

import pytest

# A model of eight layers, what it answers, and threads that end with it.
PRELUDE = """
import sys, threading, torch, terrace
torch.set_num_threads(1)
torch.manual_seed(0)

def make(width=128, layers=8):
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts)

failed = []

def guarded(work):
    def run():
        try:
            work()
        except BaseException as error:
            failed.append(repr(error))
    return run

def together(*works):
    threads = [threading.Thread(target=guarded(work)) for work in works]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed, failed
"""


def run(body, *arguments, timeout=240):
    child = subprocess.run(
        [sys.executable, '-P', '-c', PRELUDE + textwrap.dedent(body),
         *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, check=False)
    assert child.returncode == 0, (child.returncode, child.stderr[-3000:])
    return child.stdout


CLOSE = """
    directory, budget, restore = sys.argv[1], sys.argv[2], sys.argv[3] == '1'
    x = torch.ones(16, 128)
    for round in range(12):
        model = make().requires_grad_(False)
        want = model(x)
        before = [p.clone() for p in model.parameters()]
        off = terrace.offload(model, memory_budget=budget, nvme_path=directory)
        started = threading.Barrier(4)
        closed, refused = [], []

        def infer():
            started.wait()
            for _ in range(40):
                try:
                    assert torch.equal(model(x), want), 'another answer'
                except RuntimeError as error:
                    if restore or not str(error).startswith('terrace:'):
                        raise
                    refused.append(error)
                    return

        def close():
            started.wait()
            for _ in range(1000):
                try:
                    off.close(restore=restore)
                    closed.append(True)
                    return
                except RuntimeError as error:
                    assert 'in use' in str(error), error
                    assert off.error is None, off.error

        together(infer, infer, infer, close)
        assert closed
        assert restore or refused or round
        if restore:
            for mine, theirs in zip(model.parameters(), before):
                assert torch.equal(mine, theirs), 'a parameter was lost'
            assert torch.equal(model(x), want)
"""


@pytest.mark.parametrize('budget', ['60%', '1GiB'])
def test_a_close_beside_threads_that_infer_keeps_every_value(tmp_path, budget):
    run(CLOSE, tmp_path, budget, 1)


def test_a_close_that_refuses_beside_threads_that_infer(tmp_path):
    run(CLOSE, tmp_path, '60%', 0)


def test_a_close_beside_threads_that_train(tmp_path):
    """Their leaves are apart; what each gave by then is right."""
    run("""
        for round in range(6):
            models = [make(layers=4) for _ in range(2)]
            plain = [make(layers=4) for _ in range(2)]
            for mine, theirs in zip(models, plain):
                theirs.load_state_dict(mine.state_dict())
            both = torch.nn.ModuleList(models)
            off = terrace.offload(both, memory_budget='70%',
                                  nvme_path=sys.argv[1])
            x = torch.ones(8, 128)
            started = threading.Barrier(3)

            def train(model, steps=10):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                for _ in range(steps):
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()

            def close():
                started.wait()
                for _ in range(2000):
                    try:
                        return off.close()
                    except RuntimeError as error:
                        assert 'in use' in str(error), error
                raise AssertionError('it was always in use')

            def begin(model):
                def work():
                    started.wait()
                    train(model)
                return work

            together(*map(begin, models), close)
            for mine, theirs in zip(models, plain):
                train(theirs)
                for a, b in zip(mine.parameters(), theirs.parameters()):
                    assert torch.equal(a, b), 'another value'
    """, tmp_path)


def test_backwards_of_threads_into_the_same_leaves_are_added_up(tmp_path):
    """Each gives whole numbers, so that every order has the same sum."""
    run("""
        model = make(layers=6)
        for p in model.parameters():
            p.data.zero_()
        off = terrace.offload(model, memory_budget='80%',
                              nvme_path=sys.argv[1])
        optimizer = terrace.AdamW(model.parameters(), offload=off, lr=0.0)
        for round in range(10):
            optimizer.zero_grad()

            def backward():
                loss = sum((p * 1).sum() for p in model.parameters())
                for _ in range(4):
                    loss = loss + sum((p * 3).sum()
                                      for p in model.parameters())
                loss.backward()

            together(*[backward] * 4)
            for p in model.parameters():
                assert (p.grad == 4 * 13).all(), p.grad.flatten()[:4]
            optimizer.step()
        off.close()
    """, tmp_path)


@pytest.mark.alone
def test_a_lease_that_another_thread_has_is_told_at_once(tmp_path):
    run("""
        import time
        model = make()
        off = terrace.offload(model, memory_budget='60%',
                              nvme_path=sys.argv[1])
        leased, over = threading.Event(), threading.Event()

        def hold():
            with off.lease(model[0].weight):
                leased.set()
                over.wait(60)

        def close():
            leased.wait(60)
            begun = time.monotonic()
            try:
                off.close()
                raise AssertionError('it closed')
            except RuntimeError as error:
                assert "'0.weight' is leased or in use" in str(error), error
            assert time.monotonic() - begun < 3
            over.set()

        together(hold, close)
        off.close()
        assert model(torch.ones(1, 128)).isfinite().all()
    """, tmp_path)


def test_a_close_within_an_operation_is_told_that_it_is_in_use(tmp_path):
    run("""
        model = make()
        off = terrace.offload(model, memory_budget='60%',
                              nvme_path=sys.argv[1])
        told = []

        class Closes(torch.autograd.Function):
            @staticmethod
            def forward(context, weight):
                return weight.sum()

            @staticmethod
            def backward(context, gradient):
                with off.lease(model[0].weight):
                    try:
                        off.close()
                    except RuntimeError as error:
                        told.append(str(error))
                return gradient.expand(128, 128)

        Closes.apply(model[0].weight).backward()
        assert len(told) == 1 and 'in use' in told[0], told
        off.close()
        assert (model[0].weight.grad == 1).all()
    """, tmp_path)


INFER = """
    directory, budget, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = make(width=256).requires_grad_(False)
    x = torch.ones(64, 256)
    want = model(x)
    off = terrace.offload(model, memory_budget=budget, nvme_path=directory)

    def infer():
        for _ in range(25):
            assert torch.equal(model(x), want), 'another answer'

    together(*[infer] * count)
    infer()
    assert off.error is None, off.error
    assert off.stats()['failures'] == 0, off.stats()
    off.close()
    assert torch.equal(model(x), want)
"""


@pytest.mark.parametrize('budget, count', [('30%', 8), ('50%', 8), ('1%', 2),
                                           ('1%', 8)])
def test_threads_infer_in_a_small_budget(tmp_path, budget, count):
    run(INFER, tmp_path, budget, count)


def test_threads_train_in_a_small_budget(tmp_path):
    run("""
        models = [make(layers=4) for _ in range(4)]
        plain = [make(layers=4) for _ in range(4)]
        for mine, theirs in zip(models, plain):
            theirs.load_state_dict(mine.state_dict())
        off = terrace.offload(torch.nn.ModuleList(models),
                              memory_budget='1%', nvme_path=sys.argv[1])
        x = torch.ones(8, 128)

        def train(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05,
                                        momentum=0.9)
            for _ in range(6):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

        together(*[lambda model=model: train(model) for model in models])
        for mine, theirs in zip(models, plain):
            train(theirs)
            for a, b in zip(mine.parameters(), theirs.parameters()):
                assert torch.equal(a, b), 'another value'
        assert off.error is None, off.error
    """, tmp_path)


TWO_MODELS = """
    import copy
    directory, first, second = sys.argv[1:4]
    model, average = make().requires_grad_(False), make().requires_grad_(False)
    for p in average.parameters():
        p.mul_(0.5)
    plain, plain_average = copy.deepcopy(model), copy.deepcopy(average)
    off = terrace.offload(model, memory_budget=first, nvme_path=directory)
    other = terrace.offload(average, memory_budget=second,
                            nvme_path=directory)
    for step in range(4):
        for a, b in ((model, plain), (average, plain_average)):
            assert torch.equal(a(torch.ones(1, 128)), b(torch.ones(1, 128)))
        torch._foreach_lerp_(list(average.parameters()),
                             list(model.parameters()), 0.25)
        torch._foreach_lerp_(list(plain_average.parameters()),
                             list(plain.parameters()), 0.25)
        for a, b in zip(average.parameters(), plain_average.parameters()):
            assert torch.equal(a, b), 'another average'
    assert off.error is None and other.error is None
    assert off.stats()['failures'] == other.stats()['failures'] == 0
"""


@pytest.mark.parametrize('first, second', [('1%', '1GiB'), ('1GiB', '1%'),
                                           ('1%', '1%'), ('40%', '60%')])
def test_one_operation_over_two_models(tmp_path, first, second):
    run(TWO_MODELS, tmp_path, first, second)


def test_two_threads_with_operations_over_two_models_in_both_orders(tmp_path):
    run("""
        a, b = make().requires_grad_(False), make().requires_grad_(False)
        want = [(x + y).sum() for x, y in zip(a.parameters(), b.parameters())]
        offs = [terrace.offload(m, memory_budget='1%', nvme_path=sys.argv[1])
                for m in (a, b)]

        def add(first, second):
            def work():
                for _ in range(10):
                    got = torch._foreach_add(list(first.parameters()),
                                             list(second.parameters()))
                    assert all(torch.equal(x.sum(), y)
                               for x, y in zip(got, want)), 'another sum'
            return work

        together(*[add(a, b), add(b, a)] * 2)
        assert all(off.error is None for off in offs)
    """, tmp_path)


def test_operations_of_threads_that_do_not_fit_together_both_end(tmp_path):
    """Each takes three tensors of four that have room."""
    run("""
        torch.manual_seed(1)
        lists = [[torch.nn.Linear(512, 512, bias=False) for _ in range(3)]
                 for _ in range(2)]
        both = torch.nn.ModuleList(lists[0] + lists[1]).requires_grad_(False)
        want = [sum(m.weight.double().sum() for m in each) for each in lists]
        off = terrace.offload(both, memory_budget=4 * (1 << 20) + 64 * 1024,
                              nvme_path=sys.argv[1])

        def add(modules, total):
            def work():
                for _ in range(20):
                    got = torch._foreach_add([m.weight for m in modules], 0.0)
                    got = sum(p.double().sum() for p in got)
                    assert torch.equal(got, total), 'another sum'
            return work

        together(*map(add, lists, want))
        assert off.error is None, off.error
        assert off.stats()['failures'] == 0
        off.close()
        for modules, total in zip(lists, want):
            assert sum(m.weight.double().sum() for m in modules) == total
    """, tmp_path)
