#include "daemon/cli/printable.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace terrace::cli {
namespace {

struct Character {
  size_t bytes = 0;  // 0: it is no UTF-8
  uint32_t point = 0;
};

Character FirstOf(absl::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const size_t bytes = first < 0x80                    ? 1
                       : first >= 0xc2 && first < 0xe0 ? 2
                       : first >= 0xe0 && first < 0xf0 ? 3
                       : first >= 0xf0 && first < 0xf5 ? 4
                                                       : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  uint32_t point = bytes == 1 ? first : first & (0xffu >> (bytes + 1));
  for (const char each : text.substr(1, bytes - 1)) {
    const auto byte = static_cast<unsigned char>(each);
    if ((byte & 0xc0) != 0x80) return {};
    point = point << 6 | (byte & 0x3f);
  }
  // The shortest form alone, of what is a character.
  const bool is_one = bytes < 3 || (bytes == 3 && point >= 0x800) ||
                      (point >= 0x10000 && point < 0x110000);
  if (!is_one || (point >= 0xd800 && point < 0xe000)) return {};
  return {bytes, point};
}

bool IsObeyed(uint32_t point) {
  const bool is_control = point < 0x20 || (point >= 0x7f && point < 0xa0);
  const bool breaks_line = point == 0x2028 || point == 0x2029;
  const bool turns_line = (point >= 0x202a && point <= 0x202e) ||
                          (point >= 0x2066 && point <= 0x2069) ||
                          point == 0x200e || point == 0x200f || point == 0x061c;
  return is_control || breaks_line || turns_line;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character first = FirstOf(text);
    const bool is_shown = first.bytes > 0 && !IsObeyed(first.point);
    const size_t bytes = first.bytes > 0 ? first.bytes : 1;
    for (const char each : text.substr(0, bytes)) {
      if (is_shown) {
        out += each;
      } else {
        absl::StrAppendFormat(&out, "\\x%02x",
                              static_cast<unsigned char>(each));
      }
    }
    text.remove_prefix(bytes);
  }
  return out;
}

}  // namespace terrace::cli
