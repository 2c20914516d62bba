"""Models of transformers, of random weights, train and answer the same."""

import pytest
import torch

import terrace
from offloaded import (check_equal_values, check_identical, check_same, sgd,
                       values)

transformers = pytest.importorskip('transformers')

SMALL = {'hidden_size': 64, 'num_hidden_layers': 3, 'num_attention_heads': 4,
         'intermediate_size': 96, 'vocab_size': 101}
FAMILIES = {
    'GPT2': lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=64, n_layer=3, n_head=4, vocab_size=101, n_positions=32)),
    'Llama': lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2)),
    'Mixtral': lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**{**SMALL, 'num_hidden_layers': 5},
                                   num_key_value_heads=2,
                                   num_local_experts=3)),
    'Bert': lambda: transformers.BertForMaskedLM(transformers.BertConfig(
        **SMALL, max_position_embeddings=32)),
    'T5': lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2,
                              num_heads=4, vocab_size=101,
                              decoder_start_token_id=0)),
    'Qwen2': lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **SMALL, num_key_value_heads=2)),
    'Gemma': lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(
        **SMALL, num_key_value_heads=2, head_dim=16)),
    'OPT': lambda: transformers.OPTForCausalLM(transformers.OPTConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, ffn_dim=96,
        vocab_size=101, max_position_embeddings=32, word_embed_proj_dim=64)),
    'GPTNeoX': lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**SMALL, max_position_embeddings=32)),
    'Bloom': lambda: transformers.BloomForCausalLM(transformers.BloomConfig(
        hidden_size=64, n_layer=3, n_head=4, vocab_size=101)),
    'Phi': lambda: transformers.PhiForCausalLM(transformers.PhiConfig(
        **SMALL, max_position_embeddings=32)),
    'ViT': lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
            intermediate_size=96, image_size=16, patch_size=4, num_labels=5)),
    'Wav2Vec2': lambda: transformers.Wav2Vec2ForSequenceClassification(
        transformers.Wav2Vec2Config(
            hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
            intermediate_size=96, conv_dim=[32, 32], conv_stride=[5, 4],
            conv_kernel=[10, 8], num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4, num_labels=5,
            apply_spec_augment=False)),  # of numpy's random numbers
    'Mamba': lambda: transformers.MambaForCausalLM(transformers.MambaConfig(
        hidden_size=64, num_hidden_layers=4, vocab_size=101, state_size=4)),
}


def build(family):
    torch.manual_seed(3)
    model = FAMILIES[family]()
    model.config.use_cache = False
    return model


def batch_of(model):
    """As the model takes it."""
    if model.main_input_name == 'pixel_values':
        return {'pixel_values': torch.randn(2, 3, 16, 16),
                'labels': torch.randint(5, (2,))}
    if model.main_input_name == 'input_values':
        return {'input_values': torch.randn(2, 400),
                'labels': torch.randint(5, (2,))}
    tokens = torch.randint(101, (2, 11))
    return {'input_ids': tokens, 'labels': tokens}


def run(model, make, clip):
    """Losses, norms and answers; then the state of the optimizer."""
    torch.manual_seed(4)
    optimizer = make(model.parameters())
    left = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(**batch_of(model)).loss
        loss.backward()
        if clip is not None:
            left.append(clip(model.parameters(), 0.1).clone())
        optimizer.step()
        left.append(loss.detach().clone())
    model.eval()
    with torch.no_grad():
        left.append(model(**batch_of(model)).logits)
    if model.can_generate():
        tokens = torch.arange(8).view(1, 8)
        left.append(model.generate(tokens, max_new_tokens=4, do_sample=False,
                                   use_cache=True))
    return left + [tensor.clone() for state
                   in optimizer.state_dict()['state'].values()
                   for tensor in state.values()
                   if isinstance(tensor, torch.Tensor)]


def adamw(offload=None):
    return lambda parameters: terrace.AdamW(parameters, lr=1e-2,
                                            offload=offload)


@pytest.mark.parametrize('clip', [None, terrace.clip_grad_norm_])
@pytest.mark.parametrize('family', FAMILIES)
def test_all_that_is_trained_has_a_third_of_its_bytes(tmp_path, family, clip):
    plain = build(family)
    expected = run(plain, adamw(), clip)
    model = build(family)
    # A parameter, its gradient and two moments of it.
    size_bytes = 4 * sum(p.nbytes for p in model.parameters())
    with terrace.offload(model, memory_budget=size_bytes // 3,
                         nvme_path=str(tmp_path)) as offload:
        before = offload.stats()
        check_same(run(model, adamw(offload), clip), expected)
        stats = offload.stats()
    check_equal_values(values(model), values(plain))
    assert stats['memory_peak_bytes'] <= stats['budget_bytes']
    assert stats['budget_bytes'] <= size_bytes // 3
    assert stats['over_budget_bytes'] == stats['failures'] == 0
    assert stats['evictions'] > 0 and stats['fetches'] > 0
    for key in ('bytes_read', 'bytes_written'):
        assert stats[key] > before[key]


@pytest.mark.parametrize('family', FAMILIES)
def test_parameters_have_a_third_of_their_bytes(tmp_path, family):
    """Beside an optimizer of torch, with its state in memory."""
    stats = check_identical(
        lambda: build(family),
        lambda m: run(m, sgd, torch.nn.utils.clip_grad_norm_), tmp_path,
        '33%')
    assert stats['budget_bytes'] <= stats['parameter_bytes'] / 3
