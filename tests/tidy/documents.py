"""Documents: what they cite is in the tree, they keep to their sizes, and the
picture is the same wherever it stands."""

import posixpath
import re

# A path of words; a name that a program makes up begins otherwise.
_DOCUMENT = re.compile(r'(?<![\w/.{}$-])((?:\.\./)*\w[\w./-]*\.md)\b')
_LINK = re.compile(r'\]\(([^)#\s]+)[^)]*\)')
# What they say was so on their day.
_DATED = 'bench/results/'

MAX_COLUMNS = 80
# README is read in three minutes, ARCHITECTURE in ten.
MAX_BYTES = {'README.md': 8_000, 'ARCHITECTURE.md': 14_000}
# These name the files and tests that show what they say.
_WITH_EVIDENCE = ('ARCHITECTURE.md', 'docs/decisions/')
_SOURCE = re.compile(r'`([\w./-]+\.(?:h|cc|py|cmake))`')
_TEST = re.compile(r'`(\w+_test)`')
_PICTURE = re.compile(r'^```\n( examples/.*?)^```$', re.DOTALL | re.MULTILINE)


def check(tree, file):
    if file.path.startswith((_DATED, 'tests/tidy/')):
        return []
    found = [file.says(number, f'{cited} is no document of the tree')
             for number, line in enumerate(file.lines, 1) if 'http' not in line
             for cited in _DOCUMENT.findall(line)
             if not {cited, posixpath.normpath(posixpath.join(
                 file.folder, cited))} & tree.paths]
    if not file.path.endswith('.md'):
        return found
    found += _check_shape(file) + _check_links(tree, file)
    if file.path.startswith(_WITH_EVIDENCE):
        found += _check_evidence(tree, file)
    return found


def _check_shape(file):
    """Tables and links may be as long as they are."""
    found = [file.says(number, f'{len(line)} columns')
             for number, line in enumerate(file.lines, 1)
             if len(line) > MAX_COLUMNS and not line.startswith('|')
             and '](' not in line and 'http' not in line]
    size, most = len(file.text.encode()), MAX_BYTES.get(file.path)
    if most and size > most:
        found.append(file.says(1, f'{size} bytes, more than {most}'))
    return found


def _check_links(tree, file):
    folders = {path.rpartition('/')[0] for path in tree.paths}
    return [file.says(number, f'{target} leads nowhere')
            for number, line in enumerate(file.lines, 1)
            for target in _LINK.findall(line) if '://' not in target
            and posixpath.normpath(posixpath.join(file.folder, target))
            not in tree.paths | folders]


def _check_evidence(tree, file):
    """A source is named by the end of its path, a test by its source or by
    the program that a CMakeLists.txt makes of it."""
    found = []
    for number, line in enumerate(file.lines, 1):
        found += [file.says(number, f'{name} is no file of the tree')
                  for name in _SOURCE.findall(line)
                  if not any(f'/{path}'.endswith(f'/{name}')
                             for path in tree.paths)]
        found += [file.says(number, f'{name} is no test of the tree')
                  for name in _TEST.findall(line) if not _is_test(tree, name)]
    return found


def _is_test(tree, name):
    word = re.compile(rf'\b{name}\b')
    return any(path.endswith(f'/{name}.cc') for path in tree.paths) or any(
        word.search(file.text) for file in tree.files
        if file.path.startswith('tests/')
        and file.path.endswith('CMakeLists.txt'))


def check_pictures(tree):
    """README's picture of the folders is ARCHITECTURE's."""
    pictures = {file.path: _PICTURE.search(file.text) for file in tree.files
                if file.path in MAX_BYTES}
    if len({picture and picture[1] for picture in pictures.values()}) <= 1:
        return []
    return ['ARCHITECTURE.md:1: its picture is not that of README.md']
