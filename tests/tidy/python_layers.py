"""Which module of the Python package may import which: an order of layers,
and no circle."""

import ast
import collections

from graphs import circles
from python_modules import NAME, Visitor, is_ours

# Each may import itself and those before it, at whatever place: at the top of
# a file, in a function, for types only.
ORDER = ('_base', '_ranks', '_state', '_weights', '_offload', '_optimizer',
         '_files', '_deepspeed')
# The package's own modules import all layers, and no layer them.
ABOVE = ('__init__', '__main__')

# line; the module that is imported, or of which `name` is; both dotted.
Import = collections.namedtuple('Import', 'line module name')


def check(package):
    found = []
    edges = {}      # module -> the modules that it imports -> where
    for name, module in sorted(package.modules.items()):
        imports = _Imports(package, module)
        edges[name] = {}
        for one in imports.found:
            edges[name].setdefault(one.module, one.line)
        found += _check_order(module, imports.found)
        found += [module.file.says(line, f'{dotted} is no module of the tree')
                  for line, dotted in imports.missing]
    return found + _check_circles(package, edges)


def layer_of(module_name):
    if module_name == NAME:
        return '__init__'
    return module_name.split('.')[1]


def _check_order(module, imports):
    own = layer_of(module.name)
    if own in ABOVE:
        return []
    if own not in ORDER:
        return [module.file.says(1, f'{own} is in no layer of '
                                 'tests/tidy/python_layers.py')]
    found, told = [], set()
    for line, imported, name in imports:
        layer = layer_of(imported)
        if layer in ABOVE:
            what = f'{imported}.{name}' if name else imported
            way_out = 'import it from the layer that has it'
        elif layer in ORDER and ORDER.index(layer) > ORDER.index(own):
            what = imported
            way_out = f'move what both need to {own} or below'
        else:
            continue
        if what not in told:
            told.add(what)
            found.append(module.file.says(
                line, f'{own} may not import {what}, which is above it: '
                f'{way_out}'))
    return found


class _Imports(Visitor):
    """What a module imports, and uses by the dotted name of an import."""

    def __init__(self, package, module):
        self.found = []
        self.missing = []
        super().__init__(package, module)

    def visit_Import(self, node):
        for name in node.names:
            self._add_module(node, name.name)

    def visit_ImportFrom(self, node):
        base = self.module.base_of(node)
        for name in node.names:
            if self._is_there(node, base):
                self._add(node, f'{base}.{name.name}')

    def visit_Call(self, node):
        called = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
        if called in ('import_module', '__import__') and node.args:
            name = getattr(node.args[0], 'value', None)
            if isinstance(name, str):
                dots = len(name) - len(name.lstrip('.'))
                self._add_module(node, self.module.base_of(ast.ImportFrom(
                    module=name[dots:], level=dots)))
        self.generic_visit(node)

    def visit_Attribute(self, node):
        dotted = self.dotted(node)
        if dotted is None:
            self.generic_visit(node)
        elif is_ours(dotted):
            self._add(node, dotted)

    def visit_Name(self, node):
        self.visit_Attribute(node)

    def _add_module(self, node, dotted):
        if self._is_there(node, dotted):
            self._add(node, dotted)

    def _is_there(self, node, dotted):
        if is_ours(dotted) and self.package.split(dotted)[1]:
            self.missing.append((node.lineno, dotted))
            return False
        return is_ours(dotted)

    def _add(self, node, dotted):
        self.found.append(Import(node.lineno, *self.package.split(dotted)))


def _check_circles(package, edges):
    return [package.modules[circle[0]].file.says(
        edges[circle[0]][circle[1]],
        f'a circle of imports: {" -> ".join(circle)}: move what they '
        'share to a module of its own') for circle in circles(edges)]
