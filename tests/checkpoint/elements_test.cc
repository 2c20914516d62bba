// Parameters that have no address: what a save and a load copy, and when.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/checkpoint/job.h"

namespace terrace {
namespace {

// The values of one of a model's parameters, counted as they come and go.
class CountedElements final : public CheckpointElements {
 public:
  explicit CountedElements(const CheckpointTensor& tensor)
      : data_(static_cast<std::byte*>(tensor.data)),
        bytes_(tensor.count() * DTypeBytes(tensor.dtype)) {}

  absl::Status Read(int64_t offset, absl::Span<std::byte> target) override {
    const absl::Status status = Count(offset, target.size());
    if (status.ok()) std::memcpy(target.data(), data_ + offset, target.size());
    return status;
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> source) override {
    const absl::Status status = Count(offset, source.size());
    if (status.ok()) std::memcpy(data_ + offset, source.data(), source.size());
    return status;
  }

  int64_t moved_bytes() const { return moved_bytes_; }
  int64_t largest_bytes() const { return largest_bytes_; }
  void FailAt(int call) { failing_call_ = call; }

 private:
  absl::Status Count(int64_t offset, size_t size) {
    const auto bytes = static_cast<int64_t>(size);
    EXPECT_EQ(offset, moved_bytes_ % bytes_) << "in order, each once";
    EXPECT_LE(offset + bytes, bytes_);
    if (++calls_ == failing_call_) return absl::InternalError("device is gone");
    moved_bytes_ += bytes;
    largest_bytes_ = std::max(largest_bytes_, bytes);
    return absl::OkStatus();
  }

  std::byte* const data_;
  const int64_t bytes_;
  int64_t moved_bytes_ = 0;
  int64_t largest_bytes_ = 0;
  int calls_ = 0;
  int failing_call_ = 0;
};

// A job whose parameters have no addresses when it is saved or loaded.
class Elsewhere {
 public:
  // The first has three blocks of 4 MiB, of which the last is short.
  explicit Elsewhere(uint64_t seed)
      : job_(Model::Of({{"large", DType::kFloat32, 2'500'000},
                        {"half", DType::kBFloat16, 1'000},
                        {"one", DType::kFloat32, 1}},
                       seed),
             {}) {
    tensors_ = job_.tensors();
    for (CheckpointTensor& tensor : tensors_) {
      elements_.push_back(std::make_unique<CountedElements>(tensor));
      tensor.data = nullptr;
      tensor.elements = elements_.back().get();
    }
  }

  Job& job() { return job_; }
  CountedElements& elements(size_t i) { return *elements_[i]; }

  absl::Status Save(const std::string& directory) {
    return SaveCheckpoint(
               directory,
               {.parameters = tensors_, .optimizer = &job_.optimizer()},
               InAMinute())
        .status();
  }
  absl::Status Load(const std::string& directory) {
    auto checkpoint = Checkpoint::Open(directory);
    if (!checkpoint.ok()) return checkpoint.status();
    return (*checkpoint)->Load(tensors_, &job_.optimizer(), InAMinute());
  }

 private:
  Job job_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<std::unique_ptr<CountedElements>> elements_;
};

void ExpectSameValues(Job& one, Job& other) {
  for (size_t i = 0; i < one.model().parameters().size(); ++i) {
    EXPECT_TRUE(one.model().parameters()[i].values.SameBits(
        other.model().parameters()[i].values))
        << i;
  }
}

TEST(CheckpointElementsTest, MoveABlockAtATimeAndAreWhatAddressesGive) {
  TemporaryDirectory directory, plain;
  Elsewhere saved(1);
  ASSERT_TRUE(saved.job().ok());
  saved.job().Step(1);
  ASSERT_TRUE(saved.Save(directory.path()).ok());
  EXPECT_EQ(saved.elements(0).moved_bytes(), 10'000'000);
  EXPECT_EQ(saved.elements(0).largest_bytes(), 4 << 20);
  EXPECT_EQ(saved.elements(1).moved_bytes(), 2'000);
  EXPECT_EQ(saved.elements(2).moved_bytes(), 4);

  // Either kind of parameter loads what the other saved.
  Job in_memory(Model::Of(saved.job().model().specs(), 2), {});
  ASSERT_TRUE(in_memory.Load(directory.path()).ok());
  ExpectSameValues(saved.job(), in_memory);
  ASSERT_TRUE(in_memory.Save(plain.path()).ok());
  Elsewhere loaded(3);
  const absl::Status status = loaded.Load(plain.path());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(loaded.elements(0).largest_bytes(), 4 << 20);
  ExpectSameValues(saved.job(), loaded.job());
}

TEST(CheckpointElementsTest, ThatCannotBeReadLeaveTheOldCheckpoint) {
  TemporaryDirectory directory;
  Elsewhere saved(1);
  ASSERT_TRUE(saved.job().ok());
  saved.job().Step(1);
  ASSERT_TRUE(saved.Save(directory.path()).ok());
  Job before(Model::Of(saved.job().model().specs(), 2), {});
  ASSERT_TRUE(before.Load(directory.path()).ok());
  saved.job().Step(2);
  saved.elements(0).FailAt(5);  // in its second block of this save
  EXPECT_EQ(saved.Save(directory.path()).message(), "device is gone");
  Job after(Model::Of(saved.job().model().specs(), 3), {});
  ASSERT_TRUE(after.Load(directory.path()).ok());
  ExpectSameValues(before, after);
}

TEST(CheckpointElementsTest, ThatCannotBeWrittenLeaveTheOptimizerEmpty) {
  TemporaryDirectory directory;
  Elsewhere saved(1);
  ASSERT_TRUE(saved.job().ok());
  saved.job().Step(1);
  ASSERT_TRUE(saved.Save(directory.path()).ok());
  saved.elements(0).FailAt(6);  // in its last block
  EXPECT_EQ(saved.Load(directory.path()).message(), "device is gone");
  EXPECT_EQ(saved.job().optimizer().step(), 0);
}

}  // namespace
}  // namespace terrace
