"""Models under fully_shard, for the ranks of a crew."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import terrace

SIZES = (5, 7, 1)  # of no number of ranks; the last rank's shards may be empty
BATCH = 12


def mesh(*shape, names=None):
    return init_device_mesh('cpu', shape or (dist.get_world_size(),),
                            mesh_dim_names=names)


def network(sizes=SIZES, dtype=torch.float32):
    torch.manual_seed(20240611)
    return torch.nn.Sequential(
        torch.nn.Linear(*sizes[:2]), torch.nn.Tanh(),
        torch.nn.Linear(*sizes[1:])).to(dtype)


def sharded(sizes=SIZES, dtype=torch.float32, over=None, compute=None):
    """`compute`: the dtype of forward and backward."""
    model = network(sizes, dtype)
    over = over or mesh()
    policy = MixedPrecisionPolicy(param_dtype=compute)
    fully_shard(model[0], mesh=over, mp_policy=policy)
    return fully_shard(model, mesh=over, mp_policy=policy)


def optimizer_of(who, parameters, **settings):
    settings = {'lr': 1e-2, **settings}
    if who == 'torch':
        for key in ('memory_budget', 'nvme_path'):
            settings.pop(key, None)
        return torch.optim.AdamW(parameters, **settings)
    return terrace.AdamW(parameters, **settings)


def step(model, optimizer, number, max_norm=None, dtype=torch.float32):
    """Of this rank's rows of a batch; the loss of all of them."""
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(BATCH, model[0].in_features, generator=generator)
    own = rows[dist.get_rank()::dist.get_world_size()].to(dtype)
    loss = model(own).float().square().mean()
    loss.backward()
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def train(model, optimizer, first, last, **settings):
    return [step(model, optimizer, number, **settings)
            for number in range(first, last)]


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, 'full_tensor')
            else tensor).detach().clone()


def state_of(model, optimizer):
    """By the parameters' names: whole tensors."""
    return {name: {key: whole(value) for key, value
                   in optimizer.state[parameter].items()}
            for name, parameter in model.named_parameters()}


def assert_near(ours, theirs, tolerance):
    if isinstance(theirs, dict):
        assert ours.keys() >= theirs.keys()
        for key in theirs:
            assert_near(ours[key], theirs[key], tolerance)
    else:
        torch.testing.assert_close(torch.as_tensor(ours),
                                   torch.as_tensor(theirs),
                                   rtol=tolerance, atol=tolerance)
