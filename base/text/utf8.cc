#include "base/text/utf8.h"

namespace terrace {

Utf8Character FirstCharacterOf(absl::string_view text) {
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
  const bool is_shortest = bytes < 3 || (bytes == 3 && point >= 0x800) ||
                           (point >= 0x10000 && point < 0x110000);
  if (!is_shortest || (point >= 0xd800 && point < 0xe000)) return {};
  return {bytes, point};
}

}  // namespace terrace
