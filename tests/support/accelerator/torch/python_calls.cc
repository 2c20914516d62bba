// What tests in Python ask of the accelerator, as torch.ops.testdev.
#include <torch/library.h>

#include <mutex>
#include <string>
#include <vector>

#include "tests/support/accelerator/torch/accelerator.h"
#include "tests/support/accelerator/torch/accelerator_generator.h"

namespace terrace {
namespace {

AddressRange RangeAt(int64_t address, int64_t bytes) {
  const auto begin = static_cast<uintptr_t>(address);
  return {begin, begin + static_cast<uintptr_t>(bytes)};
}

at::Generator GeneratorOf(int64_t device) {
  return AcceleratorGenerator(static_cast<c10::DeviceIndex>(device));
}

}  // namespace

TORCH_LIBRARY(testdev, library) {
  library.def("take_reports() -> str[]",
              [] { return TheAccelerator().TakeReports(); });
  // In later tasks, from none to `longest`.
  library.def("set_delays(int seed, int longest) -> ()", [](int64_t seed,
                                                            int64_t longest) {
    TheAccelerator().streams().SetDelays(static_cast<uint64_t>(seed), longest);
  });
  // The call of that number from here on fails; 0: none.
  library.def("fail_call(int number) -> ()", [](int64_t number) {
    TheAccelerator().streams().FailCall(number);
  });
  library.def("calls() -> int",
              [] { return TheAccelerator().streams().calls(); });
  library.def("set_limit(int device, int bytes) -> ()",
              [](int64_t device, int64_t bytes) {
                TheAccelerator()
                    .memory(static_cast<c10::DeviceIndex>(device))
                    .SetLimit(static_cast<size_t>(bytes));
              });
  library.def("limit(int device) -> int", [](int64_t device) {
    return static_cast<int64_t>(
        TheAccelerator()
            .memory(static_cast<c10::DeviceIndex>(device))
            .limit_bytes());
  });
  library.def("register_pinned(int address, int bytes) -> ()",
              [](int64_t address, int64_t bytes) {
                TheAccelerator().pinned().Register(RangeAt(address, bytes));
              });
  library.def("unregister_pinned(int address) -> bool", [](int64_t address) {
    return TheAccelerator().pinned().Unregister(
        static_cast<uintptr_t>(address));
  });
  // Before the CPU uses memory of its own that streams copy.
  library.def("note_cpu_use(int address, int bytes, bool is_write) -> bool",
              [](int64_t address, int64_t bytes, bool is_write) {
                return TheAccelerator().streams().NoteCpuUse(
                    {RangeAt(address, bytes), is_write}, "the CPU");
              });
  library.def("seed(int device, int seed) -> ()",
              [](int64_t device, int64_t seed) {
                at::Generator own = GeneratorOf(device);
                const std::lock_guard lock(own.mutex());
                own.set_current_seed(static_cast<uint64_t>(seed));
              });
  library.def("rng_state(int device) -> Tensor",
              [](int64_t device) { return GeneratorOf(device).get_state(); });
  library.def("set_rng_state(int device, Tensor state) -> ()",
              [](int64_t device, const at::Tensor& state) {
                GeneratorOf(device).set_state(state);
              });
  library.def("stop() -> ()", [] { TheAccelerator().streams().Stop(); });
}

}  // namespace terrace
