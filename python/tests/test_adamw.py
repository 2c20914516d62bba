import torch, terrace
def test_x():
    w=torch.nn.Parameter(torch.zeros(10)); o=terrace.AdamW([w]); w.grad=torch.ones(10); o.step()
    assert (w<0).all()
