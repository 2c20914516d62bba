"""No circle among C++ includes, nor among Python modules outside the package
(python_layers.py has those of the package).

Of C++, by what is coarser from line to line:

- headers, in the whole tree;
- nouns (x.h with x.cc) in the library: what a noun needs it may know, and that
  does not know it;
- folders, but those of mechanism, whose parts are of one kind each.
"""

import ast

import includes
from graphs import circles

# Where nouns are looked at.
MECHANISM = ('aio/', 'kernels/', 'policies/', 'prefetch/', 'tiers/')
FOLDERS = ('base/', 'checkpoint/', 'libtorch/', 'machine/', 'optimizer/',
           'runtime/', 'zero_config/')
LIBRARY = MECHANISM + FOLDERS
# Circles of nouns, by one of them, until they are mended. One that is not there
# any more is a finding: take it out.
EXCEPTIONS = []


def check(tree, exceptions):
    found = []
    edges = _include_edges(tree)
    found += _told(edges, 'a circle of includes')
    nouns = _lifted(edges, noun_of, LIBRARY)
    found += _told(nouns, 'a circle of nouns', exceptions)
    found += _told(_lifted(edges, lambda path: path.rpartition('/')[0],
                           FOLDERS), 'a circle of folders')
    found += _told(_import_edges(tree), 'a circle of imports')
    in_circles = {noun for circle in circles(nouns) for noun in circle}
    found += [f'tests/tidy/circles.py:1: {noun} needs no exception any more'
              for noun in exceptions if noun not in in_circles]
    return found


def noun_of(path):
    """x of x.h, x.cc and x-inl.h."""
    name = path.rpartition('.')[0]
    return name[:-len('-inl')] if name.endswith('-inl') else name


def _told(edges, what, exceptions=()):
    found = []
    for circle in circles(edges):
        if set(circle).isdisjoint(exceptions):
            where = edges[circle[0]][circle[1]]
            found.append(f'{where}: {what}: {" -> ".join(circle)}: move what '
                         'they share to a place of its own')
    return found


def _include_edges(tree):
    """file -> the files of the tree that it includes -> where."""
    edges = {}
    for file in tree.files:
        if file.is_cpp:
            edges[file.path] = {}
            for number, target in includes.targets(tree, file):
                edges[file.path].setdefault(target, f'{file.path}:{number}')
    return edges


def _lifted(edges, group_of, folders):
    """The same among groups of the files in these folders."""
    groups = {}
    for path, targets in sorted(edges.items()):
        for target, where in targets.items():
            one, other = group_of(path), group_of(target)
            if one != other and path.startswith(folders) and (
                    target.startswith(folders)):
                groups.setdefault(one, {}).setdefault(other, where)
    return groups


def _import_edges(tree):
    """Of a script that imports another of its folder."""
    scripts = {file.path: file for file in tree.files
               if file.path.endswith('.py') and not file.is_of_package}
    edges = {}
    for path, file in scripts.items():
        edges[path] = {}
        for line, name in _imports(file.text):
            target = f'{file.folder}/{name}.py'
            if target in scripts and target != path:
                edges[path].setdefault(target, f'{path}:{line}')
    return edges


def _imports(text):
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:     # of a test of such a thing
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
