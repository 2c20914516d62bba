"""The rule for private members finds what reaches into another module, and
nothing that stays in its own."""

import unittest

from tree_case import TreeCase, findings

P = 'python/terrace'
HERE = f'{P}/_state/here.py'
OTHERS = {f'{P}/_base/there.py': 'class Thing:\n    _x = 1\n',
          f'{P}/_base/_hidden.py': '', f'{P}/_base/__init__.py': ''}


class MembersTest(TreeCase):
    def assert_private(self, text, line, what):
        with self.subTest(text=text):
            self.assert_found({**OTHERS, HERE: text}, f'{HERE}:{line}',
                              f'{what} is private')

    def assert_public(self, text):
        with self.subTest(text=text):
            self.assert_clean({**OTHERS, HERE: text})

    def test_of_something_else(self):
        for use in ('thing._x', 'print(thing._x.y)', 'thing._x = 1',
                    'thing._x += 1', 'del thing._x', 'thing._x()',
                    'f"{thing._x}"', 'lambda: thing._x',
                    '[a for a in thing._x]', 'a[thing._x]', 'f(thing._x)',
                    '@thing._x\n    def g(): pass', 'def g(a=thing._x): pass',
                    'def g(a: thing._x): pass', 'type(thing._x)',
                    'thing._x: int = 1'):
            self.assert_private(f'def f(thing):\n    {use}\n', 2, 'thing._x')
            self.assert_public(f'def f(thing):\n    {use}\n'
                               .replace('_x', 'x'))
        for thing in ('a.thing', 'thing()', 'thing[0]', 'self.thing',
                      '(yield)', 'thing.x()', 'thing.__class__',
                      'type(thing)'):
            text = f'class A:\n    def f(self, a, thing):\n        {thing}.@\n'
            self.assert_private(text.replace('@', '_x'), 3, f'{thing}._x')
            self.assert_private(text.replace('@', '__x'), 3, f'{thing}.__x')
            self.assert_public(text.replace('@', 'x'))
            self.assert_public(text.replace('@', '__x__'))
            self.assert_private(text.replace('@', '_x__'), 3, f'{thing}._x__')

    def test_its_own(self):
        for own in ('self._x', 'self._x()', 'self._x += 1', 'super()._x()',
                    'self.__class__._x', 'type(self)._x',
                    'getattr(self, "_x")', 'vars(self)["_x"]',
                    'lambda: self._x', '[self._x for a in b]'):
            self.assert_public(f'class A:\n    def f(self):\n        {own}\n')
        for text in ('class A:\n    @classmethod\n    def f(cls): cls._x()\n',
                     'class A:\n    def __new__(cls):\n'
                     '        self = super().__new__(cls)\n'
                     '        print(self._x)\n',
                     'class A:\n    def f(self):\n'
                     '        def g(a):\n            return self._x\n',
                     'class A:\n    async def f(self): await self._x\n',
                     'class A:\n    x = property(lambda self: self._x)\n',
                     'def f():\n    class A:\n'
                     '        def f(self): self._x()\n'):
            self.assert_public(text)

    def test_self_is_the_object_of_a_method_only(self):
        self.assert_private('def f(self):\n    self._x\n', 2, 'self._x')
        self.assert_private('def f(cls):\n    cls._x\n', 2, 'cls._x')
        self.assert_private('class A:\n    def f(self):\n'
                            '        def g(self):\n            self._x\n',
                            4, 'self._x')

    def test_what_the_module_defines(self):
        use = 'def g(thing):\n    thing._x\n'
        for text in ('class A:\n    _x = 1\n', 'class A:\n    _x: int\n',
                     'class A:\n    a, _x = 1, 2\n',
                     'class A:\n    def _x(self): pass\n',
                     'class A:\n    async def _x(self): pass\n',
                     'class A:\n    class _x: pass\n',
                     'class A:\n    __slots__ = ("a", "_x")\n',
                     'class A:\n    def f(self): self._x = 1\n',
                     'class A:\n    def f(self): self._x: int = 1\n',
                     'class A:\n    def f(self): self.a, self._x = 1, 2\n',
                     'class A:\n    def f(self):\n'
                     '        with a as self._x: pass\n',
                     'def f():\n    class A:\n        _x = 1\n'):
            self.assert_public(text + use)
            self.assert_public(use + text)
            self.assert_private(use + text.replace('_x', '_y'), 2, 'thing._x')
        for text in ('_x = 1\n', 'def _x(): pass\n', 'class _x: pass\n',
                     'class A:\n    def f(self): self._x += 1\n',
                     'class A:\n    def f(self): self._x()\n',
                     'class A:\n    def f(self): del self._x\n',
                     'class A:\n    def f(self): _x = 1\n',
                     'class A:\n    def f(self): self._x.a = 1\n',
                     'class A:\n    a = "_x"\n',
                     'class A:\n    __slots__: tuple\n'):
            self.assert_private(use + text, 2, 'thing._x')
        self.assert_public('class A:\n    def f(self): self._x = self.a._x\n')
        found = findings({**OTHERS, HERE: 'def f(thing): thing._x = 1\n' + use})
        self.assertEqual(len(found), 2, found)

    def test_what_is_annotated_with_a_class_of_another_module(self):
        own = 'class A:\n    def f(self): self._x = 1\n'
        for annotation in ('Thing', 'Thing | None', 'Optional[Thing]'):
            self.assert_private(
                'from terrace._base.there import Thing\n'
                f'def f(thing: {annotation}):\n    thing._x\n' + own,
                3, 'thing._x')
        self.assert_private(
            'from terrace._base import there\n'
            'def f(*, thing: there.Thing):\n    lambda: thing._x\n' + own,
            3, 'thing._x')
        for annotation in ('A', 'torch.Tensor', 'int'):
            self.assert_public(f'import torch\ndef f(thing: {annotation}):\n'
                               '    thing._x\n' + own)

    def test_of_a_library(self):
        for text in ('import torch\ntorch._x(1)\n',
                     'import torch._utils\ntorch._utils._x(1)\n',
                     'import torch as t\nt.utils._x(1)\n',
                     'from torch import utils\nutils._x(1)\n',
                     'from torch import utils as u\nu.A._x(1)\n',
                     'from torch._utils import _x\n',
                     'def f():\n    import torch\n    torch._x(1)\n'):
            self.assert_public(text)
        for text in ('import torch\ntorch()._x\n',
                     'def g():\n    import torch\ntorch._x\n',
                     'class A:\n    import torch\ntorch._x\n',
                     'import torch\ndef f(torch): torch._x\n',
                     'import torch\ndef f(): torch = 1; torch._x\n'):
            self.assert_private(text, text.count('\n'),
                                'torch()._x' if '()._' in text else 'torch._x')
        self.assert_public('def f(tensor): return tensor._version\n')

    def test_of_another_module(self):
        own = 'class A:\n    _x = 1\n'
        for text, what in [
                ('from terrace._base import there\nthere._x()\n', 'there._x'),
                ('from terrace._base import there as t\nt._x()\n', 't._x'),
                ('import terrace._base.there\nterrace._base.there._x\n',
                 'terrace._base.there._x'),
                ('from terrace._base.there import Thing\nThing._x\n',
                 'Thing._x'),
                ('\nfrom terrace._base.there import _x\n',
                 'terrace._base.there._x'),
                ('\nfrom terrace._base.there import _x as x\n',
                 'terrace._base.there._x'),
                ('\nfrom .._base.there import _x\n',
                 'terrace._base.there._x'),
                ('def f():\n    from terrace._base.there import _x\n',
                 'terrace._base.there._x')]:
            # Even where a class here has a member of that name.
            self.assert_private(text, 2, what)
            self.assert_private(text + own, 2, what)
            self.assert_public(text.replace('_x', 'x'))

    def test_names_of_folders_and_modules_are_not_private(self):
        for text in ('from terrace import _base\n_base.there.Thing()\n',
                     'from terrace._base import there\nthere.Thing()\n',
                     'import terrace._base.there\nterrace._base.there.f()\n',
                     'from terrace._base import _hidden\n_hidden.f()\n',
                     'from .. import _base\n_base._hidden.f()\n'):
            self.assert_public(text)

    def test_names_as_texts(self):
        for use in ('getattr(thing, "_x")', 'getattr(thing, "_x", None)',
                    'setattr(thing, "_x", 1)', 'delattr(thing, "_x")',
                    'hasattr(thing, "_x")', 'vars(thing)["_x"]',
                    'vars(thing).pop("_x")', 'thing.__dict__["_x"]',
                    'thing.__dict__.get("_x", 1)',
                    'object.__setattr__(thing, "_x", 1)',
                    'object.__getattribute__(thing, "_x")',
                    'thing.__setattr__("_x", 1)', 'thing.__getattr__("_x")',
                    'object.__delattr__(thing, "_x")', 'attrgetter("_x")',
                    'operator.attrgetter("a._x")', 'methodcaller("_x")',
                    'getattr(thing, f"_x{a}")', 'getattr(thing, "_x" + a)'):
            text = f'def f(thing, a):\n    {use}\n'
            shown = use.replace('"', "'")
            self.assert_private(text, 2, shown)
            self.assert_public(text.replace('_x', 'x'))
        for use in ('getattr(thing, f"__{a}__")', 'getattr(thing, f"")',
                    'getattr(thing, a)', 'thing.__setattr__(a, 1)',
                    'thing.__setattr__("x", "_x")', 'vars(thing)[a]',
                    'vars(thing)[0]', 'vars(thing).pop(a)', 'vars()["_x"]',
                    'thing["_x"]', 'thing.a["_x"]', 'thing.pop("_x")',
                    'f(thing)["_x"]', 'f(thing, "_x")', 'attrgetter(a)'):
            self.assert_public(f'def f(thing, a):\n    {use}\n')
        self.assert_public('class A:\n    _x = 1\n'
                           'def f(thing): getattr(thing, "_x")\n')

    def test_outside_the_package_anything_goes(self):
        self.assert_clean({'python/tests/a.py': 'a._x\n',
                           'tests/a.py': 'a._x\n'})
        for path in (f'{P}/__init__.py', f'{P}/__main__.py'):
            self.assert_found({path: 'a._x\n'}, f'{path}:1', 'is private')


if __name__ == '__main__':
    unittest.main()
