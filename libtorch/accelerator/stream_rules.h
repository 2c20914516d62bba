// The rules of streams, which one table tells. A pin says that an operation is
// in flight on the CPU; a device may begin it much later, so that pins protect
// nothing there. What the device has done the CPU learns of events: it waits
// for them before it gives a slice of the device's memory to anybody else, and
// before it shows what was copied to a slice.
//
// Each rule has a switch, for tests alone: what a rule forbids is found by a
// test as soon as the rule is off.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace terrace {

enum class StreamRule : uint8_t {
  kCopyWaitsForAllocation,
  kUseWaitsForCopy,
  kEachStreamIsNoted,
  kSliceIsHeldForItsEvents,
  kLeaseIsAUse,
  kTakenBlockIsRecorded,
};

struct StreamRuleText {
  StreamRule rule;
  std::string_view text;
};

inline constexpr std::array<StreamRuleText, 6> kStreamRules = {{
    {StreamRule::kCopyWaitsForAllocation,
     "copies to memory that was just allocated come after what its home "
     "stream had been given before"},
    {StreamRule::kUseWaitsForCopy,
     "a tensor is shown to operations once the copy that brings its bytes is "
     "over"},
    {StreamRule::kEachStreamIsNoted,
     "every stream that an operation uses a tensor on is noted, and so is one "
     "that the program records"},
    {StreamRule::kSliceIsHeldForItsEvents,
     "the memory of a tensor that leaves or ends is neither copied from nor "
     "given to others before all noted streams have done what they were given "
     "until then"},
    {StreamRule::kLeaseIsAUse,
     "the end of a lease is a use on the stream that its thread has then"},
    {StreamRule::kTakenBlockIsRecorded,
     "LibTorch's own block, of a tensor that is taken over, is recorded with "
     "its allocator for the stream that copies from it"},
}};

class StreamRules {
 public:
  constexpr bool Has(StreamRule rule) const { return (off_ & Bit(rule)) == 0; }
  constexpr StreamRules Without(StreamRule rule) const {
    StreamRules rules = *this;
    rules.off_ |= Bit(rule);
    return rules;
  }

  // Those of the process: all of them, but in a test.
  static StreamRules Current() { return current_.load(); }
  static void SetForTest(StreamRules rules) { current_.store(rules); }

 private:
  static constexpr uint32_t Bit(StreamRule rule) {
    return uint32_t{1} << static_cast<uint32_t>(rule);
  }

  static std::atomic<StreamRules> current_;

  uint32_t off_ = 0;
};

inline std::atomic<StreamRules> StreamRules::current_ = StreamRules();

}  // namespace terrace
