"""Lengths of files and functions, folder sizes, and words that have no place
in the tree."""

import ast
import re

from tree import code_of

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 80
# A noun is x.h with x.cc and counts once. About a dozen in the library; a
# program or a test suite reads from one end to the other and may have more, and
# so may the public headers, whose folder is a part of their names.
MAX_NOUNS = 16
MAX_NOUNS_OUTSIDE = 24
OUTSIDE = ('examples', 'bench', 'tests', 'include')
UNLIMITED = {'LICENSE'}

# Written in pieces so that this file does not find itself.
_WORDS = [
    (re.compile(r'\b(' + '|'.join(['TO' + 'DO', 'FIX' + 'ME', 'X' + 'XX'])
                + r')\b'), 'unfinished work'),
    (re.compile(r'(?<![\w.])/(' + '|'.join(['wo' + 'rk', 'ro' + 'ot',
                                            'home', 'Users'])
                + r')/\w'), "a path of somebody's machine"),
    (re.compile(r'py' + r'pi\.org|python' + r'hosted\.org|deb\.deb'
                + r'ian\.org', re.IGNORECASE), 'the host of a registry'),
]


def check_words(file):
    if file.path == 'LICENSE':
        return []
    return [file.says(number, f'{what}: {line.strip()[:60]}')
            for number, line in enumerate(file.lines, 1)
            for pattern, what in _WORDS if pattern.search(line)]


def check_length(file):
    if file.path in UNLIMITED or len(file.lines) <= MAX_FILE_LINES:
        return []
    return [file.says(len(file.lines), f'{len(file.lines)} lines, more than '
                      f'{MAX_FILE_LINES}')]


def name_of(path):
    """x of folder/x.h."""
    return path.rpartition('/')[2].rpartition('.')[0]


def check_folders(tree):
    nouns = {}
    for file in tree.files:
        name = name_of(file.path)
        if file.is_cpp or (file.is_of_package and name != '__init__'):
            nouns.setdefault(file.folder, set()).add(name)
    found = []
    for folder, names in nouns.items():
        most = (MAX_NOUNS_OUTSIDE if folder.startswith(OUTSIDE)
                else MAX_NOUNS)
        if len(names) > most:
            found.append(f'{folder}:1: {len(names)} sources, more than '
                         f'{most}: split by noun')
    return found


def check_lines(file):
    found = []
    for number, line in enumerate(file.lines, 1):
        if len(line) > MAX_COLUMNS and 'http' not in line and (
                not line.startswith('#include')):
            found.append(file.says(number, f'{len(line)} columns'))
        if '\t' in line:
            found.append(file.says(number, 'a tab'))
    return found


def check_cpp(file):
    found = check_lines(file)
    # What Highway compiles once for each target has Highway's own guard.
    if file.path.endswith('.h') and not re.search(
            r'^#pragma once$|defined\(HWY_TARGET_TOGGLE\)', file.text,
            re.MULTILINE):
        found.append(file.says(1, 'a header without #pragma once'))
    return found + _check_spans(file, functions(file.text))


def check_python(file):
    try:
        tree = ast.parse(file.text)
    except SyntaxError as error:
        return [file.says(error.lineno or 1, 'is no Python: ' + error.msg)]
    return check_lines(file) + _check_spans(file, python_functions(tree))


def _check_spans(file, spans):
    return [file.says(first, f'a function of {last - first + 1} lines, more '
                      f'than {MAX_FUNCTION_LINES}')
            for first, last in spans if last - first >= MAX_FUNCTION_LINES]


def python_functions(tree):
    """(first line, last line) of each outermost function, its decorators and
    its docstring with it; those of a class that a function makes count with
    it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno] + [one.lineno
                                         for one in node.decorator_list])
            yield first, node.end_lineno
        else:
            yield from python_functions(node)


_TYPE = re.compile(r'\b(namespace|class|struct|union|enum|extern)\b')


def functions(text):
    """(first line, last line) of each outermost body in braces that follows
    a parameter list. Lambdas and blocks count with the function around."""
    code = code_of(text)
    code = re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', _blank, code,
                  flags=re.MULTILINE)
    spans = []
    scopes = []     # of open braces: True where declarations go on inside
    start = None    # of the function whose body is open, and its depth
    head = 0        # where the current declaration began
    for position, char in enumerate(code):
        if char == '{':
            words = code[head:position]
            declares = start is None and _is_scope(words)
            if start is None and not declares and ')' in words:
                begin = head + len(words) - len(words.lstrip())
                start = (begin, len(scopes))
            scopes.append(declares)
            if declares:
                head = position + 1
        elif char == '}' and scopes:
            scopes.pop()
            if start is not None and start[1] == len(scopes):
                spans.append((_line(code, start[0]), _line(code, position)))
                start = None
                head = position + 1
            elif start is None and all(scopes):
                head = position + 1
        elif char == ';' and start is None and all(scopes):
            head = position + 1
    return spans


def _is_scope(words):
    """Whether braces after these words hold declarations."""
    if not _TYPE.search(words):
        return False
    # `struct X f() {` is a function; `class ABSL_LOCKABLE("m") X {` is not.
    tail = words[_TYPE.search(words).end():]
    return not re.search(r'\w\s+[\w:~]+\s*\([^()]*\)[\s\w]*$', tail)


def _blank(match):
    return re.sub(r'[^\n]', ' ', match.group(0))


def _line(text, position):
    return text.count('\n', 0, position) + 1


EXAMPLE = 'tests/install/app/app.cc'


def check_readme(tree):
    """The README's example is the program that tests/install runs."""
    files = {file.path: file for file in tree.files}
    if 'README.md' not in files or EXAMPLE not in files:
        return []
    readme = files['README.md']
    block = re.search(r'^```cpp\n(.*?)^```$', readme.text,
                      re.DOTALL | re.MULTILINE)
    if block and block[1] == files[EXAMPLE].text:
        return []
    return [readme.says(1, f'its C++ example is not {EXAMPLE}')]
