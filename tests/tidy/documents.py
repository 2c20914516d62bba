"""Documents that sources, scripts and other documents cite are in the tree."""

import posixpath
import re

# A path of words; a name that a program makes up begins otherwise.
_DOCUMENT = re.compile(r'(?<![\w/.{}$-])((?:\.\./)*\w[\w./-]*\.md)\b')
# What they say was so on their day.
_DATED = 'bench/results/'


def check(tree, file):
    if file.path.startswith((_DATED, 'tests/tidy/')):
        return []
    return [file.says(number, f'{cited} is no document of the tree')
            for number, line in enumerate(file.lines, 1) if 'http' not in line
            for cited in _DOCUMENT.findall(line)
            if not {cited, posixpath.normpath(posixpath.join(
                file.folder, cited))} & tree.paths]
