"""Weights and gradients drawn by a seed: alike for ours and for torch's."""

import torch


def made(shapes, kind, **settings):
    """Weights of these shapes, and an optimizer of that kind over them."""
    torch.manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    return weights, kind(weights, lr=0.01, **settings)


def step(weights, optimizer, number):
    """With the gradients of that step's number."""
    torch.manual_seed(number)
    for weight in weights:
        weight.grad = torch.randn(weight.shape).to(weight.dtype)
    optimizer.step()
