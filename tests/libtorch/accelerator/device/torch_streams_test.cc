// The rules of streams (stream_rules.h) on the tests' accelerator: who keeps
// them is never reported, and each that is switched off is.
#include "libtorch/accelerator/torch_streams.h"

#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "libtorch/accelerator/stream_uses.h"
#include "tests/libtorch/accelerator/device/accelerator_fixture.h"

namespace terrace {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr StreamId kHomeStream = 0;
constexpr StreamId kSideStream = 1;
constexpr StreamId kUp = 2;    // copies to the device
constexpr StreamId kDown = 3;  // and from it
constexpr StreamId kUnseenStream = 4;

// A tensor whose bytes come and go, as whoever keeps the rules moves them.
class MovedTensor {
 public:
  static constexpr int64_t kNumbers = 256;

  MovedTensor(TorchStreams& streams, StreamRules rules)
      : streams_(streams), uses_(rules) {}

  void Bring() {
    const at::Tensor block = at::empty({kNumbers}, OnDevice());
    if (written_back_ != nullptr) {
      Expect(streams_.Wait(*std::exchange(written_back_, nullptr)));
    }
    Expect(uses_.BeginCopy(streams_, kHomeStream, kUp));
    {
      const c10::StreamGuard guard(streams_.StreamOf(kUp));
      block.copy_(below_, /*non_blocking=*/true);
    }
    Expect(uses_.Begin(streams_, kHomeStream, *streams_.Record(kUp)));
    own_ = block;
  }
  // Adds the number to all, or only reads them, on the stream.
  void Use(StreamId stream, std::optional<double> added) {
    TorchBlock block(own_.storage().data_ptr());
    Expect(uses_.Use(streams_, block, stream, /*is_capturing=*/false));
    const c10::StreamGuard guard(streams_.StreamOf(stream));
    if (added) {
      own_.add_(*added);
    } else {
      own_.sum();
    }
    is_written_ = is_written_ || added.has_value();
  }
  // By a stream that nobody here knows of.
  void Share() {
    uses_.NoteCollective();
    AcceleratorTest::Order(streams_.StreamOf(kHomeStream),
                           streams_.StreamOf(kUnseenStream));
    const c10::StreamGuard guard(streams_.StreamOf(kUnseenStream));
    own_.sum();
  }
  void EndStep() { uses_.NoteStep(); }
  void Evict() {
    Hindrance hindrance = uses_.FindHindrance(streams_);
    if (hindrance == Hindrance::kUnfinished) {
      Expect(uses_.AwaitCollectives(streams_));
      hindrance = Hindrance::kNone;
    }
    if (hindrance != Hindrance::kNone) return;
    if (std::exchange(is_written_, false)) {
      TorchBlock block(own_.storage().data_ptr());
      Expect(block.RecordUse(kDown));
      Expect(uses_.AwaitUses(streams_, kDown));
      const c10::StreamGuard guard(streams_.StreamOf(kDown));
      below_.copy_(own_, /*non_blocking=*/true);
      written_back_ = *streams_.Record(kDown);
    }
    own_.reset();
  }
  // With a rule off they may be any.
  at::Tensor ValuesBelow() {
    if (written_back_ != nullptr) {
      Expect(streams_.Wait(*std::exchange(written_back_, nullptr)));
    }
    return below_.clone();
  }
  static at::TensorOptions OnDevice() {
    return at::device(AcceleratorDevice(0)).dtype(at::kFloat);
  }

 private:
  static void Expect(const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }

  TorchStreams& streams_;
  StreamUses uses_;
  at::Tensor own_;
  const at::Tensor below_ = at::zeros({kNumbers}).pin_memory();
  std::shared_ptr<DeviceEvent> written_back_;
  bool is_written_ = false;
};

class TorchStreamsTest : public AcceleratorTest {
 protected:
  // Somebody else's, in all memory that is free by now: which block the
  // allocator takes first depends on what it has back.
  static void FillNext() {
    std::vector<at::Tensor> blocks;
    for (int block = 0; block < 16; ++block) {
      blocks.push_back(
          at::empty({MovedTensor::kNumbers}, MovedTensor::OnDevice())
              .fill_(-1));
    }
  }
  // What the rules are for, at each step.
  at::Tensor Run(StreamRules rules) {
    MovedTensor tensor(own_, rules);
    FillNext();
    tensor.Bring();
    tensor.Use(kHomeStream, 1);
    Order(kHome, kSide);
    tensor.Use(kSideStream, 2);
    tensor.Evict();
    FillNext();
    tensor.Bring();
    tensor.Use(kSideStream, std::nullopt);
    tensor.Evict();  // without a copy that would be in order
    FillNext();
    tensor.Bring();
    tensor.Use(kHomeStream, std::nullopt);
    tensor.Share();
    tensor.Evict();  // not yet
    FillNext();
    tensor.EndStep();
    tensor.Evict();
    FillNext();
    return tensor.ValuesBelow();
  }

  TorchStreams own_{kDevice};
};

TEST_F(TorchStreamsTest, WhoKeepsTheRulesIsNeverReported) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    streams().SetDelays(seed, /*longest=*/10);
    EXPECT_TRUE(Run(StreamRules()).eq(3).all().item<bool>()) << seed;
  }
}

struct SwitchedOff {
  StreamRule rule;
  const char* report;  // what is found
};

// LibTorch's graphs are CUDA's: their rule is tested without it.
constexpr SwitchedOff kSwitchedOff[] = {
    {StreamRule::kCopyWaitsForAllocation,
     "a copy on testdev:0 stream 2 writes .* not ordered after"},
    {StreamRule::kUseWaitsForCopy,
     "not ordered after a copy on testdev:0 stream 2, which writes it"},
    {StreamRule::kEachStreamIsRecorded,
     "not ordered after aten::sum on testdev:0 stream 1, which reads the block "
     "that had the memory before"},
    {StreamRule::kCopyDownWaitsForUses,
     "a copy on testdev:0 stream 3 reads .* not ordered after aten::add_ on "
     "testdev:0 stream 1"},
    {StreamRule::kCollectivesTensorsStay,
     "not ordered after aten::sum on testdev:0 stream 4, which reads the block "
     "that had the memory before"},
};

TEST_F(TorchStreamsTest, EachRuleThatIsSwitchedOffIsReported) {
  static_assert(std::size(kSwitchedOff) + 1 == kStreamRules.size());
  for (const SwitchedOff& off : kSwitchedOff) {
    for (const int64_t longest : {0, 10}) {
      SCOPED_TRACE(off.report);
      streams().SetDelays(/*seed=*/1, longest);
      Run(StreamRules().Without(off.rule));
      WaitForAll();
      EXPECT_THAT(TakeReports(), Contains(ContainsRegex(off.report)));
    }
  }
}

TEST_F(TorchStreamsTest, AFailureOfTheDeviceIsAStatus) {
  EXPECT_EQ(own_.CurrentStream(), kHomeStream);
  streams().Submit(TheAccelerator().Of(kHome), "a kernel", {},
                   [] { throw std::runtime_error("broke"); });
  const absl::Status status = own_.WaitForAll();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a wait for all streams on testdev:0: a task of a "
                        "stream failed: a kernel: broke"));
  EXPECT_TRUE(own_.WaitForAll().ok());
  const auto missing = own_.Record(/*stream=*/77);
  EXPECT_TRUE(absl::IsUnavailable(missing.status())) << missing.status();
}

}  // namespace
}  // namespace terrace
