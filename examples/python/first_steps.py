import sys

import torch

import terrace

model = torch.nn.Sequential(
    torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
optimizer = terrace.AdamW(model.parameters(), lr=1e-3,
                          memory_budget="10%", nvme_path=sys.argv[1])

inputs = torch.randn(16, 1024)
for step in range(10):
    loss = torch.nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")

stats = optimizer.stats()
print(f"{stats['state_bytes'] / 1e6:.0f} MB of state in "
      f"{stats['memory_bytes'] / 1e6:.0f} MB of memory")
