"""The order of layers and the rule against circles find the Python modules
that break them, and nothing in those that do not."""

import unittest

import python_layers
from tree_case import TreeCase, findings

P = 'python/terrace'
BASE, RANKS, STATE = (f'{P}/{layer}' for layer in python_layers.ORDER[:3])


class LayersTest(TreeCase):
    def test_the_order(self):
        self.assertEqual(python_layers.ORDER, (
            '_base', '_ranks', '_state', '_weights', '_offload',
            '_optimizer', '_files', '_deepspeed'))

    def test_a_layer_imports_itself_and_those_before_it(self):
        order = python_layers.ORDER
        for i, own in enumerate(order):
            for j, other in enumerate(order):
                with self.subTest(own=own, other=other):
                    files = {
                        f'{P}/{other}/there.py': '',
                        f'{P}/{own}/here.py':
                            f'\nfrom terrace.{other}.there import x\n'}
                    if j <= i:
                        self.assert_clean(files)
                    else:
                        self.assert_found(
                            files, f'{P}/{own}/here.py:2',
                            f'{own} may not import terrace.{other}.there')

    def test_wherever_and_however_it_imports(self):
        # @: a layer that is below this one, or above it.
        for text in ['import terrace.@.a',
                     'import terrace.@.a as b; b.f()',
                     'import os, terrace.@.a',
                     'from terrace.@.a import b',
                     'from terrace.@.a import *',
                     'from terrace.@ import a',
                     'from terrace.@ import a as b',
                     'from terrace import @',
                     'from ..@ import a',
                     'from ..@.a import b as c',
                     'from .. import @',
                     'from typing import TYPE_CHECKING\n'
                     'if TYPE_CHECKING:\n    from terrace.@.a import B',
                     'def f():\n    from terrace.@.a import b',
                     'def f():\n    def g(): import terrace.@.a',
                     'class A:\n    from terrace.@ import a',
                     'try:\n    pass\nfinally:\n    import terrace.@.a',
                     'import importlib\n'
                     'importlib.import_module("terrace.@.a")',
                     'from importlib import import_module\n'
                     'import_module("..@.a")',
                     'print(__import__("terrace.@.a"))']:
            with self.subTest(text=text):
                files = {f'{BASE}/a.py': '', f'{STATE}/a.py': ''}
                here = f'{RANKS}/here.py'
                self.assert_clean({**files, here: text.replace('@', '_base')})
                self.assert_found(
                    {**files, here: text.replace('@', '_state')},
                    f'{here}:{text.count(chr(10)) + 1}',
                    '_ranks may not import terrace._state')

    def test_a_module_is_told_of_once(self):
        files = {f'{STATE}/a.py': '', f'{STATE}/b.py': '', f'{RANKS}/here.py':
                 'from terrace._state import a\na.f()\n'
                 'def f():\n    from terrace._state.a import b\n'}
        self.assert_found(files, f'{RANKS}/here.py:1', 'may not import')
        files[f'{RANKS}/here.py'] += '    from terrace._state import b\n'
        self.assertEqual(len(findings(files)), 2)

    def test_calls_that_import_nothing_of_ours(self):
        self.assert_clean({
            f'{STATE}/a.py': '',
            f'{RANKS}/here.py':
                'import_module()\nimport_module(name)\nimport_module(1)\n'
                'import_module("json")\nf("terrace._state.a")\n'})

    def test_a_layer_that_another_import_makes_reachable(self):
        files = {f'{BASE}/a.py': '', f'{STATE}/a.py': ''}
        here = f'{RANKS}/here.py'
        for use in ('terrace.@.a.f()', 'f(terrace.@.a).b', 'terrace.@.a = 1'):
            with self.subTest(use=use):
                text = f'import terrace._base.a\n\n{use}\n'
                self.assert_clean({**files, here: text.replace('@', '_base')})
                self.assert_found({**files, here: text.replace('@', '_state')},
                                  f'{here}:3', 'import terrace._state.a,')

    def test_the_package_is_above_all_layers(self):
        files = {f'{P}/__init__.py': '', f'{P}/__main__.py': '',
                 f'{BASE}/a.py': ''}
        here = f'{STATE}/here.py'
        for text, what in [('import terrace', 'terrace,'),
                           ('import terrace as t', 'terrace,'),
                           ('from terrace import AdamW', 'terrace.AdamW,'),
                           ('from .. import AdamW', 'terrace.AdamW,'),
                           ('from terrace import __main__', '__main__,'),
                           ('import terrace.__main__', '__main__,'),
                           ('import terrace._base.a; terrace.AdamW()',
                            'terrace.AdamW,'),
                           ('import terrace._base.a; terrace.AdamW.b',
                            'terrace.AdamW.b,'),
                           ('import terrace._base.a; print(terrace)',
                            'terrace,')]:
            with self.subTest(text=text):
                self.assert_found({**files, here: text}, f'{here}:1',
                                  f'_state may not import {what}'
                                  .replace('import __', 'import terrace.__'))
        for above in ('__init__', '__main__'):
            self.assert_clean({**files, here: '', f'{P}/{above}.py':
                               'import terrace._state.here\n'
                               'from terrace._base.a import b\n'})
        self.assert_clean({**files, f'{P}/__main__.py':
                           'import terrace\nfrom terrace import AdamW\n'})

    def test_what_is_in_no_layer(self):
        for path in (f'{P}/errors.py', f'{P}/_utils/a.py',
                     f'{P}/_utils/__init__.py'):
            self.assert_found({path: ''}, f'{path}:1', 'is in no layer')
        self.assert_clean({f'{BASE}/__init__.py': '', f'{BASE}/b/c.py': ''})
        # Told of once, not by each importer as well.
        self.assert_found({f'{P}/errors.py': '', f'{STATE}/a.py':
                           'from terrace import errors\n'},
                          f'{P}/errors.py:1', 'is in no layer')
        self.assert_clean({f'{P}/notes.md': ''})
        # Others may be anywhere, and import what they like.
        self.assert_clean({f'{P}/__init__.py': '', f'{STATE}/a.py': '',
                           'python/tests/a.py': 'import terrace\n',
                           'bench/terrace.py': 'from terrace import _state\n'})

    def test_what_is_not_there(self):
        files = {f'{BASE}/a.py': ''}
        here = f'{STATE}/here.py'
        for text in ('import terrace._base.b', 'from terrace._base.b import a',
                     'from .b import a', 'from terrace._old import a'):
            with self.subTest(text=text):
                self.assert_found({**files, here: f'def f():\n    {text}\n'},
                                  f'{here}:2', 'no module of the tree')
        self.assert_clean({**files, here: 'import terraces.b, ter.b\n'})


