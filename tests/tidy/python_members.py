"""No module of the Python package reaches into what is private to another."""

import ast

from python_modules import OTHER, OWN, Visitor, is_ours

# What a library has under such a name only: how often a tensor was written,
# where in its file a storage lies, an operator's way through the dispatcher,
# how long collectives of a group may take.
OF_LIBRARIES = {'_version', '_checkpoint_offset', '_cpp_dispatch_handle',
                '_timeout'}

_BY_NAME = {'getattr', 'setattr', 'delattr', 'hasattr'}
_BY_NAME_OF_CLASS = {'__getattribute__', '__getattr__', '__setattr__',
                     '__delattr__'}
_FROM_NAMES = {'attrgetter', 'methodcaller'}


def check(package):
    return [found for _, module in sorted(package.modules.items())
            for found in _Members(package, module).found]


def is_private(name):
    return name.startswith('_') and not (
        name.startswith('__') and name.endswith('__'))


class _Members(Visitor):
    def __init__(self, package, module):
        self.found = []
        self._defined = _Definitions(package, module).names
        super().__init__(package, module)

    def visit_ImportFrom(self, node):
        base = self.module.base_of(node)
        for name in node.names if is_ours(base) else []:
            dotted = f'{base}.{name.name}'
            if is_private(name.name) and self.package.split(dotted)[1]:
                self._add(node, dotted)

    def visit_Attribute(self, node):
        self._judge(node, node.value, node.attr)
        self.generic_visit(node)

    def visit_Call(self, node):
        """What takes the name of a member as a text."""
        named = getattr(node.func, 'id', getattr(node.func, 'attr', ''))
        of = getattr(node.func, 'value', None)
        texts = [_text_of(argument) for argument in node.args]
        if named in _FROM_NAMES:
            for text in filter(None, texts):
                for name in text.split('.'):
                    self._judge(node, None, name)
        elif texts[:1] == [None] and texts[1:] and texts[1] and (
                named in _BY_NAME | _BY_NAME_OF_CLASS):
            self._judge(node, node.args[0], texts[1])
        elif texts and texts[0] and named in _BY_NAME_OF_CLASS:
            self._judge(node, of, texts[0])
        elif texts and texts[0] and _owner_of_names(of):
            self._judge(node, _owner_of_names(of), texts[0])
        self.generic_visit(node)

    def visit_Subscript(self, node):
        owner, text = _owner_of_names(node.value), _text_of(node.slice)
        if owner and text:
            self._judge(node, owner, text)
        self.generic_visit(node)

    def _judge(self, node, owner, name):
        """`name` as a member of `owner`, which is None if unknown."""
        if not is_private(name) or name in OF_LIBRARIES or (
                self._is_own(owner)):
            return
        dotted = self.dotted(owner)
        if is_ours(dotted):
            is_foreign = self.package.split(f'{dotted}.{name}')[1]
        elif dotted:
            is_foreign = False      # of a library
        else:
            is_foreign = name not in self._defined or self._is_other(owner)
        if is_foreign:
            self._add(node)

    def _is_other(self, owner):
        return isinstance(owner, ast.Name) and (
            self.stands_for(owner.id) is OTHER)

    def _is_own(self, owner):
        """self, cls, super() and the class of self."""
        if isinstance(owner, ast.Name):
            return self.stands_for(owner.id) is OWN
        if isinstance(owner, ast.Attribute):
            return owner.attr == '__class__' and self._is_own(owner.value)
        if isinstance(owner, ast.Call):
            called = getattr(owner.func, 'id', '')
            return called == 'super' or (
                called == 'type' and self._is_own(owner.args[0]))
        return False

    def _add(self, node, what=None):
        what = what or ast.unparse(node)[:60]
        self.found.append(self.module.file.says(
            node.lineno, f'{what} is private to another module: give it a '
            'public name there, or move this to it'))


class _Definitions(Visitor):
    """Members that the classes of a module have, or give to themselves."""

    def __init__(self, package, module):
        self.names = set()
        super().__init__(package, module)

    def visit_ClassDef(self, node):
        for member in node.body:
            if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef,
                                   ast.ClassDef)):
                self.names.add(member.name)
            elif isinstance(member, (ast.Assign, ast.AnnAssign)):
                self._define(member)
        super().visit_ClassDef(node)

    def _define(self, member):
        targets = (member.targets if isinstance(member, ast.Assign)
                   else [member.target])
        names = {node.id for target in targets for node in ast.walk(target)
                 if isinstance(node, ast.Name)}
        if '__slots__' in names and member.value:
            names.update(filter(None, map(_text_of, ast.walk(member.value))))
        self.names |= names

    def visit_Attribute(self, node):
        if isinstance(node.ctx, ast.Store) and (
                isinstance(node.value, ast.Name)
                and self.stands_for(node.value.id) is OWN):
            self.names.add(node.attr)

    def visit_AugAssign(self, node):
        """Nothing: the member is there already."""


def _text_of(node):
    """A text, or what one begins with; None: it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return _text_of(node.values[0]) if node.values else ''
    if isinstance(node, ast.BinOp):
        return _text_of(node.left)
    return None


def _owner_of_names(node):
    """x of vars(x) and x.__dict__, else None."""
    if isinstance(node, ast.Attribute) and node.attr == '__dict__':
        return node.value
    if isinstance(node, ast.Call) and node.args and (
            getattr(node.func, 'id', '') == 'vars'):
        return node.args[0]
    return None
