// Whatever bytes may come in place of a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "daemon/wire/envelope.h"
#include "gtest/gtest.h"

namespace terrace {

// But for bytes at the end that are of no field.
inline void ExpectTruncatedAreNone(
    const std::vector<std::vector<std::byte>>& messages) {
  for (const std::vector<std::byte>& whole : messages) {
    for (size_t size = 0; size < whole.size(); ++size) {
      const auto decoded = Decode(absl::MakeConstSpan(whole).first(size));
      EXPECT_FALSE(decoded.ok() && size + 8 < whole.size()) << size;
    }
  }
}

// What a sanitiser sees, above all: no byte may lead beyond the others.
inline void ExpectChangedAreReadOrRefused(
    const std::vector<std::vector<std::byte>>& messages) {
  std::mt19937 draw(1);
  int64_t refused = 0;
  int64_t read = 0;
  for (const std::vector<std::byte>& whole : messages) {
    for (int round = 0; round < 20000; ++round) {
      std::vector<std::byte> changed = whole;
      for (uint32_t i = 0; i <= draw() % 4; ++i) {
        changed[draw() % changed.size()] = static_cast<std::byte>(draw());
      }
      Decode(changed).ok() ? ++read : ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 1000);
}

}  // namespace terrace
