"""What a file is called, so that a reader and a tool take none for another.

- A private header never has the name of another header. Public ones keep theirs
  below `terrace/` and `terrace/torch/`.
- A source that has a header's name implements it, so that it includes it first
  of the tree's headers.
- No two sources of the library and the programs have one name, but the `main`
  of programs, and those of two public headers that are called alike.
"""

import includes
import shape

PUBLIC = ('include/', 'libtorch/include/')
# Programs from outside the tree.
OUTSIDE = ('tests/install/',)
PROGRAMS = {'main.cc'}


def check(tree):
    files = [file for file in tree.files
             if file.is_cpp and not file.path.startswith(OUTSIDE)]
    headers, sources = {}, {}
    for file in files:
        group = headers if file.path.endswith('.h') else sources
        group.setdefault(_name(file), []).append(file)
    found = []
    for named in headers.values():
        private = [file for file in named
                   if not file.path.startswith(PUBLIC)]
        if len(named) > 1 and private:
            found.append(_alike(private[-1], named))
    for name, named in sources.items():
        named = [file for file in named if not file.path.startswith('tests/')]
        implemented = [_own_header(tree, file, headers.get(name, []))
                       for file in named]
        for file, header in zip(named, implemented):
            if name in headers and header is None:
                found.append(file.says(
                    1, f'has the name of {headers[name][0].path}, which it '
                    'does not implement'))
        if len(named) > 1 and name + '.cc' not in PROGRAMS and (
                len(set(implemented) - {None}) < len(named)):
            found.append(_alike(named[-1], named))
    return found


def _name(file):
    return shape.name_of(file.path)


def _own_header(tree, file, headers):
    """Which of these is the first of the tree that `file` includes."""
    paths = {header.path for header in headers}
    for _, target in includes.targets(tree, file):
        return target if target in paths else None
    return None


def _alike(file, named):
    others = ', '.join(other.path for other in named if other is not file)
    return file.says(1, f'has the name of {others}')
