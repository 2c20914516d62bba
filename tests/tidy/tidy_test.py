"""Each rule of the tidy test finds the snippet that breaks it, and nothing in
one that does not."""

import pathlib
import unittest

import built
import shape
from tree import PACKAGE, Tree, code_of
from tree_case import TreeCase, findings, tree_of

HEADER = '#pragma once\n'
PYTHON = f'{PACKAGE}/_base'


class TidyTest(TreeCase):
    def test_layers(self):
        allowed = [('tiers', 'aio'), ('tiers', 'kernels'), ('runtime', 'tiers'),
                   ('prefetch', 'policies'), ('aio', 'base'),
                   ('tiers/pmem', 'tiers'), ('runtime', 'tiers/pmem'),
                   ('optimizer', 'kernels'),
                   ('machine', 'aio'),
                   ('tests/aio', 'runtime'), ('aio', 'aio')]
        denied = [('aio', 'kernels'), ('kernels', 'aio'), ('policies', 'aio'),
                  ('tiers', 'policies'), ('prefetch', 'tiers'),
                  ('aio', 'tiers'), ('aio', 'runtime'), ('aio', 'tests'),
                  ('tiers', 'tiers/pmem'), ('tiers/pmem', 'runtime'),
                  ('base', 'aio'), ('libtorch', 'runtime'),
                  ('libtorch', 'aio'), ('optimizer', 'runtime'),
                  ('optimizer', 'tiers'),
                  ('optimizer', 'aio'), ('runtime', 'optimizer'),
                  ('checkpoint', 'runtime'),
                  ('checkpoint', 'tiers'),
                  ('machine', 'runtime'), ('machine', 'tiers'),
                  ('zero_config', 'tiers'),
                  ('zero_config', 'machine'), ('examples/x', 'runtime'),
                  ('daemon', 'runtime'), ('runtime', 'bench')]
        for own, other in allowed + denied:
            with self.subTest(own=own, other=other):
                files = {f'{other}/there.h': HEADER,
                         f'{own}/here.cc': f'\n#include "{other}/there.h"\n'}
                if (own, other) in allowed:
                    self.assert_clean(files)
                else:
                    self.assert_found(files, f'{own}/here.cc:2', 'may not')

    def test_a_layer_may_have_single_headers_of_another(self):
        self.assert_clean({
            'tiers/system_error.h': HEADER,
            'checkpoint/x.cc': '#include "tiers/system_error.h"\n'})

    def test_public_headers_are_the_bottom(self):
        api = 'include/terrace'
        self.assert_clean({
            f'{api}/a.h': HEADER + '#include <vector>\n'
                          '#include "absl/status/statusor.h"\n',
            f'{api}/b.h': HEADER + '#include "terrace/a.h"\n',
            'aio/c.cc': '#include "terrace/b.h"\n'})
        self.assert_found(
            {f'{api}/a.h': HEADER + '#include "absl/strings/str_cat.h"\n'},
            f'{api}/a.h:2', 'a public header may not')
        self.assert_found(
            {'base/x.h': HEADER,
             f'{api}/a.h': HEADER + '#include "base/x.h"\n'},
            f'{api}/a.h:2', 'may not include base')

    def test_includes_start_at_the_root(self):
        self.assert_found({'aio/x.h': HEADER, 'aio/y.cc': '#include "x.h"\n'},
                          'aio/y.cc:1', 'no file of the tree')
        self.assert_found({'aio/x.cc': '#include HEADER_NAME\n'},
                          'aio/x.cc:1', 'by macro')

    def test_doors(self):
        for header, open_to, closed_to in [
                ('<liburing.h>', 'aio/uring_engine.cc', 'aio/engine.h'),
                ('<hwloc.h>', 'tiers/memory/topology.cc', 'tiers/memory/topology.h'),
                ('<libpmem2.h>', 'tiers/pmem/persist_domain.cc',
                 'tiers/pmem/pmem_medium.cc'),
                ('<sqlite3.h>', 'tiers/catalog.cc', 'runtime/x.cc'),
                ('<cuda_runtime.h>', 'kernels/cuda/x.cc', 'kernels/x.cc'),
                ('<nccl.h>', 'kernels/cuda/x.cc', 'runtime/x.cc'),
                ('"hwy/highway.h"', 'kernels/cpu/x.cc', 'kernels/x.h'),
                ('<xxhash.h>', 'kernels/checksum.cc', 'tiers/x.cc'),
                ('<torch/torch.h>', 'libtorch/x.cc', 'runtime/x.cc'),
                ('"ATen/ATen.h"', 'libtorch/x.h', 'aio/x.cc'),
                ('"c10/core/X.h"', 'examples/a/x.cc', 'tests/aio/x.cc'),
                ('<nlohmann/json.hpp>', 'checkpoint/x.cc', 'checkpoint/x.h'),
                ('<nlohmann/json.hpp>', 'daemon/x.cc', 'aio/x.cc'),
                ('<sys/socket.h>', 'daemon/x.cc', 'runtime/x.cc'),
                ('<gtest/gtest.h>', 'tests/aio/x.cc', 'aio/x.cc'),
                ('"absl/time/time.h"', 'aio/x.cc', None),
                ('"absl/synchronization/mutex.h"', None, 'tests/aio/x.cc')]:
            with self.subTest(header=header, closed=closed_to):
                line = f'#pragma once\n#include {header}\n'
                if open_to:
                    self.assert_clean({open_to: line})
                if closed_to:
                    self.assert_found({closed_to: line}, f'{closed_to}:2',
                                      'may be included in')

    def test_a_folder_outside_the_layers(self):
        self.assert_found({'utils/x.cc': '\n'}, 'utils/x.cc:1', 'no layer')

    def test_file_length(self):
        self.assert_clean({'aio/x.cc': '\n' * 400})
        for path in ('aio/x.cc', 'cmake/x.cmake', 'scripts/x', 'tests/x.py',
                     f'{PYTHON}/x.py'):
            self.assert_found({path: '\n' * 401}, f'{path}:401', '401 lines')

    def test_function_length(self):
        # A signature on two lines, a body of `count`, the closing brace.
        def function(count, signature='int F(\n    int x) {\n'):
            return signature + '  x = "}{"[0] + \'{\';  // }\n' * count + '}\n'
        self.assert_clean({'aio/x.cc': function(67) * 3})
        self.assert_found({'aio/x.cc': '\n' + function(68)}, 'aio/x.cc:2',
                          'a function of 71 lines')
        for signature in ['\nTEST(A, B) {\n', '\nX::X() : a_(1) {\n',
                          '\nstruct X f() {\n', '\ntemplate <class T>T f() {\n',
                          '\nauto f() -> int {\n']:
            with self.subTest(signature=signature):
                text = function(80, signature)
                found = findings({'aio/x.cc': 'namespace n {\n' + text + '}\n'})
                self.assertEqual(len(found), 1, found)
                self.assertIn('a function of', found[0])
        method = ('class ABSL_LOCKABLE X : public Y<int()> {\n public:\n'
                  + function(80) + '};\n')
        self.assertEqual(len(findings({'aio/x.cc': method})), 1)

    def test_what_is_long_but_no_function(self):
        enum = 'enum class E : int {\n' + '  k,\n' * 90 + '};\n'
        table = 'const int kTable[] = {\n' + '  1,\n' * 90 + '};\n'
        many = ('namespace {\nstruct S {\n'
                + '  int f() {\n    return 1;\n  }\n' * 30
                + '};\n}  // namespace\n')
        for text in (enum, table, many):
            self.assert_clean({'aio/x.cc': text})

    def test_code_of_blanks_literals_and_keeps_lines(self):
        text = 'a = R"x({)" \n})x"; b = 1\'000\'000; /* {\n */ c = \'"\'; // }'
        code = code_of(text)
        self.assertEqual(code.count('\n'), text.count('\n'))
        self.assertNotIn('{', code)
        self.assertNotIn('}', code)
        self.assertIn('b = 1\'000\'000;', code)
        self.assertIn('c =', code)

    def test_folder_size(self):
        for folder, limit in [('aio', shape.MAX_NOUNS),
                              ('tests/aio', shape.MAX_NOUNS_OUTSIDE),
                              ('examples/x', shape.MAX_NOUNS_OUTSIDE)]:
            pairs = {f'{folder}/n{i}.h': HEADER for i in range(limit)}
            pairs.update({f'{folder}/n{i}.cc': f'#include "{folder}/n{i}.h"\n'
                          for i in range(limit)})
            self.assert_clean(pairs)
            self.assert_found({**pairs, f'{folder}/more.cc': '\n'},
                              f'{folder}:1', f'{limit + 1} sources')

    def test_form(self):
        self.assert_clean({'aio/x.cc': 'x' * 80 + '\n'})
        self.assert_found({'aio/x.cc': 'x' * 81}, 'aio/x.cc:1', '81 columns')
        self.assert_found({'aio/x.cc': 'a\tb\n'}, 'aio/x.cc:1', 'a tab')
        self.assert_found({'aio/x.h': '\n'}, 'aio/x.h:1', '#pragma once')
        self.assert_clean({'kernels/cpu/x-inl.h':
                           '#if defined(X) == defined(HWY_TARGET_TOGGLE)\n'})

    def test_python_functions(self):
        def function(count):
            return '@f\ndef g(\n    a):\n' + '    a()\n' * count
        here = f'{PYTHON}/a.py'
        self.assert_clean({here: function(67) * 3})
        self.assert_found({here: '\n' + function(68)}, f'{here}:2',
                          'a function of 71 lines')
        for before in ('class A:\n', 'if a:\n', 'class A:\n  class B:\n'):
            with self.subTest(before=before):
                indent = ' ' * 4 * before.count('\n')
                text = ''.join(indent + line + '\n' for line
                               in function(68).splitlines())
                self.assert_found({here: before + text},
                                  f'{here}:{before.count(chr(10)) + 1}',
                                  'a function of 71 lines')
        many = 'class A:\n' + (
            '    def f(self):\n        pass\n        pass\n' * 30)
        self.assert_clean({here: many})
        nested = 'def f():\n' + '    def g():\n        pass\n' * 40
        self.assert_found({here: nested}, f'{here}:1', 'of 81 lines')

    def test_python_form(self):
        here = f'{PYTHON}/a.py'
        self.assert_clean({here: '#' * 80 + '\n'})
        self.assert_found({here: '#' * 81}, f'{here}:1', '81 columns')
        self.assert_found({here: 'a = "\t"\n'}, f'{here}:1', 'a tab')
        self.assert_found({here: '\ndef f(:\n'}, f'{here}:2', 'is no Python')

    def test_python_folders(self):
        files = {f'{PYTHON}/n{i}.py': '' for i in range(shape.MAX_NOUNS)}
        files[f'{PYTHON}/__init__.py'] = ''
        self.assert_clean(files)
        self.assert_found({**files, f'{PYTHON}/more.py': ''}, f'{PYTHON}:1',
                          f'{shape.MAX_NOUNS + 1} sources')
        self.assert_clean({**files, f'{PACKAGE}/_state/more.py': ''})

    def test_words(self):
        for word in ('TO' + 'DO', 'FIX' + 'ME', '/ro' + 'ot/x',
                     '"/wo' + 'rk/y"', '/home' + '/z',
                     'py' + 'pi.org'):
            with self.subTest(word=word):
                self.assert_found({'aio/x.cc': f'\n// {word}\n'},
                                  'aio/x.cc:2', word)
                self.assert_found({'scripts/x': f'# {word}\n'},
                                  'scripts/x:1', word)
        self.assert_clean({'aio/x.cc': '// build/work/x, TODOS\n'})

    def test_the_readme_shows_the_program_that_is_run(self):
        files = {shape.EXAMPLE: 'int main() {}\n',
                 'README.md': 'x\n```cpp\nint main() {}\n```\n'}
        self.assert_clean(files)
        files[shape.EXAMPLE] = 'int main() { }\n'
        self.assert_found(files, 'README.md:1', 'is not tests/install')

    def test_everything_is_built(self):
        files = {'aio/x.cc': '', 'tests/aio/x_test.cc': '',
                 'libtorch/y.cc': ''}
        with tree_of(files) as folder:
            tree = Tree(folder)

            def compiled(path, target):
                return {'directory': folder, 'file': path,
                        'output': f'a/CMakeFiles/{target}.dir/{path}.o'}
            library = compiled('aio/x.cc', 'terrace')
            adapter = compiled('libtorch/y.cc', 'terrace_torch')
            test = compiled('tests/aio/x_test.cc', 'x_test')
            run = {'name': 'x', 'command': ['/b/bin/x_test']}

            def found(commands, tests, without=()):
                return built.check_lists(tree, commands, tests, without)
            self.assertEqual(found([library, adapter, test], [run]), [])
            self.assertEqual(found([adapter, test], [run]),
                             ['aio/x.cc:1: no target compiles it'])
            self.assertEqual(found([library, test], [run]),
                             ['libtorch/y.cc:1: no target compiles it'])
            self.assertEqual(found([library, test], [run], ['torch']), [])
            self.assertEqual(found([library, adapter, test], []),
                             ['tests/aio/x_test.cc:1: ctest does not run it'])
            # A folder's unit stands for the sources that it includes.
            unit = pathlib.Path(folder, 'unity_aio_cxx.cxx')
            unit.write_text(f'#include "{folder}/aio/x.cc"\n')
            self.assertEqual(found([compiled(unit.name, 'terrace'), adapter,
                                    test], [run]), [])


if __name__ == '__main__':
    unittest.main()
