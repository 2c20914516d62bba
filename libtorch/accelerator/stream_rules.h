// The rules of streams, which one table tells. A pin says that an operation is
// in flight on the CPU; the device may begin it much later, so that pins
// protect nothing there. Streams do, by these rules; stream_uses.h follows
// them.
//
// Each has a switch, for tests alone: what a rule forbids is found by a test as
// soon as the rule is off.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace terrace {

enum class StreamRule : uint8_t {
  kCopyWaitsForAllocation,
  kUseWaitsForCopy,
  kEachStreamIsRecorded,
  kCopyDownWaitsForUses,
  kGraphsTensorsStay,
  kCollectivesTensorsStay,
};

struct StreamRuleText {
  StreamRule rule;
  std::string_view text;
};

inline constexpr std::array<StreamRuleText, 6> kStreamRules = {{
    {StreamRule::kCopyWaitsForAllocation,
     "the copy that brings bytes comes after what the home stream, whose "
     "memory "
     "it is, was given before the allocation"},
    {StreamRule::kUseWaitsForCopy,
     "what a stream is given first for a tensor comes after the copy that "
     "brought its bytes; the home stream's in any case"},
    {StreamRule::kEachStreamIsRecorded,
     "every other stream is recorded with the allocator before its first use, "
     "so that the block is safe however it ends: evicted, or with its storage"},
    {StreamRule::kCopyDownWaitsForUses,
     "a copy to memory comes after all that the streams were given until then"},
    {StreamRule::kGraphsTensorsStay,
     "nothing is evicted while a graph is captured on a stream that is the "
     "calling thread's or has used it, and what a graph has used stays for "
     "good: the graph has its address"},
    {StreamRule::kCollectivesTensorsStay,
     "what a collective of somebody else's has used stays until the step's "
     "end, "
     "and then until the device has done everything, since that runs on a "
     "stream that is not seen here"},
}};

class StreamRules {
 public:
  constexpr bool Has(StreamRule rule) const { return (off_ & Bit(rule)) == 0; }
  constexpr StreamRules Without(StreamRule rule) const {
    StreamRules rules = *this;
    rules.off_ |= Bit(rule);
    return rules;
  }

 private:
  static constexpr uint32_t Bit(StreamRule rule) {
    return uint32_t{1} << static_cast<uint32_t>(rule);
  }

  uint32_t off_ = 0;
};

}  // namespace terrace
