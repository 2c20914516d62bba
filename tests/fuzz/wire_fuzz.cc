// libFuzzer's way in, to the target that the build names; wire_fuzz_test.cc
// takes all of them without libFuzzer.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/wire_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const terrace::WireTarget& target : terrace::WireTargets()) {
    if (std::strcmp(target.name, TERRACE_FUZZ_TARGET) != 0) continue;
    const terrace::WireResult result = target.run({data, size});
    if (!result.problem.empty()) {
      std::fprintf(stderr, "%s\n", result.problem.c_str());
      std::abort();
    }
  }
  return 0;
}
