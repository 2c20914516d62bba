"""The library and what links it know nothing of CUDA; its module knows, and
needs neither a driver nor a runtime to be loaded.

  symbols_test.py --library FILE --program FILE ... [--module FILE]
"""

import argparse
import re
import subprocess
import sys
import unittest

# cudaMalloc, cuMemAlloc, __cudaRegisterFatBinary: C names, not mangled ones.
OF_CUDA = re.compile(r'_*(cuda|cu|nccl|nvml)[A-Z]\w*')
LIBRARIES = re.compile(r'lib(cuda|cudart|nvidia|nccl|nvml|cupti)')


def symbols(path, *options):
    lines = subprocess.run(['nm', *options, path], check=True,
                           stdout=subprocess.PIPE, text=True).stdout
    return {line.split()[-1] for line in lines.splitlines()
            if line and not line.endswith(':')}


def needed(path):
    text = subprocess.run(['readelf', '-d', path], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    return re.findall(r'\(NEEDED\).*\[(.*)\]', text)


class Symbols(unittest.TestCase):
    library = None
    programs = []
    module = None

    def test_the_library_has_no_symbol_of_cuda(self):
        found = symbols(self.library)
        self.assertTrue(any('OpenCuda' in name for name in found))
        self.assertEqual([name for name in found if OF_CUDA.fullmatch(name)],
                         [])

    def test_no_program_needs_cuda(self):
        for program in self.programs:
            libraries = needed(program)
            self.assertTrue(any(name.startswith('libc.so')
                                for name in libraries), program)
            self.assertEqual([name for name in libraries
                              if LIBRARIES.match(name)], [], program)

    def test_the_module_needs_no_driver_and_shows_one_entry(self):
        if not self.module:
            self.skipTest('built without CUDA')
        self.assertEqual([name for name in needed(self.module)
                          if LIBRARIES.match(name)], [])
        shown = symbols(self.module, '-D', '--defined-only')
        self.assertIn('terrace_cuda_calls', shown)
        self.assertEqual([name for name in shown if OF_CUDA.fullmatch(name)],
                         [])
        # The runtime is in it, so that the pattern finds what it should.
        self.assertIn('cudaMalloc', symbols(self.module))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--library', required=True)
    parser.add_argument('--program', action='append', default=[])
    parser.add_argument('--module')
    arguments = parser.parse_args()
    Symbols.library = arguments.library
    Symbols.programs = arguments.program
    Symbols.module = arguments.module
    unittest.main(argv=sys.argv[:1])
