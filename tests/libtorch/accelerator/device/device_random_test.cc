// Random operations on four streams over tensors that live below, against a
// plain map of values. The device reports each missing wait, whether or not the
// values show it.
#include <cstdlib>
#include <random>

#include "tests/libtorch/accelerator/device/device_hook_fixture.h"

namespace terrace {
namespace {

class DeviceRandomTest : public DeviceHookTest {
 protected:
  static constexpr size_t kTensors = 16;
  static constexpr size_t kStreams = 4;
  static constexpr double kMost = 1 << 20;  // all values are exact below

  // All elements of a tensor have its value. The program orders its streams
  // itself, as any does: `stream` used the tensor last.
  struct Slot {
    at::Tensor tensor;
    double value = 0;
    size_t stream = 0;
  };

  void Walk(uint64_t seed, int operations) {
    random_.seed(seed);
    streams().SetDelays(seed, /*longest=*/9);
    streams_.clear();
    now_ = 0;
    const c10::impl::VirtualGuardImpl guard(kDevice.type());
    for (size_t i = 0; i < kStreams; ++i) {
      streams_.push_back(i == 0 ? kHome : guard.getNewStream(kDevice, 0));
    }
    slots_.resize(kTensors);
    for (Slot& each : slots_) Renew(each);
    for (int i = 0; i < operations && !HasFailure(); ++i) One();
    now_ = 0;  // which is the home stream
    for (Slot& each : slots_) Check(each);
    EXPECT_TRUE(hook().error().ok()) << hook().error();
    const TierStats hbm = HbmStats();
    EXPECT_LE(hbm.peak_bytes, hbm.budget_bytes);
    slots_.clear();
  }

 private:
  int Draw(int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random_);
  }
  Slot& Any() { return slots_[static_cast<size_t>(Draw(kTensors))]; }

  // The stream that the next operation is on may use these from here on.
  void Use(std::initializer_list<Slot*> used) {
    for (Slot* const each : used) {
      if (each->stream != now_) {
        Order(streams_[each->stream], streams_[now_]);
      }
      each->stream = now_;
    }
  }
  void Renew(Slot& slot) {
    Use({&slot});
    slot.value = Draw(50);
    slot.tensor.reset();
    slot.tensor = at::full({Draw(4) == 0 ? 40 : kNumbers - Draw(300)},
                           slot.value, OnDevice());
    Managed("t" + std::to_string(++made_), slot.tensor);
  }
  void Check(Slot& slot) {
    Use({&slot});
    const at::Tensor read = slot.tensor.cpu();
    EXPECT_TRUE(at::equal(read, at::full_like(read, slot.value)))
        << "t" << made_ << " has " << read[0].item<float>() << ", not "
        << slot.value;
  }
  void AddInHalves(Slot& slot) {
    Use({&slot});
    const int64_t half = slot.tensor.numel() / 2;
    slot.tensor.narrow(0, 0, half).add_(1);
    slot.tensor.narrow(0, half, slot.tensor.numel() - half).add_(1);
    slot.value += 1;
  }
  void AddToAll() {
    std::vector<at::Tensor> tensors;
    for (Slot& each : slots_) {
      if (Draw(2) == 0) continue;
      Use({&each});
      tensors.push_back(each.tensor);
      each.value += 3;
    }
    if (!tensors.empty()) at::_foreach_add_(tensors, 3);
  }
  void FillByLease(Slot& slot) {
    Use({&slot});
    absl::StatusOr<Lease> lease =
        hook().MakeLease(slot.tensor, Hook::Access::kWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    at::for_blob(lease->data().data(), {slot.tensor.numel()})
        .options(OnDevice())
        .target_device(kDevice)
        .make_tensor()
        .fill_(7);
    slot.value = 7;
  }
  // From one to the other by a tensor that is ordinary, and ends at once.
  void AddDoubled(Slot& to, Slot& from) {
    Use({&to, &from});
    to.tensor.add_((from.tensor[0] * 2).to(at::kFloat));
    to.value += 2 * from.value;
  }

  void One() {
    now_ = static_cast<size_t>(Draw(kStreams));
    const c10::StreamGuard guard(streams_[now_]);
    Slot& slot = Any();
    if (std::abs(slot.value) > kMost) return Renew(slot);
    switch (Draw(20)) {
      case 0:
        return Check(slot);
      case 1:
        return Renew(slot);
      case 2:
        return AddInHalves(slot);
      case 3:
        return AddToAll();
      case 4:
        return FillByLease(slot);
      case 5:
        hook().EvictAll();
        return;
      case 6:
        hook().Prefetch({slot.tensor, Any().tensor});
        return;
      case 7:
      case 8:
      case 9: {
        Slot& from = Any();
        if (&from == &slot || std::abs(from.value) > kMost) return;
        return AddDoubled(slot, from);
      }
      case 10: {
        Use({&slot});
        slot.tensor.fill_(2);
        slot.value = 2;
        return;
      }
      default: {
        Use({&slot});
        slot.tensor.add_(1);
        slot.value += 1;
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<c10::Stream> streams_;
  std::vector<Slot> slots_;
  size_t now_ = 0;
  int made_ = 0;
};

// .ci/long has 10^5.
TEST_F(DeviceRandomTest, ValuesAreThoseOfTheMapAndNoWaitIsMissing) {
  constexpr int kOperations = 5'000;  // of a seed
  const char* const asked = std::getenv("TERRACE_OPERATIONS");
  const int operations = asked == nullptr ? 2 * kOperations : std::atoi(asked);
  for (int seed = 1; seed <= operations / kOperations; ++seed) {
    SCOPED_TRACE(seed);
    Make(/*on_device=*/6, /*in_memory=*/7);
    Walk(static_cast<uint64_t>(seed), kOperations);
    WaitForAll();
    EXPECT_THAT(TakeReports(), testing::IsEmpty());
    End();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace terrace
