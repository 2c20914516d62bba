// Random numbers of the accelerator's devices. An operator that is queued draws
// its seed from its device's generator as it is given, so that what it makes
// depends on the order of calls, not of streams.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <optional>

namespace terrace {

const at::Generator& AcceleratorGenerator(c10::DeviceIndex device);
at::Generator NewAcceleratorGenerator(c10::DeviceIndex device);
// One of the CPU's, for one operator; `given` or the device's own is drawn
// from.
at::Generator DrawCpuGenerator(const std::optional<at::Generator>& given,
                               c10::DeviceIndex device);

}  // namespace terrace
