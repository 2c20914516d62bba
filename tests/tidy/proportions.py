"""How many statements the library has, and how many of them are the runtime's:
lines of C++ without comments and blanks."""

import circles
from tree import code_of

RUNTIME = 'runtime/'
MAX_RUNTIME_SHARE = 0.20
LIBRARY = circles.LIBRARY + ('include/', 'daemon/')


def statements(file):
    return sum(1 for line in code_of(file.text).splitlines() if line.strip())


def counted(tree):
    """(the runtime's statements, the library's)"""
    counts = {file.path: statements(file) for file in tree.files
              if file.is_cpp and file.path.startswith(LIBRARY)}
    return (sum(count for path, count in counts.items()
                if path.startswith(RUNTIME)), sum(counts.values()))


def check(tree):
    runtime, library = counted(tree)
    if runtime <= MAX_RUNTIME_SHARE * library:
        return []
    return [f'{RUNTIME}:1: {runtime} of {library} statements of the library, '
            f'more than {MAX_RUNTIME_SHARE:.0%}: what stands on the runtime '
            'stands beside it']
