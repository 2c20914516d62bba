"""Sleeps and short times that nobody has accounted for are found."""

import unittest

import waits
from tree import PACKAGE, Tree
from tree_case import TreeCase, tree_of

CONSTANT = 'constexpr absl::Duration kPause = absl::Milliseconds(1);\n'


class WaitsTest(TreeCase):
    def found(self, files, listed=None):
        with tree_of(files) as folder:
            return waits.check(Tree(folder), listed)

    def test_a_sleep_is_found(self):
        for call in ('absl::SleepFor(pause);', 'nanosleep(&pause, nullptr);',
                     'std::this_thread::sleep_for(pause);', 'sched_yield();',
                     'std::this_thread::yield();', 'ppoll(&fd, 1, 0, 0);'):
            with self.subTest(call=call):
                [found] = self.found({'aio/x.cc': f'\n{call}\n'})
                self.assertIn('aio/x.cc:2', found)
                self.assertIn('woken by what it waits for', found)

    def test_a_short_time_is_found_with_its_name(self):
        [found] = self.found({'libtorch/x.cc': CONSTANT})
        self.assertIn('kPause', found)
        [found] = self.found(
            {'base/x.cc': 'changed.WaitFor(mutex, absl::Microseconds(5));\n'})
        self.assertIn('without a name', found)

    def test_what_is_no_wait_is_none(self):
        self.assertEqual(self.found({
            'base/x.cc': 'Text(absl::Floor(silence, absl::Milliseconds(1)));\n'
                         '// nanosleep(&pause, nullptr);\n'
                         'absl::Milliseconds(patience_ms);\n'
                         'watch->yield();\n',
            'tests/x_test.cc': 'absl::SleepFor(pause);\n' + CONSTANT}), [])

    def test_what_is_listed_stands_and_leaves_with_its_wait(self):
        listed = {'aio/x.cc': waits.Wait({'kPause'}, 'nothing wakes it')}
        self.assertEqual(self.found({'aio/x.cc': CONSTANT}, listed), [])
        [found] = self.found({'aio/x.cc': CONSTANT.replace('kPause', 'kOther')
                              + CONSTANT}, listed)
        self.assertIn('kOther', found)
        [found] = self.found({'aio/x.cc': '\n'}, listed)
        self.assertIn('has no kPause any more', found)

    def test_python_does_not_sleep(self):
        [found] = self.found({f'{PACKAGE}/x.py': 'time.sleep(1)\n'})
        self.assertIn('x.py:1', found)

    def test_each_wait_of_the_tree_has_a_reason(self):
        for wait in {**waits.PERIODIC, **waits.SINGLE}.values():
            self.assertTrue(wait.names and wait.reason)


if __name__ == '__main__':
    unittest.main()
