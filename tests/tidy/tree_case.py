"""Trees that a test makes up, and what the tidy test finds in them."""

import contextlib
import pathlib
import tempfile
import unittest

import exceptions
import tidy


@contextlib.contextmanager
def tree_of(files):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        yield folder


def findings(files, allowed=exceptions.OF_NONE):
    with tree_of(files) as folder:
        return tidy.findings(folder, allowed)


class TreeCase(unittest.TestCase):
    def assert_clean(self, files):
        self.assertEqual(findings(files), [])

    def assert_found(self, files, where, what):
        found = findings(files)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(where + ': '), found)
        self.assertIn(what, found[0])
