"""Circles are found, wherever they are looked for."""

import unittest

from exceptions import Exceptions
from tree_case import TreeCase, findings

HEADER = '#pragma once\n'


def header(*included):
    return HEADER + ''.join(f'#include "{name}"\n' for name in included)


def source(*included):
    return header(*included)[len(HEADER):] or '\n'


class CirclesTest(TreeCase):
    def test_headers(self):
        self.assert_clean({'tests/a.h': header('tests/b.h', 'tests/c.h'),
                           'tests/b.h': header('tests/c.h'),
                           'tests/c.h': HEADER})
        self.assert_found({'tests/a.h': header('tests/b.h'),
                           'tests/b.h': header('tests/c.h'),
                           'tests/c.h': HEADER + '\n' + source('tests/a.h')},
                          'tests/a.h:2', 'a circle of includes: tests/a.h -> '
                          'tests/b.h -> tests/c.h -> tests/a.h')

    def test_a_file_that_includes_itself(self):
        self.assert_found({'tests/a.h': header('tests/a.h')}, 'tests/a.h:2',
                          'a circle of includes')

    def test_nouns(self):
        files = {'aio/a.h': HEADER, 'aio/a.cc': source('aio/a.h', 'aio/b.h'),
                 'aio/b.h': header('aio/a.h')}
        self.assert_found(files, 'aio/a.cc:2',
                          'a circle of nouns: aio/a -> aio/b -> aio/a')
        self.assert_clean({path.replace('aio', 'tests'):
                           text.replace('aio', 'tests')
                           for path, text in files.items()})

    def test_folders_of_the_runtime(self):
        files = {'machine/a.h': HEADER,
                 'machine/b.h': header('machine/part/c.h'),
                 'machine/part/c.h': header('machine/a.h')}
        self.assert_found(files, 'machine/b.h:2',
                          'a circle of folders: machine -> '
                          'machine/part -> machine')
        del files['machine/b.h']
        self.assert_clean(files)

    def test_scripts(self):
        self.assert_clean({'tests/a.py': 'import b\n', 'tests/b.py': '',
                           'bench/b.py': 'import a\n'})
        self.assert_found({'tests/a.py': '\nimport b\n',
                           'tests/b.py': 'def f():\n    from a import g\n'},
                          'tests/a.py:2', 'a circle of imports')

    def test_exceptions(self):
        files = {'aio/a.h': HEADER, 'aio/a.cc': source('aio/a.h', 'aio/b.h'),
                 'aio/b.h': header('aio/a.h')}
        allowed = Exceptions({}, ['aio/b'])
        self.assertEqual(findings(files, allowed), [])
        del files['aio/a.cc']
        found = findings(files, allowed)
        self.assertEqual(len(found), 1, found)
        self.assertIn('aio/b needs no exception any more', found[0])


if __name__ == '__main__':
    unittest.main()
