#include "libtorch/hook/window/fingerprint.h"

#include <cstring>

namespace terrace {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / the golden ratio
constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kLanes = 4;  // multiplications that do not wait for each other

// Mixed is a bijection of the word for each state, and of the state for each
// word.
uint64_t Mixed(uint64_t state, uint64_t word) {
  state = (state ^ word) * kOdd;
  return state ^ (state >> 32);
}

}  // namespace

uint64_t Fingerprint(absl::Span<const std::byte> bytes) {
  // The lanes begin with digits of pi, since with small numbers a lane's state
  // meets the sum's.
  uint64_t lanes[kLanes] = {0x243f6a8885a308d3, 0x13198a2e03707344,
                            0xa4093822299f31d0, 0x082efa98ec4e6c89};
  size_t at = 0;
  for (; at + kLanes * kWord <= bytes.size(); at += kLanes * kWord) {
    uint64_t words[kLanes];
    std::memcpy(words, bytes.data() + at, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = Mixed(lanes[i], words[i]);
  }
  uint64_t sum = bytes.size() ^ 0x452821e638d01377;
  for (; at < bytes.size(); at += kWord) {
    uint64_t word = 0;
    const size_t left = bytes.size() - at;
    std::memcpy(&word, bytes.data() + at, left < kWord ? left : kWord);
    sum = Mixed(sum, word);
  }
  for (const uint64_t lane : lanes) sum = Mixed(sum, lane);
  return sum;
}

}  // namespace terrace
