// LibTorch's allocator asks for memory back, and gets it: on a real device.
#include <atomic>
#include <functional>
#include <thread>

#include "tests/libtorch/accelerator/device/cuda_fixture.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

// 24 layers of 16 MiB; of them, and of what else there is, half.
constexpr int kLayers = 24;
constexpr int64_t kWidth = 2048;
constexpr int64_t kLimitBytes = 192 << 20;

class ReliefTest : public CudaTest {
 protected:
  // `made` hears of each weight, `stepped` of each update.
  using Made = std::function<void(int, const at::Tensor&)>;
  static std::vector<at::Tensor> Train(const Made& made,
                                       const std::function<void()>& stepped) {
    at::manual_seed(7);
    std::vector<at::Tensor> weights;
    for (int i = 0; i < kLayers; ++i) {
      weights.push_back(at::randn({kWidth, kWidth}, at::kFloat)
                            .mul_(0.02)
                            .to(OnDevice().device()));
      made(i, weights.back());
    }
    std::vector<at::Tensor> left;
    for (int step = 0; step < 3; ++step) {
      left.push_back(Step(weights, stepped));
    }
    for (const at::Tensor& weight : weights) left.push_back(weight.cpu());
    return left;
  }

 private:
  // A layer's gradient is there alone, and forward is computed again for it.
  static at::Tensor Step(const std::vector<at::Tensor>& weights,
                         const std::function<void()>& stepped) {
    std::vector<at::Tensor> inputs = {
        at::randn({64, kWidth}, at::kFloat).to(OnDevice().device())};
    for (const at::Tensor& weight : weights) {
      inputs.push_back(inputs.back().mm(weight).tanh());
    }
    const at::Tensor loss = inputs.back().square().mean();
    at::Tensor gradient = inputs.back() * (2.0 / (64 * kWidth));
    for (size_t i = weights.size(); i-- > 0;) {
      gradient = gradient * (1 - inputs[i + 1].square());
      const at::Tensor input_gradient = gradient.mm(weights[i].t());
      weights[i].add_(inputs[i].t().mm(gradient), -0.5);
      gradient = input_gradient;
      stepped();
    }
    return loss.cpu();
  }
};

void ExpectSameBits(const std::vector<at::Tensor>& a,
                    const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST_F(ReliefTest, TrainsAModelThatTheLimitCannotHold) {
  const std::vector<at::Tensor> expected =
      Train([](int, const at::Tensor&) {}, [] {});
  DeviceHook& device = Open(kLimitBytes);
  const auto commit = [&] { ASSERT_TRUE(device.WriteBack().ok()); };
  const std::vector<at::Tensor> left = Train(
      [&](int i, const at::Tensor& weight) {
        Manage(std::to_string(i), weight);
        commit();
      },
      commit);
  ExpectSameBits(left, expected);
  const DeviceWindowStats stats = device.stats();
  EXPECT_TRUE(stats.first_error.ok()) << stats.first_error;
  EXPECT_LT(stats.peak_bytes, kLayers * kWidth * kWidth * 4);
  EXPECT_GT(stats.relief_drops, 0);
}

TEST_F(ReliefTest, IsAskedFromASecondThread) {
  const std::vector<at::Tensor> expected =
      Train([](int, const at::Tensor&) {}, [] {});
  DeviceHook& device = Open(kLimitBytes + (64 << 20));
  std::atomic<bool> is_over = false;
  std::atomic<int64_t> allocations = 0;
  std::thread other([&] {
    while (!is_over) {
      try {
        at::empty({4 << 20}, OnDevice());
        ++allocations;
      } catch (const c10::OutOfMemoryError&) {  // the others' turn
      }
      c10::cuda::CUDACachingAllocator::emptyCache();
    }
  });
  const auto commit = [&] { ASSERT_TRUE(device.WriteBack().ok()); };
  const std::vector<at::Tensor> left = Train(
      [&](int i, const at::Tensor& weight) {
        Manage(std::to_string(i), weight);
        commit();
      },
      commit);
  is_over = true;
  other.join();
  ExpectSameBits(left, expected);
  EXPECT_GT(allocations, 0);
}

using CudaMemoryTest = CudaTest;

TEST_F(CudaMemoryTest, ALimitHoldsToTheByte) {
  for (int64_t limit = 420 << 20; limit > 1000; limit -= limit / 7 + 1) {
    const auto memory = OpenCudaMemory(kDevice, limit);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ((*memory)->usage().limit_bytes, limit);
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const auto total = static_cast<int64_t>(total_bytes);
  const auto all = OpenCudaMemory(kDevice, total);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ((*all)->usage().limit_bytes, total);
  EXPECT_TRUE(
      absl::IsInvalidArgument(OpenCudaMemory(kDevice, total + 1).status()));
  c10::cuda::CUDACachingAllocator::setMemoryFraction(1, kDevice);
}

// Three tensors that are clean, and memory that has no room for a fourth; but
// for the pages of 20 MiB of which an expandable segment consists, and of which
// the last has room that the allocator does not count.
class FullDeviceTest : public ReliefTest {
 protected:
  static constexpr int64_t kElements = 16 << 20;

  DeviceHook& Fill() {
    DeviceHook& device = Open(kLimitBytes + (32 << 20));
    for (int i = 0; i < 3; ++i) {
      tensors_.push_back(
          Manage(std::to_string(i), at::full({kElements}, i, OnDevice())));
    }
    EXPECT_TRUE(device.WriteBack().ok());
    return device;
  }

  std::vector<at::Tensor> tensors_;
};

TEST_F(FullDeviceTest, AMissIsRelievedOfWhatIsClean) {
  DeviceHook& device = Fill();
  const at::Tensor other = at::full({kElements}, 9, OnDevice());
  EXPECT_GT(device.stats().relief_drops, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(tensors_[static_cast<size_t>(i)].eq(i).all().item<bool>());
  }
  EXPECT_TRUE(other.eq(9).all().item<bool>());
}

TEST_F(FullDeviceTest, NothingIsDroppedDuringACapture) {
  DeviceHook& device = Fill();
  const c10::cuda::CUDAStream stream =
      c10::cuda::getStreamFromPool(false, kDevice);
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    C10_CUDA_CHECK(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_FALSE(CudaRelief().Relieve());
    EXPECT_EQ(device.EvictAll(), 0);
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    C10_CUDA_CHECK(cudaGraphDestroy(graph));
  }
  EXPECT_TRUE(CudaRelief().Relieve());
}

TEST_F(FullDeviceTest, AfterCloseTheAllocatorIsOnItsOwn) {
  DeviceHook& device = Fill();
  ASSERT_TRUE(device.Close().ok());
  EXPECT_FALSE(CudaRelief().Relieve());
  std::string text;
  try {
    at::empty({kElements}, OnDevice());
  } catch (const c10::OutOfMemoryError& error) {
    text = error.what_without_backtrace();
  }
  EXPECT_THAT(text, HasSubstr("out of memory"));
  EXPECT_TRUE(tensors_[2].eq(2).all().item<bool>());
}

}  // namespace
}  // namespace terrace
