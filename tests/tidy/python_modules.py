"""The modules of the Python package, and what a name in one stands for."""

import ast

from tree import PACKAGE

NAME = 'terrace'

# What a name may stand for, beside the dotted name of what was imported.
OWN = object()      # self or cls, in a class
OTHER = object()    # by its annotation, of a class of another module of ours
LOCAL = object()

_SELVES = ('self', 'cls')
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Module:
    """One file; `tree` is None where it does not parse, which shape.py says.
    """

    def __init__(self, file):
        self.file = file
        parts = [NAME] + file.path[len(PACKAGE) + 1:-len('.py')].split('/')
        is_folder = parts[-1] == '__init__'
        if is_folder:
            parts.pop()
        self.name = '.'.join(parts)
        self.folder = self.name if is_folder else '.'.join(parts[:-1])
        try:
            self.tree = ast.parse(file.text)
        except SyntaxError:
            self.tree = None

    def base_of(self, imported):
        """The dotted name behind `from`, also of a relative import."""
        if imported.level == 0:
            return imported.module
        folder = self.folder.split('.')
        folder = folder[:len(folder) - imported.level + 1]
        return '.'.join(folder + ([imported.module] if imported.module else []))


class Package:
    """All modules, by dotted name; a folder is one too."""

    def __init__(self, tree):
        found = [Module(file) for file in tree.files if file.is_of_package]
        self.modules = {module.name: module for module in found if module.tree}
        self._names = {module.name for module in found} | {
            module.folder for module in found} | {NAME}

    def split(self, dotted):
        """The longest part of a dotted name that is a module, and the rest."""
        module, rest = dotted, ''
        while module not in self._names:
            module, _, last = module.rpartition('.')
            rest = f'{last}.{rest}' if rest else last
        return module, rest


def is_ours(dotted):
    """Whether it names the package or anything in it."""
    return dotted is not None and (dotted + '.').startswith(NAME + '.')


class Visitor(ast.NodeVisitor):
    """Visits a module and knows what each name stands for."""

    def __init__(self, package, module):
        self.package = package
        self.module = module
        self._scopes = [_bound(module, module.tree)]
        self._makes_methods = False     # a function that is met now
        self.visit(module.tree)

    def stands_for(self, name):
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def dotted(self, node):
        """Of a chain of attributes of something imported, else None."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        root = self.stands_for(node.id) if isinstance(node, ast.Name) else None
        if not isinstance(root, str):
            return None
        return '.'.join([root] + names[::-1])

    def visit_ClassDef(self, node):
        outer, self._makes_methods = self._makes_methods, True
        self.generic_visit(node)
        self._makes_methods = outer

    def visit_FunctionDef(self, node):
        # All but the body belongs to what is around.
        body = node.body if isinstance(node.body, list) else [node.body]
        for child in ast.iter_child_nodes(node):
            if child not in body:
                self.visit(child)
        scope = _bound(self.module, node)
        scope.update({argument.arg: OTHER for argument in ast.walk(node.args)
                      if isinstance(argument, ast.arg)
                      and self._is_of_ours(argument.annotation)})
        outer, self._makes_methods = self._makes_methods, False
        if outer:
            scope.update({name: OWN for name in _SELVES if name in scope})
        self._scopes.append(scope)
        for statement in body:
            self.visit(statement)
        self._scopes.pop()
        self._makes_methods = outer

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_Lambda = visit_FunctionDef

    def _is_of_ours(self, annotation):
        return annotation is not None and any(
            is_ours(self.dotted(part)) for part in ast.walk(annotation))


def _bound(module, scope):
    """What a module or a function binds: name -> what it stands for."""
    bound = {}
    if isinstance(scope, _FUNCTIONS):
        bound = {node.arg: LOCAL for node in ast.walk(scope.args)
                 if isinstance(node, ast.arg)}
    body = scope.body if isinstance(scope.body, list) else [scope.body]
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, LOCAL)
        elif isinstance(node, ast.Import):
            for name in node.names:
                root = name.name.partition('.')[0]
                bound[name.asname or root] = name.name if name.asname else root
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                bound[name.asname or name.name] = (
                    f'{module.base_of(node)}.{name.name}')
        if not isinstance(node, _FUNCTIONS + (ast.ClassDef,)):
            waiting += ast.iter_child_nodes(node)
    return bound
