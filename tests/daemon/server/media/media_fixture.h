// A daemon with a tier of far or persistent memory, as tests have it on a
// machine without, and a job's tensors there beside what they are to have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/daemon/server/connected_job.h"
#include "tiers/pmem/persist_domain.h"

namespace terrace {

inline constexpr int64_t kMib = 1 << 20;
inline constexpr int64_t kMemory = 4 * kMib;
inline constexpr int64_t kTensor = kMib - kTensorHeaderBytes;
inline constexpr int kTensors = 24;

using Bytes = std::vector<std::byte>;

// The name of a tier, "$" where its directory is.
class MediaTest : public testing::TestWithParam<const char*> {
 protected:
  std::string tier() const {
    return absl::StrReplaceAll(GetParam(), {{"$", directory_.path()}});
  }
  // With nothing below memory but that, of 64 MiB.
  std::unique_ptr<RunningDaemon> StartWith(const std::string& text = "",
                                           const std::string& more = "",
                                           bool keeps = false) const {
    auto daemon = std::make_unique<RunningDaemon>(
        text,
        RunningDaemon::Setting{
            .keeps = keeps,
            .tiers = absl::StrCat("'dram=16MiB', '", tier(), "=64MiB'", more),
            .program = PLAIN_MEDIA_DAEMON});
    EXPECT_TRUE(daemon->Serves());
    return daemon;
  }
  // What all jobs have of it.
  int64_t Used(const RunningDaemon& daemon) const {
    const auto status = daemon.Status();
    if (!status.ok()) return -1;
    for (const auto& each : status->tiers) {
      if (each.name == tier()) return each.used_bytes;
    }
    return -1;
  }
  bool IsEmpty() const { return std::filesystem::is_empty(directory_.path()); }

  void SetUp() override {
    const bool is_pmem = tier().substr(0, 4) == "pmem";
    const absl::Status available = PersistDomain::CheckAvailable();
    if (is_pmem && !available.ok()) GTEST_SKIP() << available;
  }

  const TemporaryDirectory directory_;
};

// A job's tensors, and what they are to have.
class CheckedTensors {
 public:
  CheckedTensors(Runtime& runtime, uint32_t seed)
      : runtime_(runtime), random_(seed) {}

  absl::Status Register() {
    const absl::StatusOr<TensorId> id =
        RegisterOf(runtime_, absl::StrCat("t", ids_.size()), kTensor);
    if (!id.ok()) return id.status();
    ids_.push_back(*id);
    plain_.emplace_back();
    return absl::OkStatus();
  }
  void RegisterAll() {
    for (int i = 0; i < kTensors; ++i) ASSERT_TRUE(Register().ok());
  }
  void Write(size_t i) {
    auto pin = runtime_.Acquire(ids_[i], Access::kOverwrite, Later());
    ASSERT_TRUE(pin.ok()) << pin.status();
    plain_[i].resize(static_cast<size_t>(kTensor));
    for (size_t at = 0; at < plain_[i].size(); at += sizeof(uint32_t)) {
      const auto word = static_cast<uint32_t>(random_());
      std::memcpy(plain_[i].data() + at, &word, sizeof(word));
    }
    std::memcpy(pin->data().data(), plain_[i].data(), plain_[i].size());
  }
  void WriteAll() {
    for (size_t i = 0; i < ids_.size(); ++i) Write(i);
  }
  void WriteSome() {
    for (int i = 0; i < kTensors; ++i) Write(random_() % ids_.size());
  }
  void CheckAll() const {
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (plain_[i].empty()) continue;
      const auto pin = runtime_.Acquire(ids_[i], Access::kRead, Later());
      ASSERT_TRUE(pin.ok()) << pin.status();
      EXPECT_TRUE(Bytes(pin->data().begin(), pin->data().end()) == plain_[i])
          << "tensor " << i;
    }
  }
  size_t count() const { return ids_.size(); }

 private:
  Runtime& runtime_;
  std::minstd_rand random_;
  std::vector<TensorId> ids_;
  std::vector<Bytes> plain_;
};

inline const auto kMediaTiers = testing::Values("far:node0", "pmem:$");
inline std::string MediaName(const testing::TestParamInfo<const char*>& tier) {
  return {tier.param, tier.param + 3};
}

}  // namespace terrace
