"""How much a class holds: at most 20 data members and 30 methods. A class over
it is two nouns.

A reader of C++ as this tree writes it (Google style, by clang-format), not of
the language. Structs are classes; a nested type counts for itself. Data members
are those of an object: no constants. Methods are all that are declared, those
that are deleted or defaulted aside. Of Python's classes, those of the package,
data members are what a method sets of `self`.
"""

import ast
import re

from tree import code_of

MAX_MEMBERS = 20
MAX_METHODS = 30

# Classes over the limits. An exception that is not needed any more is a
# finding: take it out.
EXCEPTIONS = {
    # One method for each kind of operation that is drawn.
    'tests/sim/random_operations.h': ['RandomOperations'],
    # One row for each flag of a command line.
    'examples/train_gpt/command_line/flags.h': ['Flags'],
    # A mover's parts, put together: one member for each.
    'runtime/mover/core.h': ['Core'],
}

_PREPROCESSOR = re.compile(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.MULTILINE)
# A head up to its brace; attributes are in capitals or in brackets.
_HEAD = re.compile(
    r'\b(?P<kind>class|struct|union)\s+'
    r'(?:\[\[[^\]]*\]\]\s*|alignas\s*\([^)]*\)\s*|[A-Z_]{4,}(?:\([^)]*\))?\s+)*'
    r'(?P<name>[A-Za-z_][\w:]*)?\s*(?:final\s*)?(?::(?!:)[^;{}]*)?\{')
_ANGLES = re.compile(r'<[^<>;{}]*>')
_ANNOTATION = re.compile(r'\b(ABSL_\w+|alignas)(\s*\([^()]*\))?')
_LABEL = re.compile(r'^\s*(public|private|protected)\s*:(?!:)')
_TEMPLATE = re.compile(r'^\s*template\s*(?:requires\b)?')
_NO_MEMBER = re.compile(r'^(using|typedef|friend|static_assert)\b')
_STATIC = re.compile(r'^(static|constexpr|inline static)\b')
_TYPE = re.compile(r'^(?:enum\s+)?(?:class|struct|union|enum)\b')


class Class:
    def __init__(self, name, line):
        self.name = name
        self.line = line
        self.members = []
        self.methods = []


def classes(text):
    """All classes that are defined in a file, nested and local ones too."""
    code = _PREPROCESSOR.sub(_blank, code_of(text))
    found = []
    for head in _HEAD.finditer(code):
        if re.search(r'\benum\s+$', code[:head.start()][-20:]):
            continue
        one = Class(head['name'] or '(without a name)',
                    code.count('\n', 0, head.start()) + 1)
        for statement in _statements(code, head.end()):
            _count(one, statement)
        found.append(one)
    return found


def python_classes(text):
    """All classes that a module defines; none of what is no Python."""
    found = []
    try:
        module = ast.parse(text)
    except SyntaxError:
        return found
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            one = Class(node.name, node.lineno)
            one.methods = [each.name for each in node.body if isinstance(
                each, (ast.FunctionDef, ast.AsyncFunctionDef))]
            one.members = sorted(set(_set_by(node)))
            found.append(one)
    return found


def check(file, exceptions):
    found = []
    for one in _classes_of(file):
        for count, most, what in (
                (len(one.members), MAX_MEMBERS, 'data members'),
                (len(one.methods), MAX_METHODS, 'methods')):
            if count > most and one.name not in exceptions.get(file.path, ()):
                found.append(file.says(
                    one.line, f'{one.name} has {count} {what}, more than '
                    f'{most}: it is two nouns'))
    return found


def check_exceptions(tree, exceptions):
    """That each exception is of a class that needs it."""
    files = {file.path: file for file in tree.files}
    found = []
    for path, names in sorted(exceptions.items()):
        over = {one.name for one in _classes_of(files[path])
                if len(one.members) > MAX_MEMBERS
                or len(one.methods) > MAX_METHODS} if path in files else set()
        found += [f'tests/tidy/classes.py:1: {path}: {name} needs no exception '
                  'any more' for name in sorted(set(names) - over)]
    return found


def _classes_of(file):
    return (classes if file.is_cpp else python_classes)(file.text)


def _set_by(node):
    """The attributes of `self` that a class assigns, but for those of classes
    within it, and its fields."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            continue
        if isinstance(each, ast.AnnAssign) and isinstance(node, ast.ClassDef):
            yield ast.unparse(each.target)
        if isinstance(each, ast.Attribute) and isinstance(
                each.ctx, ast.Store) and (
                getattr(each.value, 'id', None) == 'self'):
            yield each.attr
        yield from _set_by(each)


def _statements(code, position):
    """The declarations of a body that begins at `position`, without the
    bodies in them: '{}' stands for each."""
    words = ''
    while position < len(code):
        char = code[position]
        position += 1
        if char == '}':
            return
        if char == '{':
            is_body = _has_body(words)
            position = _after_brace(code, position)
            words += '{}'
            if is_body:
                yield words
                words = ''
        elif char == ';':
            yield words
            words = ''
        elif char == '(':
            end = _after_bracket(code, position)
            words += '(' + re.sub(r'[{};]', ' ', code[position:end])
            position = end
        else:
            words += char
            if char == ':' and _LABEL.match(words):
                if code[position] != ':':
                    words = ''


def _has_body(words):
    """Whether braces after these words are those of a function, which end it
    without a semicolon."""
    bare = _bare(words)
    if '(' not in _declared(bare):
        return False
    # a_{1} in a list of initialisers is none; clang-format puts a space before
    # a body.
    return not re.search(r'[\w>]$', words)


def _count(one, statement):
    words = _bare(statement)
    if not words or _NO_MEMBER.match(words):
        return
    declared = _declared(words)
    if '(' in declared:
        if not re.search(r'=\s*(delete|default)$', words):
            one.methods.append(declared)
    elif not _STATIC.match(words) and not _is_type(declared):
        one.members += [name.strip() for name in declared.split(',')]


def _declared(words):
    """What is before a value, arrays' sizes and types' bodies aside."""
    if 'operator' not in words:
        words = words.split('=')[0]
    return re.sub(r'\[[^\]]*\]', '', words).strip()


def _is_type(declared):
    """A type alone, not `struct X x_` or `struct {} x_`."""
    return bool(_TYPE.match(declared)) and not re.search(
        r'(\}|^(?:struct|class|union|enum)\s+[\w:]+)\s*\w+$', declared)


def _bare(words):
    """Without labels, templates' parameters, annotations and arguments of
    templates, in one line."""
    words = re.sub(r'\s+', ' ', words).strip()
    while True:
        before = words
        words = _LABEL.sub('', words).strip()
        words = _ANNOTATION.sub('', words).strip()
        words = re.sub(r'^\[\[[^\]]*\]\]\s*', '', words)
        words = re.sub(r'(operator)\s*(<=>|<<|>>|<=|>=|<|>|==|!=|=)', r'\1@',
                       words)
        words = _ANGLES.sub('', words)
        words = _TEMPLATE.sub('', words)
        if words == before:
            return words


def _after_brace(code, position):
    return _after(code, position, '{', '}')


def _after_bracket(code, position):
    return _after(code, position, '(', ')')


def _after(code, position, opening, closing):
    depth = 1
    while depth > 0 and position < len(code):
        depth += {opening: 1, closing: -1}.get(code[position], 0)
        position += 1
    return position


def _blank(match):
    return re.sub(r'[^\n]', ' ', match.group(0))