class CircleTest(TreeCase):
    def test_a_circle_is_named(self):
        def module(imported):
            return f'\nfrom terrace._base import {imported}\n'
        files = {f'{BASE}/a.py': module('b'), f'{BASE}/b.py': module('c'),
                 f'{BASE}/c.py': '', f'{BASE}/d.py': module('a')}
        self.assert_clean(files)
        files[f'{BASE}/c.py'] = module('a')
        self.assert_found(
            files, f'{BASE}/a.py:2',
            'terrace._base.a -> terrace._base.b -> terrace._base.c -> '
            'terrace._base.a:')

    def test_each_module_in_a_circle_is_in_one_that_is_named(self):
        found = findings({f'{BASE}/a.py': 'from . import b, c\n',
                          f'{BASE}/b.py': 'from . import a\n',
                          f'{BASE}/c.py': 'from . import a\n'})
        self.assertEqual(len(found), 2, found)
        self.assertIn('a -> terrace._base.b -> terrace._base.a', found[0])
        self.assertIn('c -> terrace._base.a -> terrace._base.c', found[1])

    def test_imports_for_types_and_in_functions_count(self):
        for text in ('if TYPE_CHECKING:\n    from terrace._base.b import B',
                     'def f():\n    import terrace._base.b',
                     'import terrace._base.c\n'
                     'def f(): terrace._base.b.g()'):
            with self.subTest(text=text):
                files = {f'{BASE}/a.py': text, f'{BASE}/b.py': '',
                         f'{BASE}/c.py': ''}
                self.assert_clean(files)
                files[f'{BASE}/b.py'] = 'from terrace._base import a\n'
                self.assert_found(files, f'{BASE}/a.py:2', 'a circle')

    def test_a_folder_between_two_modules(self):
        files = {f'{BASE}/__init__.py': 'from terrace._base.a import A\n',
                 f'{BASE}/a.py': 'from terrace._base import b\n',
                 f'{BASE}/b.py': ''}
        self.assert_clean(files)
        files[f'{BASE}/b.py'] = 'from terrace._base import A\n'
        self.assert_found(files, f'{BASE}/__init__.py:1', 'a circle')
        files[f'{BASE}/__init__.py'] = 'from .a import A\n'
        self.assert_found(files, f'{BASE}/__init__.py:1', 'a circle')

    def test_across_layers_and_above_them(self):
        found = findings({f'{BASE}/a.py': 'from terrace._state import a\n',
                          f'{STATE}/a.py': 'from terrace._base import a\n'})
        self.assertEqual(len(found), 2, found)
        self.assertIn('may not import', found[0] + found[1])
        self.assertIn('a circle', found[0] + found[1])
        self.assert_found({f'{P}/__init__.py': 'import terrace.__main__\n',
                           f'{P}/__main__.py': 'import terrace\n'},
                          f'{P}/__init__.py:1', 'a circle')


if __name__ == '__main__':
    unittest.main()
