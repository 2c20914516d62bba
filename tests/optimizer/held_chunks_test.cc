#include "optimizer/chunks/held_chunks.h"

#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/door/runtime_door.h"

namespace terrace {
namespace {

Time Soon() { return absl::Now() + absl::Seconds(60); }

// Two chunks of each dtype over a runtime with threads.
class HeldChunksTest : public testing::Test {
 protected:
  void Open(int slots) {
    std::vector<ParameterSpec> specs;
    for (const DType dtype :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      specs.push_back({.dtype = dtype,
                       .count = ChunkElements(dtype, kSmallestChunkBytes) + 5});
    }
    chunks_ = CutIntoChunks(specs, kSmallestChunkBytes);
    ASSERT_EQ(chunks_.size(), 6u);
    Options options;
    options.host_budget_bytes = 400 << 10;
    options.memory_paths = 1;
    options.memory_path_bytes = 4 << 20;
    options.threads = 1;
    options.huge_pages = HugePages::kOff;
    runtime_ = *Reach(options);
    std::vector<TensorId> tensors;
    for (const Chunk& chunk : chunks_) {
      tensors.push_back(
          *runtime_->Register({.name = absl::StrCat("chunk", tensors.size()),
                               .size_bytes = chunk.payload_bytes()}));
    }
    requests_ = std::make_unique<ChunkRequests>(SystemClock());
    requests_->SetQueue(
        *runtime_->OpenQueue(kSmallestChunkBytes, slots, Soon()));
    table_ = ChunkTable();
    table_.Append(chunks_, tensors, specs.size());
  }

  // Where chunk `index` is; null after an error.
  std::byte* Hold(HeldChunks& held, int index) {
    const Access access =
        table_.contents(index).fresh ? Access::kOverwrite : Access::kUpdate;
    auto payload = held.Hold(index, access, Soon());
    EXPECT_TRUE(payload.ok()) << payload.status();
    return payload.ok() ? *payload : nullptr;
  }
  void Fill(HeldChunks& held, int index, int value) {
    std::byte* const payload = Hold(held, index);
    ASSERT_NE(payload, nullptr);
    const auto i = static_cast<size_t>(index);
    std::memset(payload, value,
                static_cast<size_t>(chunks_[i].payload_bytes()));
    table_.contents(index).fresh = false;
  }

  std::vector<Chunk> chunks_;
  ReachedRuntime runtime_;
  ChunkTable table_;
  std::unique_ptr<ChunkRequests> requests_;
};

TEST_F(HeldChunksTest, KeepTheLastOfEachDtype) {
  Open(/*slots=*/3);
  HeldChunks held(table_, *requests_);
  for (int i = 0; i < 6; i += 2) Fill(held, i, i);
  std::vector<std::byte*> first;
  for (int i = 0; i < 6; i += 2) first.push_back(Hold(held, i));
  for (int i = 0; i < 6; i += 2) {
    EXPECT_EQ(Hold(held, i), first[static_cast<size_t>(i / 2)]);
  }
  EXPECT_EQ(runtime_->GetStats().bytes_written(), 0);
}

TEST_F(HeldChunksTest, ManageWithAnyWindow) {
  for (const int slots : {1, 2, 3, 4}) {
    SCOPED_TRACE(slots);
    Open(slots);
    HeldChunks held(table_, *requests_);
    for (const int i : {0, 2, 4, 1, 3, 5}) Fill(held, i, i);
    for (const int i : {4, 0, 5, 1, 2, 3}) {
      const std::byte* const payload = Hold(held, i);
      ASSERT_NE(payload, nullptr);
      EXPECT_EQ(static_cast<int>(payload[7]), i);
    }
    held.Release();
    requests_.reset();
  }
}

}  // namespace
}  // namespace terrace
