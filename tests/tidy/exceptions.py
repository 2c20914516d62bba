"""What the rules leave standing for now, each with its rule; a made-up tree has
none."""

import collections

import circles
import classes

Exceptions = collections.namedtuple('Exceptions', 'classes circles')

OF_NONE = Exceptions({}, [])
OF_THIS_TREE = Exceptions(classes.EXCEPTIONS, circles.EXCEPTIONS)
