// A ByteWindow over the production mover with a memory device that fails as the
// test says, and tensors without storages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "libtorch/hook/window/byte_window.h"
#include "tests/libtorch/hook/window/fake_tensor.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

class ByteWindowTest : public testing::Test {
 protected:
  static constexpr int64_t kPage = 4096;

  // The Runtime has `budget_pages`, and the window as much but `spare_pages`.
  void Make(int64_t budget_pages, int64_t spare_pages = 0,
            ByteWindowOptions options = {}) {
    TestRuntimeOptions runtime;
    runtime.budget_bytes = budget_pages * kPage;
    runtime.prefetch = reads_ahead_;
    world_ = std::make_unique<TestRuntime>(TestWorld::kMemory, runtime);
    options.window_bytes = (budget_pages - spare_pages) * kPage;
    window_ = std::make_unique<ByteWindow>(world_->runtime(), options);
  }

  // Before Make: nothing comes but what is asked for.
  void ReadNothingAhead() { reads_ahead_ = false; }

  // Of these pages each, filled with a pattern of its index; they take one page
  // more.
  void Fill(const std::vector<int64_t>& pages) {
    for (const int64_t each : pages) Add(each * kPage);
  }
  void Add(int64_t size_bytes) {
    const auto seed = static_cast<uint8_t>(tensors_.size());
    tensors_.push_back(std::make_unique<FakeTensor>(
        "tensor " + std::to_string(seed), size_bytes));
    FakeTensor& tensor = *tensors_.back();
    ASSERT_TRUE(window_->Add({&tensor}).ok());
    std::vector<std::byte> source(static_cast<size_t>(size_bytes));
    WritePattern(absl::MakeSpan(source), seed);
    tensor.word().Pin();
    const absl::Status filled = window_->Fill(tensor, source.data());
    window_->EndUse(tensor);
    ASSERT_TRUE(filled.ok()) << filled;
  }

  FakeTensor& tensor(int i) { return *tensors_[static_cast<size_t>(i)]; }
  int count() const { return static_cast<int>(tensors_.size()); }
  bool IsHere(int i) { return tensor(i).data != nullptr; }
  absl::Status Read(int i, uint8_t seed) {
    return WithBytes(*window_, tensor(i), /*writes=*/false,
                     [&](absl::Span<std::byte> bytes) {
                       EXPECT_TRUE(HasPattern(bytes, seed)) << i;
                     });
  }
  absl::Status Read(int i) { return Read(i, static_cast<uint8_t>(i)); }
  absl::Status Write(int i, uint8_t seed) {
    return WithBytes(
        *window_, tensor(i), /*writes=*/true,
        [&](absl::Span<std::byte> bytes) { WritePattern(bytes, seed); });
  }
  void FetchAhead(int i) {
    const WindowTensor* const one[] = {&tensor(i)};
    window_->FetchAhead(one);
  }
  // Until so many were begun: what is asked for before does not come ahead.
  void AwaitReadsAhead(int64_t count) {
    EXPECT_TRUE(world_->WaitUntil(
        [&] { return world_->runtime().GetStats().prefetch_reads >= count; }));
  }
  void Remove(FakeTensor& tensor) {
    ASSERT_TRUE(tensor.word().Leave());
    window_->Remove(tensor);
    tensor.word().SetLife(Life::kGone);
  }
  // As an operation that takes these: pinned, and brought.
  absl::Status Take(const std::vector<int>& these,
                    const FetchAsker& asker = {}) {
    ByteWindow::Tensors tensors;
    for (const int i : these) {
      tensor(i).word().Pin();
      tensors.push_back(&tensor(i));
    }
    return window_->Fetch(tensors, asker);
  }
  void EndUses(const std::vector<int>& these) {
    for (const int i : these) window_->EndUse(tensor(i));
  }
  // After an error it is managed again.
  absl::Status MoveOut(int i) {
    EXPECT_TRUE(tensor(i).word().Leave());
    const absl::Status status = window_->MoveOut(tensor(i));
    tensor(i).word().SetLife(status.ok() ? Life::kGone : Life::kManaged);
    return status;
  }
  ByteWindow& window() { return *window_; }
  TestRuntime& world() { return *world_; }
  int64_t written() { return world_->runtime().GetStats().bytes_written(); }
  // All are away, with nothing left to write, so that there is room at once.
  void EvictClean() {
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < count(); ++i) ASSERT_TRUE(Read(i).ok());
    }
    window_->EvictAll();
  }

 private:
  bool reads_ahead_ = true;
  std::unique_ptr<TestRuntime> world_;
  // Outlive their stay in the window, and end before the Runtime.
  std::vector<std::unique_ptr<FakeTensor>> tensors_;
  std::unique_ptr<ByteWindow> window_;
};

}  // namespace terrace
