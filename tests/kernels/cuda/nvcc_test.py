"""The toolkit that this build found compiles kernels: for the GPUs that the
wheels of LibTorch name, with the C++ compiler of the rest, without a warning; and
what comes out links as a module with the toolkit's runtime in it.

  nvcc_test.py --nvcc FILE --compiler FILE --runtime FILE
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import unittest

# What an update of 16-bit parameters takes: their type, the C++ library of
# devices, a launch.
SOURCE = """
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cuda/std/cstdint>

__global__ void Scale(__nv_bfloat16* values, float factor,
                      cuda::std::int64_t count) {
  const cuda::std::int64_t at =
      cuda::std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at < count) {
    values[at] = __float2bfloat16_rn(__bfloat162float(values[at]) * factor);
  }
}

extern "C" int ScaleOnDevice(__nv_bfloat16* values, float factor,
                             cuda::std::int64_t count, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((count + 255) / 256);
  Scale<<<blocks, 256, 0, stream>>>(values, factor, count);
  return cudaGetLastError();
}
"""
GPUS = ['sm_80', 'sm_90', 'sm_100']


class Nvcc(unittest.TestCase):
    nvcc = compiler = runtime = None

    def run_tool(self, *command):
        done = subprocess.run([str(part) for part in command], text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_a_kernel_is_compiled_and_links_as_a_module(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, 'scale.cu')
            source.write_text(SOURCE, encoding='utf-8')
            compiled = source.with_suffix('.o')
            self.run_tool(
                self.nvcc, '-ccbin', self.compiler, '-std=c++20', '-O2',
                '-Xcompiler', '-fPIC,-Wall,-Wextra', '-Werror', 'all-warnings',
                *[f'-gencode=arch={gpu.replace("sm", "compute")},code={gpu}'
                  for gpu in GPUS], '-c', source, '-o', compiled)
            module = source.with_suffix('.so')
            self.run_tool(self.compiler, '-shared', '-Wl,-z,defs', compiled,
                          self.runtime, '-lpthread', '-ldl', '-lrt', '-o',
                          module)
            shown = self.run_tool('nm', '-D', '--defined-only', module)
            self.assertIn(' ScaleOnDevice', shown)
            self.assertIn('.nv_fatbin', self.run_tool('readelf', '-SW', module))
            code = module.read_bytes()
            for gpu in GPUS:
                self.assertIn(gpu.encode(), code)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    for tool in ('nvcc', 'compiler', 'runtime'):
        parser.add_argument(f'--{tool}', required=True)
    for name, value in vars(parser.parse_args()).items():
        setattr(Nvcc, name, value)
    unittest.main(argv=sys.argv[:1])
