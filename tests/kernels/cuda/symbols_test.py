"""The library and what links it know nothing of CUDA; its module knows, and
needs neither a driver nor a runtime to be loaded. The module for LibTorch's CUDA
has what it needs in the libraries that LibTorch has loaded by then, and shares
their runtime.

  symbols_test.py --library FILE --program FILE ... [--module FILE]
    [--torch-module FILE --library-of-torch FILE ...]
"""

import argparse
import pathlib
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


def plain(names):
    """Without the versions, as in cudaMalloc@libcudart.so.13."""
    return {name.partition('@')[0] for name in names}


def needed(path):
    text = subprocess.run(['readelf', '-d', path], check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    return re.findall(r'\(NEEDED\).*\[(.*)\]', text)


class Symbols(unittest.TestCase):
    library = None
    programs = []
    module = None
    torch_module = None
    torch_libraries = []

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

    def test_the_module_of_torch_finds_all_in_what_torch_has_loaded(self):
        if not self.torch_module:
            self.skipTest('LibTorch is without CUDA, or was built without')
        libraries = needed(self.torch_module)
        self.assertEqual(
            sorted(name for name in libraries
                   if name.startswith(('libc10', 'libtorch', 'libcu'))),
            sorted(pathlib.Path(path).name for path in self.torch_libraries))
        offered = set()
        for path in self.torch_libraries:
            offered |= plain(symbols(path, '-D', '--defined-only'))
        asked = plain(symbols(self.torch_module, '-D', '--undefined-only'))
        theirs = {name for name in asked
                  if OF_CUDA.fullmatch(name) or 'c10' in name}
        self.assertIn('cudaStreamIsCapturing', theirs)
        self.assertTrue(any('FreeCudaMemoryCallbacksRegistry' in name
                            for name in theirs))
        self.assertEqual(theirs - offered, set())

    def test_the_module_of_torch_has_no_runtime_of_its_own(self):
        if not self.torch_module:
            self.skipTest('LibTorch is without CUDA, or was built without')
        self.assertNotIn('cudaMalloc', plain(
            symbols(self.torch_module, '--defined-only')))
        shown = symbols(self.torch_module, '-D', '--defined-only')
        self.assertIn('terrace_torch_cuda_calls', shown)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--library', required=True)
    parser.add_argument('--program', action='append', default=[])
    parser.add_argument('--module')
    parser.add_argument('--torch-module')
    parser.add_argument('--library-of-torch', action='append', default=[])
    arguments = parser.parse_args()
    Symbols.library = arguments.library
    Symbols.programs = arguments.program
    Symbols.module = arguments.module
    Symbols.torch_module = arguments.torch_module
    Symbols.torch_libraries = arguments.library_of_torch
    unittest.main(argv=sys.argv[:1])
