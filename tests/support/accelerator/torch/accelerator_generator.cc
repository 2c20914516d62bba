#include "tests/support/accelerator/torch/accelerator_generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <mutex>

#include "tests/support/accelerator/torch/accelerator.h"

namespace terrace {
namespace {

class GeneratorImpl final : public at::CPUGeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device) {
    device_ = AcceleratorDevice(device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }

 private:
  at::CPUGeneratorImpl* clone_impl() const override {
    auto& own = const_cast<GeneratorImpl&>(*this);  // its getters are not const
    auto* const copy = new GeneratorImpl(device_.index());
    copy->set_engine(own.engine());
    copy->set_next_float_normal_sample(own.next_float_normal_sample());
    copy->set_next_double_normal_sample(own.next_double_normal_sample());
    return copy;
  }
};

}  // namespace

at::Generator NewAcceleratorGenerator(c10::DeviceIndex device) {
  return at::make_generator<GeneratorImpl>(
      device < 0 ? CurrentAcceleratorDevice() : device);
}

const at::Generator& AcceleratorGenerator(c10::DeviceIndex device) {
  static const auto* const generators = [] {
    auto* const made = new std::array<at::Generator, Accelerator::kDevices>;
    for (c10::DeviceIndex at = 0; at < Accelerator::kDevices; ++at) {
      (*made)[static_cast<size_t>(at)] = NewAcceleratorGenerator(at);
    }
    return made;
  }();
  return generators->at(
      static_cast<size_t>(device < 0 ? CurrentAcceleratorDevice() : device));
}

at::Generator DrawCpuGenerator(const std::optional<at::Generator>& given,
                               c10::DeviceIndex device) {
  at::Generator from =
      given && given->defined() ? *given : AcceleratorGenerator(device);
  TORCH_CHECK(from.device().is_privateuseone(),
              "testdev: a generator of its own is expected, not of ",
              from.device());
  const std::lock_guard lock(from.mutex());
  return at::detail::createCPUGenerator(from.get<GeneratorImpl>()->random64());
}

}  // namespace terrace
