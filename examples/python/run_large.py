"""Generates with a model that is larger than memory.

    python examples/python/run_large.py MODEL --nvme-path /mnt/nvme0

MODEL is a folder as save_pretrained writes it: config.json and safetensors
files. The model is made without memory, its weights go from the files to the
path, and from there each is read when an operation needs it; none is written
again. Prints the tokens, and how much memory the weights had. With --plain the
same is done in memory.
"""

import argparse

import accelerate
import torch
import transformers

import terrace


def load_plain(folder: str) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def load_below(arguments) -> tuple[torch.nn.Module, terrace.Offload]:
    config = transformers.AutoConfig.from_pretrained(arguments.model)
    with accelerate.init_empty_weights():
        model = transformers.AutoModelForCausalLM.from_config(config)
    offload = terrace.offload(model, checkpoint=arguments.model,
                              memory_budget=arguments.memory_budget,
                              nvme_path=arguments.nvme_path)
    return model, offload


def generate(model: torch.nn.Module, arguments) -> list[int]:
    model.eval()
    prompt = torch.tensor([arguments.prompt])
    return model.generate(prompt, attention_mask=torch.ones_like(prompt),
                          max_new_tokens=arguments.tokens,
                          do_sample=False)[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model', help='a folder with weights')
    parser.add_argument('--nvme-path', action='append')
    parser.add_argument('--memory-budget', default='25%')
    parser.add_argument('--prompt', type=int, nargs='+', default=[1, 2, 3],
                        help='numbers of tokens')
    parser.add_argument('--tokens', type=int, default=8)
    parser.add_argument('--plain', action='store_true')
    arguments = parser.parse_args()
    if arguments.plain:
        print(*generate(load_plain(arguments.model), arguments))
        return
    model, offload = load_below(arguments)
    print(*generate(model, arguments))
    stats = offload.stats()
    print(f'{stats["parameter_bytes"]} bytes of weights in '
          f'{stats["memory_peak_bytes"]} bytes of memory; '
          f'{stats["bytes_written"]} written, {stats["bytes_read"]} read')


if __name__ == '__main__':
    main()
