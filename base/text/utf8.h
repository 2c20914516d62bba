// Text by its characters, as UTF-8 has them (RFC 3629): the shortest form
// alone, and no surrogates. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace terrace {

struct Utf8Character {
  size_t bytes = 0;  // 0: it is none
  uint32_t point = 0;
};

// The first one of a text that is not empty.
Utf8Character FirstCharacterOf(absl::string_view text);

// Of those of C0 and C1, and DEL.
inline bool IsControl(uint32_t point) {
  return point < 0x20 || (point >= 0x7f && point < 0xa0);
}

}  // namespace terrace
