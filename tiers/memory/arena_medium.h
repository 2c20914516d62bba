// A part of this process's memory as a medium: how another memory of the
// runtime is copied to and from. Thread-safe, as its user never copies a range
// twice at one time.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/check.h"
#include "tiers/medium.h"

namespace terrace {

class ArenaMedium final : public Medium {
 public:
  // The bytes outlive it.
  ArenaMedium(std::string name, absl::Span<std::byte> bytes)
      : name_(std::move(name)), bytes_(bytes) {}

  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override {
    return static_cast<int64_t>(bytes_.size());
  }
  absl::Status Read(int64_t offset, absl::Span<std::byte> to) override {
    const absl::Span<std::byte> from = PartOf(offset, to.size());
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
    return absl::OkStatus();
  }
  absl::Status Write(int64_t offset,
                     absl::Span<const std::byte> from) override {
    const absl::Span<std::byte> to = PartOf(offset, from.size());
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    return absl::OkStatus();
  }

 private:
  absl::Span<std::byte> PartOf(int64_t offset, size_t size) const {
    TERRACE_CHECK(offset >= 0 && static_cast<size_t>(offset) <= bytes_.size() &&
                  size <= bytes_.size() - static_cast<size_t>(offset));
    return bytes_.subspan(static_cast<size_t>(offset), size);
  }

  const std::string name_;
  const absl::Span<std::byte> bytes_;
};

}  // namespace terrace
