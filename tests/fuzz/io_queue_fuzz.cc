// libFuzzer's way in; io_queue_fuzz_test.cc takes the same without libFuzzer.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/io_queue_script.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const terrace::ScriptResult result =
      terrace::RunIoQueueScript(absl::MakeConstSpan(data, size));
  if (!result.problem.empty()) {
    std::fprintf(stderr, "%s\n", result.problem.c_str());
    std::abort();
  }
  return 0;
}
