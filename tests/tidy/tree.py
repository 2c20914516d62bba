"""The files of a source tree, and C++ text without comments and strings."""

import pathlib
import re

# Folders whose files are not ours or not sources.
SKIPPED = {'.git', '.cache', 'build', 'shared', '__pycache__',
           'compile_commands.json'}
# The Python package that customers import.
PACKAGE = 'python/terrace'
CPP = {'.h', '.cc'}
OTHER = {'.py', '.cmake', '.in', '.md', '.json', '.txt', '.sh', ''}

# A comment, a string with its raw form, or a character; a quote between
# digits (1'000) is none.
_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/'
    r'|R"(?P<mark>[^()\\ ]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'", re.DOTALL)


def code_of(text):
    """C++ text with comments and literals blanked, lines kept as they are."""
    def blank(match):
        return re.sub(r'[^\n]', ' ', match.group(0))
    return _NOT_CODE.sub(blank, text)


class File:
    def __init__(self, root, path):
        self.path = path.relative_to(root).as_posix()
        self.text = path.read_text(encoding='utf-8', errors='replace')
        self.lines = self.text.splitlines()
        self.folder = self.path.rpartition('/')[0]
        self.is_cpp = path.suffix in CPP
        self.is_of_package = path.suffix == '.py' and (
            self.path.startswith(PACKAGE + '/'))

    def says(self, line, what):
        return f'{self.path}:{line}: {what}'


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.files = []
        for path in sorted(self.root.rglob('*')):
            parts = path.relative_to(self.root).parts
            if SKIPPED.isdisjoint(parts) and path.is_file() and (
                    path.suffix in CPP | OTHER):
                self.files.append(File(self.root, path))
        self.paths = {file.path for file in self.files}
