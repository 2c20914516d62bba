"""The shape of the tree: layers, doors, circles, private members, sizes, and
that everything is built.

  tidy.py --root TREE                      all that sources say by themselves
  tidy.py --root TREE --build BUILD ...    also: every source is compiled,
                                           every test is registered

Prints one line for each finding, FILE:LINE: what is wrong, and exits with 1
if there is any. Nothing is exempt but what this file names.
"""

import argparse
import pathlib
import sys

import built
import circles
import classes
import documents
import exceptions
import includes
import names
import proportions
import python_layers
import python_members
import python_modules
import shape
import waits
from tree import Tree


def findings(root, allowed):
    """Everything that can be said from the sources alone, but what is
    `allowed` (exceptions.py)."""
    tree = Tree(root)
    found = []
    for file in tree.files:
        found += shape.check_words(file)
        found += shape.check_length(file)
        found += documents.check(tree, file)
        if file.is_cpp:
            found += includes.check(tree, file)
            found += shape.check_cpp(file)
            found += classes.check(file, allowed.classes)
        elif file.is_of_package:
            found += shape.check_python(file)
            found += classes.check(file, allowed.classes)
    found += classes.check_exceptions(tree, allowed.classes)
    found += circles.check(tree, allowed.circles)
    found += shape.check_folders(tree)
    found += names.check(tree)
    package = python_modules.Package(tree)
    found += python_layers.check(package)
    found += python_members.check(package)
    found += shape.check_readme(tree)
    found += documents.check_pictures(tree)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root', type=pathlib.Path, required=True)
    parser.add_argument('--build', type=pathlib.Path)
    parser.add_argument('--ctest', default='ctest')
    parser.add_argument('--without', action='append', default=[],
                        help='a feature this build leaves out: torch')
    arguments = parser.parse_args()

    tree = Tree(arguments.root)
    found = findings(arguments.root, exceptions.OF_THIS_TREE)
    found += proportions.check(tree)
    found += waits.check(tree, {**waits.PERIODIC, **waits.SINGLE})
    if arguments.build:
        found += built.check(tree, arguments.build, arguments.ctest,
                             arguments.without)
    for line in sorted(found):
        print(line)
    runtime, library = proportions.counted(tree)
    print(f'{library} statements in the library, {runtime} of the runtime')
    print(f'{len(found)} findings')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
