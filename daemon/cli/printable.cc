#include "daemon/cli/printable.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"
#include "base/text/utf8.h"

namespace terrace::cli {
namespace {

bool IsObeyed(uint32_t point) {
  const bool breaks_line = point == 0x2028 || point == 0x2029;
  const bool turns_line = (point >= 0x202a && point <= 0x202e) ||
                          (point >= 0x2066 && point <= 0x2069) ||
                          point == 0x200e || point == 0x200f || point == 0x061c;
  return IsControl(point) || breaks_line || turns_line;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Character first = FirstCharacterOf(text);
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
