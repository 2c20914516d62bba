// A missing wait of each kind is reported though no delay shows it; right
// programs of random operations on four streams are not, and have the CPU's
// values.
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <optional>
#include <random>

#include "tests/libtorch/accelerator/device/accelerator_fixture.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AcceleratorOrder : public AcceleratorTest {
 protected:
  AcceleratorOrder() { streams().SetDelays(/*seed=*/1, /*longest=*/0); }

  static void RecordUse(const at::Tensor& tensor, const c10::Stream& stream) {
    c10::getDeviceAllocator(kDevice.type())
        ->recordStream(tensor.storage().data_ptr(), stream);
  }
};

TEST_F(AcceleratorOrder, AMissingEventBetweenStreams) {
  const at::Tensor own = at::ones({100}, OnDevice());
  const at::Tensor result = at::empty({100}, OnDevice());
  Order(kHome, kSide);
  own.mul_(2);
  Pass();
  {
    const c10::StreamGuard guard(kSide);
    at::add_out(const_cast<at::Tensor&>(result), own, own);
  }
  Pass();
  EXPECT_THAT(
      TakeReports(),
      ElementsAre(AllOf(
          HasSubstr("aten::add on testdev:0 stream 1 reads 400 bytes"),
          HasSubstr("after aten::mul on testdev:0 stream 0, which writes"))));
}

TEST_F(AcceleratorOrder, AFreeWithoutTheStreamRecorded) {
  for (const bool is_recorded : {false, true}) {
    at::Tensor own = at::ones({100}, OnDevice());
    Order(kHome, kSide);
    at::Tensor sum;
    {
      const c10::StreamGuard guard(kSide);
      sum = own.sum();
    }
    if (is_recorded) RecordUse(own, kSide);
    const void* const address = own.const_data_ptr();
    own.reset();
    Pass();
    const at::Tensor next = at::ones({100}, OnDevice());
    EXPECT_EQ(next.const_data_ptr(), address);
    if (is_recorded) {
      EXPECT_THAT(TakeReports(), IsEmpty());
    } else {
      EXPECT_THAT(TakeReports(),
                  ElementsAre(HasSubstr("freed without that stream recorded")));
    }
    WaitForAll();
  }
}

TEST_F(AcceleratorOrder, AReadOfTheCpuBeforeItHasWaited) {
  const at::Tensor own = at::ones({100}, OnDevice());
  const at::Tensor cpu = at::zeros({100}).pin_memory();
  cpu.copy_(own, /*non_blocking=*/true);
  Pass();
  EXPECT_EQ(cpu.sum().item<float>(), 100);
  EXPECT_THAT(
      TakeReports(),
      ElementsAre(AllOf(HasSubstr("the CPU uses"),
                        HasSubstr("has not waited for testdev:0 stream 0"))));
  cpu.copy_(own, /*non_blocking=*/true);
  WaitForAll();
  EXPECT_EQ(cpu.sum().item<float>(), 100);
}

TEST_F(AcceleratorOrder, AWriteOfTheCpuToWhatACopyReads) {
  const at::Tensor cpu = at::zeros({100}).pin_memory();
  const at::Tensor own = cpu.to(kDevice, /*non_blocking=*/true);
  Pass();
  cpu.fill_(1);
  EXPECT_THAT(TakeReports(), ElementsAre(HasSubstr("the CPU writes")));
}

TEST_F(AcceleratorOrder, ACopyThatDoesNotWaitForTheAllocation) {
  const at::Tensor cpu = at::zeros({100}).pin_memory();
  for (const bool is_right : {false, true}) {
    at::ones({100}, OnDevice());  // the home stream has had work
    const at::Tensor own = at::empty({100}, OnDevice());
    if (is_right) Order(kHome, kSide);
    {
      const c10::StreamGuard guard(kSide);
      own.copy_(cpu, /*non_blocking=*/true);
    }
    Order(kSide, kHome);
    Pass();
    if (is_right) {
      EXPECT_THAT(TakeReports(), IsEmpty());
    } else {
      EXPECT_THAT(TakeReports(), ElementsAre(HasSubstr("a copy on")));
    }
  }
}

TEST_F(AcceleratorOrder, RegisteredMemoryOfTheCpusIsAsked) {
  std::vector<float> slice(100);
  const auto begin = reinterpret_cast<uintptr_t>(slice.data());
  const AddressRange range{begin, begin + 400};
  TheAccelerator().pinned().Register(range);
  const at::Tensor cpu = at::from_blob(slice.data(), {100});
  EXPECT_TRUE(cpu.is_pinned());
  cpu.copy_(at::ones({100}, OnDevice()), /*non_blocking=*/true);
  Pass();
  EXPECT_FALSE(streams().NoteCpuUse({range, /*is_write=*/false}, "a test"));
  EXPECT_THAT(TakeReports(), ElementsAre(HasSubstr("a test reads 400 bytes")));
  WaitForAll();
  EXPECT_TRUE(streams().NoteCpuUse({range, /*is_write=*/true}, "a test"));
  EXPECT_TRUE(TheAccelerator().pinned().Unregister(begin));
}

