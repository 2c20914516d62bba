"""python -m terrace info"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import warnings

import torch

import terrace
from terrace._base import library
from terrace._base.paths import check_paths, path_list


def _info(paths: list[str]) -> dict[str, str]:
    """Facts by name; makes a small optimizer to learn the engine."""
    weight = torch.nn.Parameter(torch.zeros(1 << 16))
    check_paths(paths)
    directories = [path for path in paths if os.path.isdir(path)]
    settings = ({'memory_budget': '256KiB', 'nvme_path': directories}
                if directories else {})
    optimizer = terrace.AdamW([weight], **settings)
    stats = optimizer.stats()
    facts = {
        'terrace': terrace.__version__,
        'torch': torch.__version__,
        'Python': platform.python_version(),
        'library': str(library.load()),
        'engine': f'{stats["engine"]} ({stats["engine_reason"]})',
        'instruction set': stats['instruction_set'],
    }
    for path in stats['paths']:
        how = ('direct I/O' if path['direct_io'] else
               f'buffered I/O: {path["direct_io_reason"]}')
        facts[f'path {path["directory"]}'] = how
    for path in paths:
        if path not in directories:
            facts[f'path {path}'] = ('not opened: a file or device gets its '
                                     'mark from the first job')
    optimizer.close()
    return facts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='python -m terrace')
    commands = parser.add_subparsers(dest='command', required=True)
    info = commands.add_parser(
        'info', help='versions, I/O engine, instruction set, paths')
    info.add_argument('--nvme-path', action='append', default=[],
                      help='also say how this path would be used')
    info.add_argument('--json', action='store_true')
    options = parser.parse_args(arguments)
    warnings.simplefilter('ignore')
    try:
        facts = _info(path_list(options.nvme_path))
    except (OSError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(facts))
    else:
        width = max(map(len, facts))
        for name, fact in facts.items():
            print(f'{name:<{width}}  {fact}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
