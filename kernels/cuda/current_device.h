// Makes a device of CUDA's current in the calling thread for one call; the one
// that was so before is so again afterwards. For CUDA's modules alone.
#pragma once

#include <cuda_runtime_api.h>

namespace terrace {

class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    code_ = cudaGetDevice(&before_);
    if (code_ != cudaSuccess || before_ == device) return;
    code_ = cudaSetDevice(device);
    changed_ = code_ == cudaSuccess;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  cudaError_t code() const { return code_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t code_ = cudaSuccess;
};

// The call's code, or why the device cannot be made current.
template <typename Call>
int OnDevice(int device, const Call& call) {
  const CurrentDevice current(device);
  return current.code() != cudaSuccess ? current.code() : call();
}

}  // namespace terrace