// Matrices that operations of four streams make of each other, beside the
// CPU's.
class RandomTensors {
 public:
  static constexpr size_t kStreams = 4;
  static constexpr size_t kTensors = 20;

  explicit RandomTensors(uint32_t seed) : random_(seed) {
    for (size_t at = 0; at < kTensors; ++at) Renew(at);
  }

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      const size_t target = random_() % kTensors;
      if (random_() % 6 == 0) {
        Renew(target);
      } else {
        Change(target);
      }
    }
  }
  // Where they differ.
  std::optional<size_t> FindDifference() {
    for (size_t at = 0; at < kTensors; ++at) {
      Kept& kept = tensors_[at];
      const c10::StreamGuard guard(StreamAt(0));
      Await(kept, 0);
      if (!kept.own.cpu().equal(kept.cpu)) return at;
    }
    return std::nullopt;
  }

 private:
  struct Kept {
    at::Tensor own;
    at::Tensor cpu;
    std::array<std::optional<c10::Event>, kStreams> uses;
  };

  static c10::Stream StreamAt(size_t stream) {
    return c10::Stream(c10::Stream::UNSAFE, AcceleratorDevice(0),
                       static_cast<c10::StreamId>(stream));
  }
  static void Await(Kept& kept, size_t stream) {
    for (std::optional<c10::Event>& use : kept.uses) {
      if (use) use->block(StreamAt(stream));
    }
  }
  static void NoteUse(Kept& kept, size_t stream) {
    c10::getDeviceAllocator(c10::DeviceType::PrivateUse1)
        ->recordStream(kept.own.storage().data_ptr(), StreamAt(stream));
    kept.uses[stream].emplace(c10::DeviceType::PrivateUse1);
    kept.uses[stream]->record(StreamAt(stream));
  }
  void Renew(size_t at) {
    const size_t stream = random_() % kStreams;
    const c10::StreamGuard guard(StreamAt(stream));
    const double value = static_cast<double>(random_() % 100) / 50 - 1;
    tensors_[at] = Kept{};
    Kept& kept = tensors_[at];
    kept.own = at::full({8, 8}, value, at::device(AcceleratorDevice(0)));
    kept.cpu = at::full({8, 8}, value);
    NoteUse(kept, stream);
  }
  void Change(size_t to) {
    const size_t stream = random_() % kStreams;
    Kept& target = tensors_[to];
    Kept& first = tensors_[random_() % kTensors];
    Kept& second = tensors_[random_() % kTensors];
    const c10::StreamGuard guard(StreamAt(stream));
    for (Kept* const kept : {&target, &first, &second}) Await(*kept, stream);
    const uint32_t kind = random_() % 7;
    Apply(kind, target.own, first.own, second.own);
    Apply(kind, target.cpu, first.cpu, second.cpu);
    for (Kept* const kept : {&target, &first, &second}) NoteUse(*kept, stream);
  }
  static void Apply(uint32_t kind, const at::Tensor& target,
                    const at::Tensor& first, const at::Tensor& second) {
    switch (kind) {
      case 0:
        target.copy_(at::tanh(first.mm(second)));
        break;
      case 1:
        target.mul_(0.5).add_(first, 0.25);
        break;
      case 2:
        target.copy_(at::softmax(first + second.t(), 1));
        break;
      case 3:
        target.slice(0, 2, 5).copy_(first.slice(0, 1, 4).flip(1));
        break;
      case 4:
        target.copy_(at::cat({first.slice(1, 0, 4), second.slice(1, 4, 8)}, 1));
        break;
      case 5:
        target.copy_(at::where(first > second, first, -second).clamp(-1, 1));
        break;
      default:
        target.select(1, 3).copy_(at::layer_norm(first, {8}).sum(1).sin_());
        break;
    }
  }

  std::mt19937 random_;
  std::array<Kept, kTensors> tensors_;
};

TEST_F(AcceleratorOrder, RightProgramsAreNotReportedAndHaveTheCpusValues) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    streams().SetDelays(seed, /*longest=*/20);
    RandomTensors tensors(seed);
    tensors.Run(/*steps=*/5000);
    EXPECT_EQ(tensors.FindDifference(), std::nullopt);
    EXPECT_EQ(streams().report_count(), 0);
  }
}

}  // namespace
}  // namespace terrace
