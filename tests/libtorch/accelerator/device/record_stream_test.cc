// What a stream uses keeps its memory, though the storage's bytes are
// exchanged: on a real device, whose streams do race.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>

#include "tests/libtorch/accelerator/device/cuda_fixture.h"

namespace terrace {
namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

constexpr int64_t kElements = 16 << 20;

// As ProcessGroupNCCL does it: on a stream of its own, recorded nowhere, begun
// late and not waited for.
std::optional<CUDAStream> gather_stream;

void GatherLater(const at::Tensor& output, const at::Tensor& input) {
  cudaStream_t const stream = *gather_stream;
  C10_CUDA_CHECK(cudaMemcpyAsync(output.mutable_data_ptr(),
                                 input.const_data_ptr(), input.nbytes(),
                                 cudaMemcpyDeviceToDevice, stream));
}

}  // namespace
}  // namespace terrace

TORCH_LIBRARY_FRAGMENT(_c10d_functional, m) {
  m.def("terrace_test_gather_later(Tensor(a!) output, Tensor input) -> ()",
        &terrace::GatherLater);
}

namespace terrace {
namespace {

// A kernel is loaded at its first use, which waits for all streams: each that
// is to be late is used before the delay.
class RecordStreamTest : public CudaTest {};

TEST_F(RecordStreamTest, UseOnASideStreamSurvivesAnEviction) {
  DeviceHook& device = Open(0);
  const at::Tensor tensor =
      Manage("used", at::full({kElements}, 3, OnDevice()));
  ASSERT_TRUE(device.WriteBack().ok());
  at::ones({kElements}, OnDevice()).mul(2);  // loads the kernel
  const CUDAStream side = c10::cuda::getStreamFromPool(false, kDevice);
  Order(c10::cuda::getCurrentCUDAStream(kDevice), side);
  at::Tensor result;
  {
    const CUDAStreamGuard guard(side);
    Delay();
    result = tensor.mul(2);
  }
  // Clean, so that nothing but the record keeps its memory.
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_EQ(device.stats().clean_drops, 1);
  const std::vector<at::Tensor> others = Overwrite(kElements);
  ASSERT_FALSE(side.query()) << "the device was done before it could be seen";
  side.synchronize();
  EXPECT_TRUE(result.eq(6).all().item<bool>());
  EXPECT_TRUE(tensor.eq(3).all().item<bool>());
}

TEST_F(RecordStreamTest, ASideStreamsWriteIsCopiedDown) {
  DeviceHook& device = Open(0);
  const at::Tensor tensor =
      Manage("written", at::full({kElements}, 3, OnDevice()));
  at::ones({kElements}, OnDevice()).add_(1);  // loads the kernel
  const CUDAStream side = c10::cuda::getStreamFromPool(false, kDevice);
  Order(c10::cuda::getCurrentCUDAStream(kDevice), side);
  {
    const CUDAStreamGuard guard(side);
    Delay();
    tensor.add_(1);
  }
  ASSERT_FALSE(side.query()) << "the device was done before it could be seen";
  EXPECT_EQ(device.EvictAll(), 1);
  EXPECT_TRUE(tensor.eq(4).all().item<bool>());
}

TEST_F(RecordStreamTest, ATensorInAnAsynchronousGatherIsNotFreedEarly) {
  DeviceHook& device = Open(0);
  const at::Tensor input =
      Manage("input", at::full({kElements}, 3, OnDevice()));
  const at::Tensor output =
      Manage("output", at::full({kElements}, 0, OnDevice()));
  ASSERT_TRUE(device.WriteBack().ok());
  gather_stream = c10::cuda::getStreamFromPool(false, kDevice);
  Order(c10::cuda::getCurrentCUDAStream(kDevice), *gather_stream);
  {
    const CUDAStreamGuard guard(*gather_stream);
    Delay();
  }
  static const auto operation =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("_c10d_functional::terrace_test_gather_later", "")
          .typed<void(const at::Tensor&, const at::Tensor&)>();
  operation.call(output, input);
  ASSERT_FALSE(gather_stream->query())
      << "the device was done before it could be seen";
  EXPECT_EQ(device.EvictAll(), 0);
  device.BeginStep();
  EXPECT_EQ(device.EvictAll(), 2);
  EXPECT_TRUE(gather_stream->query());
  const std::vector<at::Tensor> others = Overwrite(kElements);
  EXPECT_TRUE(output.eq(3).all().item<bool>());
  EXPECT_TRUE(input.eq(3).all().item<bool>());
}

}  // namespace
}  // namespace terrace
