"""Names that two files have, documents that are not there, and a runtime that
is too much of the library are found."""

import unittest

import proportions
from tree import Tree
from tree_case import TreeCase, tree_of

HEADER = '#pragma once\n'


def source(header):
    return f'#include "{header}"\n'


class NamesTest(TreeCase):
    def test_a_private_header_has_a_name_of_its_own(self):
        self.assert_found({'aio/x.h': HEADER, 'tiers/x.h': HEADER},
                          'tiers/x.h:1', 'has the name of aio/x.h')
        self.assert_found({'include/terrace/x.h': HEADER,
                           'tiers/disk/x.h': HEADER},
                          'tiers/disk/x.h:1', 'include/terrace/x.h')
        self.assert_found({'tests/aio/x.h': HEADER, 'bench/x.h': HEADER},
                          'tests/aio/x.h:1', 'bench/x.h')
        self.assert_clean({'aio/x.h': HEADER, 'tiers/y.h': HEADER,
                           'include/terrace/z.h': HEADER,
                           'libtorch/include/terrace/torch/z.h': HEADER})

    def test_a_source_with_a_headers_name_implements_it(self):
        files = {'aio/x.h': HEADER, 'aio/y.h': HEADER}
        self.assert_clean({**files, 'aio/x.cc': source('aio/x.h')})
        self.assert_clean({**files, 'aio/z.cc': source('aio/x.h')})
        self.assert_found({**files, 'aio/x.cc': source('aio/y.h')},
                          'aio/x.cc:1', 'aio/x.h, which it does not implement')
        self.assert_found({**files, 'tiers/x.cc': '\n'}, 'tiers/x.cc:1',
                          'aio/x.h, which it does not implement')
        self.assert_clean({'include/terrace/x.h': HEADER,
                           'runtime/x.cc': source('terrace/x.h')})

    def test_two_sources_have_two_names(self):
        self.assert_found({'aio/x.cc': '\n', 'tiers/x.cc': '\n'},
                          'tiers/x.cc:1', 'has the name of aio/x.cc')
        self.assert_clean({'examples/a/main.cc': '\n', 'bench/main.cc': '\n',
                           'aio/x.cc': '\n', 'tests/tiers/x.cc': '\n'})
        public = {'include/terrace/x.h': HEADER,
                  'libtorch/include/terrace/torch/x.h': HEADER}
        self.assert_clean({**public, 'runtime/x.cc': source('terrace/x.h'),
                           'libtorch/x.cc': source('terrace/torch/x.h')})
        self.assert_found({**public, 'runtime/x.cc': source('terrace/x.h'),
                           'optimizer/x.cc': source('terrace/x.h')},
                          'runtime/x.cc:1', 'has the name of optimizer/x.cc')

    def test_documents(self):
        files = {'docs/a.md': 'See [b](b.md), ../README.md, docs/b.md.\n',
                 'docs/b.md': '`DIR/<date>-io.md` https://example.org/c.md\n',
                 'README.md': 'docs/a.md\n'}
        self.assert_clean(files)
        self.assert_found({**files, 'aio/x.cc': '\n// As a.md says.\n'},
                          'aio/x.cc:2', 'a.md is no document of the tree')
        self.assert_found({**files, 'docs/c.md': 'docs/d.md\n'},
                          'docs/c.md:1', 'docs/d.md is no document')

    def test_links_of_documents(self):
        files = {'docs/a.md': '[b](b.md#part) [c](../aio/x.cc) [d](../aio)\n',
                 'docs/b.md': '[x](https://example.org/c.md)\n',
                 'aio/x.cc': '\n'}
        self.assert_clean(files)
        self.assert_found({**files, 'docs/e.md': '\n[x](../aio/y.cc)\n'},
                          'docs/e.md:2', '../aio/y.cc leads nowhere')

    def test_sizes_of_documents(self):
        line = 'word ' * 15 + '\n'
        table = '| ' + 'word ' * 20 + '|\n'
        self.assert_clean({'README.md': line + table})
        self.assert_found({'docs/a.md': table + 'word ' * 20 + '\n'},
                          'docs/a.md:2', '100 columns')
        self.assert_found({'README.md': line * 110}, 'README.md:1',
                          'bytes, more than 8000')
        self.assert_found({'docs/a.md': '\n' * 401}, 'docs/a.md:401',
                          '401 lines')

    def test_evidence_of_decisions(self):
        files = {'aio/x.cc': '\n', 'tests/aio/y_test.cc': '\n',
                 'tests/aio/CMakeLists.txt': 'terrace_test(z_test a.cc)\n',
                 'docs/decisions/aio.md': '`x.cc`, `aio/x.cc`, `y_test`, '
                                          '`z_test`, `aio/*.cc`\n'}
        self.assert_clean(files)
        self.assert_found({**files, 'docs/decisions/b.md': '`io/x.cc`\n'},
                          'docs/decisions/b.md:1',
                          'io/x.cc is no file of the tree')
        self.assert_found({**files, 'ARCHITECTURE.md': '`w_test`\n'},
                          'ARCHITECTURE.md:1', 'w_test is no test')
        self.assert_clean({**files, 'docs/b.md': '`io/x.cc`, `w_test`\n'})

    def test_the_picture_stands_twice(self):
        picture = '```\n examples/\n    |\n```\n'
        files = {'README.md': picture, 'ARCHITECTURE.md': 'x\n' + picture}
        self.assert_clean(files)
        self.assert_found({**files, 'README.md': 'x\n'}, 'ARCHITECTURE.md:1',
                          'its picture is not that of README.md')


class ProportionsTest(unittest.TestCase):
    def test_share_of_the_runtime(self):
        files = {'runtime/mover/x.cc': '// A comment.\n\nint a;  // b\n',
                 'libtorch/x.cc': 'int a;\n' * 3 + '/*\n\n*/\n',
                 'tests/x.cc': 'int a;\n' * 9}
        with tree_of(files) as folder:
            self.assertEqual(proportions.counted(Tree(folder)), (1, 4))
            found = proportions.check(Tree(folder))
        self.assertEqual(len(found), 1, found)
        self.assertIn('1 of 4 statements', found[0])
        files['daemon/x.cc'] = 'int a;\n'
        with tree_of(files) as folder:
            self.assertEqual(proportions.check(Tree(folder)), [])


if __name__ == '__main__':
    unittest.main()
