// Media without hardware: one of plain bytes, one that only says its size.
//
// Thread-safe for ranges that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "tiers/medium.h"

namespace terrace {

class VectorMedium final : public Medium {
 public:
  VectorMedium(std::string name, int64_t size_bytes)
      : name_(std::move(name)), bytes_(static_cast<size_t>(size_bytes)) {}

  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override {
    return static_cast<int64_t>(bytes_.size());
  }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    std::memcpy(to.data(), At(offset, to.size()), to.size());
    return absl::OkStatus();
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    std::memcpy(At(offset, from.size()), from.data(), from.size());
    return absl::OkStatus();
  }

  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::byte* At(int64_t offset, size_t size) {
    TERRACE_CHECK(offset >= 0 && size > 0);
    TERRACE_CHECK(static_cast<size_t>(offset) + size <= bytes_.size());
    return bytes_.data() + offset;
  }

  const std::string name_;
  std::vector<std::byte> bytes_;
};

// Moves nothing.
class EmptyMedium final : public Medium {
 public:
  EmptyMedium(std::string name, int64_t size_bytes)
      : name_(std::move(name)), size_bytes_(size_bytes) {}

  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override { return size_bytes_; }
  absl::Status Read(int64_t, absl::Span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override {
    return absl::OkStatus();
  }

 private:
  const std::string name_;
  const int64_t size_bytes_;
};

}  // namespace terrace
